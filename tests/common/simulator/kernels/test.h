// test.h - how a .cu file here offers a host function to the tests: void arguments by pointer, errors as text.
//
//     EXPORT(name, (float* out, int n), { kernel<<<1, n>>>(out); })
#pragma once
#include <cuda_runtime.h>

#include <exception>
#include <stdexcept>
#include <string>

inline void require(cudaError_t error) {
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

#define EXPORT(name, parameters, ...)                                             \
    extern "C" __attribute__((visibility("default"))) const char* name parameters { \
        static std::string message;                                               \
        try {                                                                     \
            __VA_ARGS__                                                           \
            require(cudaDeviceSynchronize());                                     \
            return nullptr;                                                       \
        } catch (const std::exception& e) {                                       \
            message = e.what();                                                   \
            return message.c_str();                                               \
        }                                                                         \
    }
