"""Task 2: softmax and GEMM kernels, assembled into tiled attention. The handout is README.md."""
