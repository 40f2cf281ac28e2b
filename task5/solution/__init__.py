"""Task 5, solved."""
