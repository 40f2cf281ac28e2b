"""Attention, softmax and layers in plain PyTorch: the oracle, and error bounds for comparison with it."""
