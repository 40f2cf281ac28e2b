"""What the fast kernels are timed on, and what they are compared with: `python -m common.benchmark NAME`.

flash      dense attention, forward and backward
gemm       matrix products in float32
softmax    softmax over rows in float32
sparse     strided, windowed and block-sparse attention
decode     one new token over a KV cache
distributed     attention over several GPUs

The tasks' benchmarks are these with the taught kernels and the student's next to them.
"""
