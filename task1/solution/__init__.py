"""Task 1 with the gaps filled; `python -m common.skeleton task1` writes the students' files from these."""
