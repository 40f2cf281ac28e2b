"""Output helpers: wording, paths, counts, width, progress, and atomically written files."""
