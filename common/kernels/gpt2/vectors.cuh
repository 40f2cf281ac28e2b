// vectors.cuh - 16 bytes of any dtype as floats.
//
//   Vector<T>::SIZE                     how many elements 16 bytes hold
//   Vector<T>::unpack(values, bits)     16 bytes -> SIZE floats
//   Vector<T>::pack(values)             SIZE floats -> 16 bytes, rounded to nearest
//   load, store                         UNIT elements: SIZE, or 1 for widths and pointers that are no multiples of 16
//                                       bytes
//   vectors_fit<T>(width, pointers)     whether UNIT may be SIZE: every row of every tensor is 16-byte aligned
#pragma once
#include <cuda_runtime.h>

#include <initializer_list>

#include "common/cuda/alignment.h"
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

template <typename T, int UNIT>
__device__ __forceinline__ void load(float (&values)[UNIT], const T* from) {
    if constexpr (UNIT == 1)
        values[0] = to_float(*from);
    else
        Vector<T>::unpack(values, *reinterpret_cast<const uint4*>(from));
}
template <typename T, int UNIT>
__device__ __forceinline__ void store(T* to, const float (&values)[UNIT]) {
    if constexpr (UNIT == 1)
        *to = from_float<T>(values[0]);
    else
        *reinterpret_cast<uint4*>(to) = Vector<T>::pack(values);
}

template <typename T>
bool vectors_fit(int width, std::initializer_list<const void*> pointers) {
    return width % Vector<T>::SIZE == 0 && all_aligned(pointers);
}
