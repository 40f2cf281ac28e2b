"""How things are said: paths, counts, width, progress, and files that are written whole or not at all."""
