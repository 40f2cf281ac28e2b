// check.h - for host launchers: error checks that name their source line, device and grid limits, rounding up.
//
//   CUDA_CHECK(call)            throws std::runtime_error with file, line and CUDA's message if `call` fails
//   CUDA_CHECK_LAUNCH()         the same for the preceding kernel launch
//   device_attribute(a)         a limit or property of the current device
//   grid_blocks(n, "query")     n as the x dimension of a grid; throws if n is too large
//   MAX_GRID_YZ                 the largest grid size along y and z
//   ceil_div(a, b)              a / b, rounded up
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
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

constexpr int64_t MAX_GRID_X = 0x7fffffff;  // 2^31 - 1
constexpr int MAX_GRID_YZ = 65535;

// what: the tensor or operator that needs the blocks, which starts the message; split: what the caller should split.
inline unsigned grid_blocks(int64_t blocks, const char* what, const char* split = "batch") {
    if (blocks > MAX_GRID_X)
        throw std::invalid_argument(std::string(what) + " needs " + std::to_string(blocks) +
                                    " blocks; a grid has at most 2^31 - 1: split the " + split);
    return static_cast<unsigned>(blocks);
}

template <typename A, typename B>
__host__ __device__ constexpr auto ceil_div(A a, B b) {
    return (a + b - 1) / b;
}
