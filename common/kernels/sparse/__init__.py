"""Strided, windowed and block-sparse attention; see README.md."""
