"""Task 1: attention in PyTorch, and the first CUDA kernels. The handout is README.md."""
