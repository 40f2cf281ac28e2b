// case.h - a case: a host function that owns all its device memory, so that it runs alone, in the simulator as well as
// under compute-sanitizer on a GPU.
//
//     CASE(shift_with_barrier) {
//         Array<float> in = ramp(64), out(64);
//         shift<true><<<1, 64>>>(in.data, out.data);
//         out.download(result);
//     }
//     RUN(shift_with_barrier, 64, 64, { shift<true><<<1, 64>>>(in.data, out.data); })     the same, shorter
//
// `result` is host memory for RESULT_SIZE floats; what it holds in the end is compared with cases.py.
//   Array<T> x(n)       n elements of fresh device memory, freed with x, also when a kernel fails
//   x.upload(values)    host to device: a std::vector<T>
//   x.download(to)      device to host, as floats; throws what CUDA says of the kernels before
//   ramp(n)             0, 1, 2, ..., n - 1 in device memory
//   integers(n)         the same as int
//   zeros<T>(n)         n zeros
#pragma once
#include <vector>

#include "tests/common/simulator/kernels/test.h"

constexpr int RESULT_SIZE = 256;

template <typename T>
struct Array {
    T* data = nullptr;
    int size;

    explicit Array(int n) : size(n) { require(cudaMalloc(&data, n * sizeof(T))); }
    explicit Array(const std::vector<T>& values) : Array(static_cast<int>(values.size())) { upload(values); }
    Array(const Array&) = delete;
    ~Array() { cudaFree(data); }

    void upload(const std::vector<T>& values) {
        require(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    void download(float* to) const {
        require(cudaGetLastError());
        require(cudaDeviceSynchronize());
        std::vector<T> values(size);
        require(cudaMemcpy(values.data(), data, size * sizeof(T), cudaMemcpyDeviceToHost));
        for (int i = 0; i < size && i < RESULT_SIZE; ++i) to[i] = static_cast<float>(values[i]);
    }
};

template <typename T = float>
std::vector<T> counting(int n) {
    std::vector<T> values(n);
    for (int i = 0; i < n; ++i) values[i] = static_cast<T>(i);
    return values;
}
inline Array<float> ramp(int n) { return Array<float>(counting(n)); }
inline Array<int> integers(int n) { return Array<int>(counting<int>(n)); }
template <typename T = float>
Array<T> zeros(int n) {
    return Array<T>(std::vector<T>(n));
}

#define CASE(name)                                         \
    static void name##_case(float* result);                \
    EXPORT(name, (float* result), { name##_case(result); }) \
    static void name##_case([[maybe_unused]] float* result)

// A case that launches one kernel, from ramp(ins) to an output of `outs` floats, or one with the values `outs`.
#define RUN(name, ins, outs, ...)                      \
    CASE(name) {                                       \
        Array<float> in = ramp(ins), out(outs);        \
        __VA_ARGS__                                    \
        out.download(result);                          \
    }
