"""Task 3 with the gaps filled; `python -m common.skeleton task3` writes the students' files from these."""
