"""Sources -> loaded operators.

variant     student, solution, tuned
manifest    taskN/task.json: which files are the student's, where the tuned kernels are
places      where the sources of a variant are
request     BuildRequest: what to build, and for what
plan        everything that decides one build: flags, folder, sources
load        load(request) -> Operators; build(request) -> what the compilers said
nvcc        compile_only(sources, arch): nvcc alone, nothing is loaded
operators   Operators
results     what an operator returns, told to PyTorch (results.json next to every binding.cpp)
derivatives what has no gradient says so
gaps        which gaps of a source are unfilled, and which operators depend on them
skeletons   gaps in a solution's text, and the student's text made of it
report      reads what the compilers print
errors      a failed build in words
launches    launches whose success is not checked
toolchain   finds nvcc, the host compiler, ninja, the GPU
objects     the simulator's objects and libraries, by content: a cache that all checkouts on a machine share
runtime     the simulator's runtime
runner      the program in which the simulator runs kernels
freshness   what nvcc's build folders were built from
"""
