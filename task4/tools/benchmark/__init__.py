"""python -m task4.benchmark: how fast attention is, every version of the course beside PyTorch's.

__main__   the command line
grid       what is measured: one Problem per pass, dtype, head_dim, mask and length
peers      who takes part
check      compares every peer with float64 before it is timed
runs       times one problem's peers and measures their memory
summary    geometric means, the figures that the project names
tables     what is printed, and the JSON file
pictures   latency, throughput, speedup, memory, roofline
"""
