"""How fast would it be? Predicted GPU time without a GPU: README.md says how it works and which file holds what."""
