"""Looks inside kernels: `--check`, `--profile` and `--replay`.

checked_run     runs cases in the simulator's checked build
worth_it        which cases are worth a tool's time on a GPU
gpu_tools       NVIDIA's tools around `python -m taskN.test`
source_lines    a library's machine code -> source lines
origins         the lines that an index or a pointer is made of, and those that decide whether a line runs
made_of         the lines that a number is made of
own_lines       which lines the student wrote
findings/       what a checker found
flow/           what a wrong output was made of, from every access of a failing case
profile/        what a kernel did, counted
replay/         what a small launch did, access by access
page/           all of it in a browser
"""
