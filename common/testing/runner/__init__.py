"""The runner: a C++ program in which the simulator runs kernels, without Python and PyTorch.

runner.cpp   loads a built library, calls its operators, answers over a socket; starts in milliseconds
shim.cpp     the few LibTorch functions that a binding.cpp imports, in libraries named like LibTorch's
process      RunnerProcess: a running runner, the memory it shares with the test, and their protocol
doors.cpp    system-call filters, for grading
apart        ApartProcess: for grading, host code and device code in two processes (common/simulator/runtime/apart.cpp)

common/compiling/runner.py builds it; common/cli/workers.py decides what runs in it: everything but Python.
"""
