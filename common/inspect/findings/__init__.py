"""What a checker found: as objects (model), in words (words), printed (report); compute_sanitizer finds it on a GPU."""
