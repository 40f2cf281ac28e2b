"""CUDA C++ as a tree.

reader      read(file) -> Source: its functions, what they change and what they call, and what is around a line
"""
