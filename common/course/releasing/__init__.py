"""The student's edition of the course, and how a newer one comes into a checkout that is filled.

contents     which files it has, with which texts
words        a document as a student reads it
"""
