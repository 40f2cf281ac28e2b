"""Attention with what models ask for besides: packed sequences, softcap, sinks and dropout; see README.md."""
