"""Syntax trees of CUDA C++.

reader      read(file) -> Source: its functions, their assignments and calls, and the statements around a line
"""
