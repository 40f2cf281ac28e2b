"""Task 2 with the gaps filled; `python -m common.skeleton task2` writes the students' files from these."""
