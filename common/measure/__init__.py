"""Performance measurement: times, limits, tables.

timing        times several peers in turn with CUDA events
limits        measured peak rates of this GPU
gpus          data sheets of named GPUs; occupancy
allocations   memory allocated by PyTorch code, by line
report        tables and JSON of benchmarks
verdict_times time until a student gets a verdict
"""
