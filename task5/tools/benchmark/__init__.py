"""python -m task5.benchmark: sparse attention on a GPU beside PyTorch's FlexAttention and scaled_dot_product_attention.

problems.py     what is measured: pattern, sizes, who sees whom
versions.py     who computes it
runs.py         checks and times one problem
tables.py       tables, goals, JSON, the block for Results.md
pictures.py     the bars
__main__.py     the command line; `python -m task5.test --mode=benchmark` goes through it, too
"""
