// not_implemented.h - NOT_IMPLEMENTED() marks a gap for the student to fill.
//
// The Python side scans the source and refuses to call an operator whose kernels still contain the marker (see
// common/compiling/gaps.py), so an unfilled gap is reported with its file and line instead of producing wrong numbers.
// The function below is the second line of defense, for callers that bypass that check.
#pragma once
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

// A function, so that the macro expands to the same text for every compiler.
[[noreturn]] __host__ __device__ inline void not_implemented(const char* file, int line) {
#if defined(CUDA_SIMULATOR)
    ::simulator::not_implemented(file, line);
#elif defined(__CUDA_ARCH__)
    __trap();
#else
    throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": not implemented");
#endif
}

#define NOT_IMPLEMENTED() ::not_implemented(__FILE__, __LINE__)
