"""Inspection of kernels: `--check`, `--profile` and `--replay`.

checked_run     runs cases in the simulator's checked build
worth_it        selects the cases to run under a tool on a GPU
gpu_tools       runs `python -m taskN.test` under NVIDIA's tools
source_lines    machine code addresses of a library -> source lines
origins         the lines that compute an index or a pointer, and those that decide whether a line runs
made_of         the lines that compute a value
own_lines       which lines the student wrote
findings/       findings of a checker
profile/        counters of a kernel
replay/         a small launch, access by access
page/           all of it as HTML
"""
