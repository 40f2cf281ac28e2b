// not_implemented.h - NOT_IMPLEMENTED() marks a gap that the student has not filled yet.
//
// The Python side reads the source and refuses to call an operator whose kernels still contain the marker (see
// common/compiling/gaps.py), so that an unfilled gap is reported with its file and line and never as wrong numbers.
// What is here is the second line of defense, for code that calls the kernels some other way.
#pragma once
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#if defined(CUDA_SIMULATOR)
#define NOT_IMPLEMENTED() ::simulator::not_implemented(__FILE__, __LINE__)
#elif defined(__CUDA_ARCH__)
#define NOT_IMPLEMENTED() __trap()
#else
#define NOT_IMPLEMENTED() \
    throw std::runtime_error(std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": not implemented")
#endif
