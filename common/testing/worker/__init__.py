"""The process in which the student's code runs, so that nothing that it does ends the test.

worker         Worker: calls cases over there, in a new process after a crash
here           the same in this process
child_process  ChildProcess: any process that runs the student's code, and may end, be silent or talk nonsense
nursery        forks workers from a process in which nothing has happened yet
child          what they do
process_stat   what Linux says of a process
messages       what both sides say: JSON and the bytes of tensors
endings        the words for a process that ended
"""
