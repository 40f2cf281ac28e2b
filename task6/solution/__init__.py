"""Task 6, solved."""
