"""Task 4, solved."""
