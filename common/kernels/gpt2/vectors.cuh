// vectors.cuh - 16 bytes of any dtype as floats.
//
//   Vector<T>::SIZE                     how many elements 16 bytes hold
//   Vector<T>::unpack(values, bits)     16 bytes -> SIZE floats
//   Vector<T>::pack(values)             SIZE floats -> 16 bytes, rounded to nearest
//   to_float(x), from_float<T>(x)       one element
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
    return __float2half(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16(x);
}

template <typename T>
struct Vector {
    static constexpr int SIZE = 16 / static_cast<int>(sizeof(T));

    static __device__ __forceinline__ void unpack(float (&values)[SIZE], const uint4& bits) {
        const T* elements = reinterpret_cast<const T*>(&bits);
#pragma unroll
        for (int i = 0; i < SIZE; ++i) values[i] = to_float(elements[i]);
    }
    static __device__ __forceinline__ uint4 pack(const float (&values)[SIZE]) {
        uint4 bits;
        T* elements = reinterpret_cast<T*>(&bits);
#pragma unroll
        for (int i = 0; i < SIZE; ++i) elements[i] = from_float<T>(values[i]);
        return bits;
    }
};
