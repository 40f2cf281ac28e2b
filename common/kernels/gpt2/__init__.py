"""GPT-2 around its attention layers, and the inference engine; see README.md."""
