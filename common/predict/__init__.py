"""Predicts GPU time without a GPU; README.md explains the method and the files."""
