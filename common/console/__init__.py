"""How output is worded and written: paths, counts, width, progress, and files that are written whole or not at all."""
