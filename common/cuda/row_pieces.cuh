// row_pieces.cuh - rows of floats, accessed four at a time.
//
//   four_at(p)                       the four floats at p, 16-byte aligned, in one access
//   read_four<VECTOR>(p, left)       the same, up to the end of the row: zeros from p[left] on
//   store_four<VECTOR>(p, x, left)   p[0 .. 4) = x, up to the end of the row
//   store_two<VECTOR>(p, x, y, left) the same for two
//
// left: the number of floats left in the row from p on; 0 or less past its end. VECTOR: one 16-byte access (8 for two);
// p is aligned to that and left is a multiple of 4 (2), so that a piece is entirely inside or outside the row.
// Otherwise p may be anywhere, and floats are accessed one by one.
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
