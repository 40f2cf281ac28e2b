"""The student edition of the course.

contents     its files and their contents
words        adapts documents to it
"""
