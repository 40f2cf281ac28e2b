"""What a kernel did, counted.

model                 KernelProfile
remarks               what a line's transactions mean
roofline              the time that a GPU needs at least
instruction_counts    floating-point operations in a library's machine code
report, pictures      prints and draws it
ncu                   the same from Nsight Compute
"""
