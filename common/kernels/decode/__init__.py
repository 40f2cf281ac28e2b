"""One new token over a KV cache; see README.md."""
