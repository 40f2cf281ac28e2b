// row_pieces.cuh - rows of floats, four at a time.
//
//   four_at(p)                       the four floats at p, a multiple of 16 bytes: one access
//   read_four<VECTOR>(p, left)       the same as far as the row goes: zeros from p[left] on
//   store_four<VECTOR>(p, x, left)   p[0 .. 4) = x as far as the row goes
//   store_two<VECTOR>(p, x, y, left) the same for two
//
// left: how many floats the row still has from p on, 0 or less if it has ended. VECTOR: one access of 16 bytes (8 for
// two); p is a multiple of that and left one of 4 (2), so that a piece exists whole or not at all. Otherwise p may be
// anywhere, and the floats are accessed one by one.
#pragma once
#include <cuda_runtime.h>

__device__ __forceinline__ float4 four_at(const float* p) { return *reinterpret_cast<const float4*>(p); }

template <bool VECTOR>
__device__ __forceinline__ float4 read_four(const float* p, int left) {
    if constexpr (VECTOR) return left > 0 ? four_at(p) : make_float4(0, 0, 0, 0);
    return make_float4(left > 0 ? p[0] : 0, left > 1 ? p[1] : 0, left > 2 ? p[2] : 0, left > 3 ? p[3] : 0);
}

template <bool VECTOR>
__device__ __forceinline__ void store_four(float* p, float4 x, int left) {
    if constexpr (VECTOR) {
        if (left > 0) *reinterpret_cast<float4*>(p) = x;
    } else {
        if (left > 0) p[0] = x.x;
        if (left > 1) p[1] = x.y;
        if (left > 2) p[2] = x.z;
        if (left > 3) p[3] = x.w;
    }
}

template <bool VECTOR>
__device__ __forceinline__ void store_two(float* p, float x, float y, int left) {
    if constexpr (VECTOR) {
        if (left > 0) *reinterpret_cast<float2*>(p) = make_float2(x, y);
    } else {
        if (left > 0) p[0] = x;
        if (left > 1) p[1] = y;
    }
}
