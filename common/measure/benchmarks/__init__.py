"""Benchmarks of the fast kernels against their peers: `python -m common.benchmark NAME`.

flash      dense attention, forward and backward
gemm       float32 matmul
softmax    float32 row-wise softmax
sparse     strided, windowed and block-sparse attention
decode     one new token over a KV cache
distributed     attention over several GPUs

The tasks' benchmarks are these plus the taught kernels and the student's.
"""
