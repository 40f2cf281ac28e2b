"""Task 7, solved."""
