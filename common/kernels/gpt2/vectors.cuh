// vectors.cuh - 16 bytes of any dtype as floats.
//
//   Vector<T>::SIZE                     how many elements 16 bytes hold
//   Vector<T>::unpack(values, bits)     16 bytes -> SIZE floats
//   Vector<T>::pack(values)             SIZE floats -> 16 bytes, rounded to nearest
#pragma once
#include <cuda_runtime.h>

#include "common/cuda/float_conversion.cuh"
#include "common/cuda/unroll.cuh"

template <typename T>
struct Vector {
    static constexpr int SIZE = 16 / static_cast<int>(sizeof(T));

    static __device__ __forceinline__ void unpack(float (&values)[SIZE], const uint4& bits) {
        const T* elements = reinterpret_cast<const T*>(&bits);
        UNROLL
        for (int i = 0; i < SIZE; ++i) values[i] = to_float(elements[i]);
    }
    static __device__ __forceinline__ uint4 pack(const float (&values)[SIZE]) {
        uint4 bits;
        T* elements = reinterpret_cast<T*>(&bits);
        UNROLL
        for (int i = 0; i < SIZE; ++i) elements[i] = from_float<T>(values[i]);
        return bits;
    }
};
