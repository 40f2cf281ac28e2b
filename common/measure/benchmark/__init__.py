"""The benchmark framework: problems, versions that solve them, and a runner that times them in turn.

problem    Problem, Version
sample     checks an output: Sample, Errors
runner     Runner: checks, memory, times -> Record
goals      geometric means and their targets
tables     printed tables
files      JSON output and input
pictures   plots of latency, throughput, speedup, memory, roofline
"""
