// check.h - what every host launcher needs: errors that name their line, the device's limits, and rounding up.
//
//   CUDA_CHECK(call)     throws std::runtime_error with file, line and CUDA's own message when `call` fails
//   CUDA_CHECK_LAUNCH()  the same for the kernel launched just before
//   device_attribute(a)  a limit or property of the current device
//   ceil_div(a, b)       how many pieces of size b cover a
#pragma once
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

inline void cuda_check(cudaError_t error, const char* call, const char* file, int line) {
    if (error == cudaSuccess) return;
    throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + call + ": " +
                             cudaGetErrorString(error));
}

#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)
#define CUDA_CHECK_LAUNCH() cuda_check(cudaGetLastError(), "kernel launch", __FILE__, __LINE__)

// cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerBlockOptin, ...
inline int device_attribute(cudaDeviceAttr attribute) {
    int device = 0, value = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
    return value;
}

template <typename A, typename B>
__host__ __device__ constexpr auto ceil_div(A a, B b) {
    return (a + b - 1) / b;
}
