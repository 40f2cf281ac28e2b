"""GPT-2 between its attention layers, and the engine; see README.md."""
