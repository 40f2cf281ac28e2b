"""Task 6: the KV cache and the decode kernel."""
