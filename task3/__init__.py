"""Task 3: FlashAttention-2 as an algorithm, and the online softmax kernels. The handout is README.md."""
