"""Runs student code in a separate process, so that it cannot take down the test.

worker         Worker: calls cases in a worker process, in a new one after a crash
here           the same in this process
child_process  ChildProcess: any process that runs student code and may die, hang or send garbage
nursery        forks workers from a pristine process
child          the code that workers run
messages       the protocol: JSON and the bytes of tensors
endings        messages for a process that ended
"""
