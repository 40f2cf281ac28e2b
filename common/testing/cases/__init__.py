"""Test cases for operators of one kind: attention, softmax, a layer in Python."""
