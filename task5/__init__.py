"""Task 5: strided attention."""
