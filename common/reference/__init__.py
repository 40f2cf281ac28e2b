"""Attention, softmax and layers in plain PyTorch: the oracle; and how far from it an output may be."""
