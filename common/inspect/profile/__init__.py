"""Kernel profiles: counters of a kernel.

model                 KernelProfile
remarks               interprets a line's transactions
roofline              lower bounds on the time on a GPU
instruction_counts    floating-point operations in a library's machine code
report, pictures      printing and plotting
ncu                   the same from Nsight Compute
"""
