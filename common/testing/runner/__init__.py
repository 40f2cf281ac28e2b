"""The runner: a C++ program in which the simulator runs kernels, without Python and PyTorch.

runner.cpp   loads a built library, calls its operators, answers over a socket; starts in milliseconds
shim.cpp     the few functions of LibTorch that a binding.cpp imports, under the names of LibTorch's libraries
process      RunnerProcess: one such program, the memory that it shares with the test, and what both say
doors.cpp    filters of system calls, for grading
apart        ApartProcess: for grading, host code and device code in two processes (common/simulator/runtime/apart.cpp)

common/compiling/runner.py builds it; common/cli/workers.py decides what runs in it: all that is not Python.
"""
