"""Sources -> loaded operators.

variant     student, solution, tuned
manifest    taskN/task.json: the student's files, the folders with tuned kernels
places      the locations of a variant's sources
request     BuildRequest: what to build, and for which target
plan        the settings of one build: flags, folder, sources
load        load(request) -> Operators; build(request) -> the compilers' results
nvcc        compile_only(sources, arch): runs nvcc without loading anything
operators   Operators
results     registers the operators' output shapes with PyTorch (results.json next to every binding.cpp)
derivatives errors for operators without a gradient
gaps        the unfilled gaps of a source, and the operators that depend on them
skeletons   parses the gaps of a solution and generates the student's text
report      parses the compilers' output
errors      explains a failed build
launches    finds launches whose errors are not checked
toolchain   finds nvcc, the host compiler, ninja, the GPU
objects     a content-addressed cache of the simulator's objects and libraries, shared by all checkouts on a machine
runner      builds the program in which the simulator runs kernels
freshness   tracks what nvcc's build folders were built from
"""
