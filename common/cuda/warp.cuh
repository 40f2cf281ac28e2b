// warp.cuh - reductions over the 32 lanes of a warp. All lanes call; all get the result.
//
//   warp_max(v)   the largest v
//   warp_sum(v)   the sum of all v
//   quad_max(v)   the largest v of the four lanes 4 i ... 4 i + 3, which hold a row of a fragment (mma.cuh)
//   quad_sum(v)   their sum
//
// Butterfly: at step `distance` each lane combines its value with that of the lane whose number differs in one bit, so
// after log2(32) = 5 steps every lane holds the result, with exactly the same bits. A quad needs two steps.
#pragma once
#include <cuda_runtime.h>

#include "common/cuda/unroll.cuh"

constexpr unsigned FULL_WARP = 0xffffffffu;

__device__ __forceinline__ float warp_max(float v) {
    UNROLL
    for (int distance = 16; distance > 0; distance /= 2) v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, distance));
    return v;
}

__device__ __forceinline__ float warp_sum(float v) {
    UNROLL
    for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(FULL_WARP, v, distance);
    return v;
}

__device__ __forceinline__ float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, 1));
    return fmaxf(v, __shfl_xor_sync(FULL_WARP, v, 2));
}

__device__ __forceinline__ float quad_sum(float v) {
    v += __shfl_xor_sync(FULL_WARP, v, 1);
    return v + __shfl_xor_sync(FULL_WARP, v, 2);
}
