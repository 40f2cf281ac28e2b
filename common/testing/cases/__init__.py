"""Cases for any operator of a kind: attention, softmax, a layer in Python."""
