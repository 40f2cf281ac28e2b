"""What every benchmark is made of: problems, the versions that solve them, a runner that times them in turn.

problem    Problem, Version
sample     is an output right? Sample, Errors
runner     Runner: checks, memory, times -> Record
goals      geometric means, and what they should be
tables     what is printed
files      the same as JSON, and read again
pictures   latency, throughput, speedup, memory, roofline
"""
