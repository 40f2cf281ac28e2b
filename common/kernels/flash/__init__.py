"""Dense attention, forward and backward; see README.md."""
