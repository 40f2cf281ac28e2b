"""Matrix products in float32; see README.md."""
