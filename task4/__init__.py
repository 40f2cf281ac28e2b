"""Task 4: FlashAttention-2 in CUDA."""
