"""CUDA C++ on the CPU: one fiber per CUDA thread. See README.md in this folder."""
