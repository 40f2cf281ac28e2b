"""Softmax over rows in float32; see README.md."""
