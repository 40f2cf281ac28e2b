"""Findings of a checker: objects (model), texts (words), printing (report), and from a GPU (compute_sanitizer)."""
