"""GEMM in float32; see README.md."""
