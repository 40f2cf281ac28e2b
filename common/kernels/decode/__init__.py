"""Decoding: attention of one new token over a KV cache; see README.md."""
