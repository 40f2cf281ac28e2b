"""How fast? Times, limits, tables.

timing        several peers in turn, by CUDA events
limits        what the GPU at hand can do at best
gpus          data sheets of named GPUs; how many blocks fit on an SM
allocations   how much memory a piece of PyTorch takes, and which line takes it
report        tables and JSON of benchmarks
verdict_times how long a student waits for a verdict
"""
