// not_implemented.h - NOT_IMPLEMENTED() marks a gap that the student has not filled yet.
//
// The Python side reads the source and refuses to call an operator whose kernels still contain the marker (see
// common/compiling/gaps.py), so that an unfilled gap is reported with its file and line and never as wrong numbers.
// What is here is the second line of defense, for code that calls the kernels some other way.
#pragma once
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

// A function, so that a file is the same text for every compiler when its macros are expanded.
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
