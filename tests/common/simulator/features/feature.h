// feature.h - what the small programs here share: memory that a kernel fills, and expectations.
//
//     Buffer<int> out(64);              64 zeros
//     kernel<<<1, 64>>>(out.device());  a copy on the device
//     out.fetch();                      back
//     EXPECT(out[3] == 9);              says file and line if not
//     return done();                    0, or 1 if an expectation failed
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <vector>

static int failures = 0;

#define EXPECT(...)                                                              \
    do {                                                                         \
        if (!(__VA_ARGS__)) {                                                    \
            if (++failures <= 10) printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #__VA_ARGS__); \
        }                                                                        \
    } while (0)

static inline int done() {
    const cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) printf("%s\n", cudaGetErrorString(error));
    return failures || error != cudaSuccess;
}

template <typename T>
struct Buffer {
    std::vector<T> host;
    T* memory = nullptr;

    explicit Buffer(int n, T value = T{}) : host(n, value) {}
    Buffer(const Buffer&) = delete;
    ~Buffer() { cudaFree(memory); }
    T& operator[](int i) { return host[i]; }
    T* device() {
        if (!memory) cudaMalloc(&memory, host.size() * sizeof(T));
        cudaMemcpy(memory, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice);
        return memory;
    }
    void fetch() {
        const cudaError_t error = cudaMemcpy(host.data(), memory, host.size() * sizeof(T), cudaMemcpyDeviceToHost);
        if (error != cudaSuccess) printf("%s\n", cudaGetErrorString(error)), ++failures;
    }
};
