"""The process in which the student's code runs, so that nothing that it does ends the test.

worker       Worker: calls cases over there, in a new process after a crash
here         the same in this process
nursery      forks those processes from one in which nothing has happened yet
child        what they do
process_stat what Linux says of a process
messages     what both sides say: JSON and the bytes of tensors
endings      the words for a process that ended
"""
