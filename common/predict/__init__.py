"""How fast would it be? Predicted GPU time without a GPU.

machine         what a GPU reaches beyond its data sheet
counters        what is known of a launch
instructions    how many instructions a GPU would issue
registers       how many it would need, where there is no nvcc
launches        runs a call in the simulator, a few blocks of each grid
reuse           which bytes reach L2 and DRAM
model           the time, what bounds it, the next bound
report          prints it
validation      predicted against measured, on a machine with a GPU
published       predicted against what this repository's READMEs have measured
"""
