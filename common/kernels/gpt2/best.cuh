// best.cuh - the largest logit and its index; of equal ones the first.
//
//   is_better(a, b)       whether a comes before b
//   best_of_lanes(best, lanes)    over `lanes` consecutive lanes, a power of two
#pragma once
#include "common/cuda/warp.cuh"
#include "common/kernels/gpt2/gpt2.h"

__device__ __forceinline__ bool is_better(const Best& a, const Best& b) {
    return a.value > b.value || (a.value == b.value && a.token < b.token);
}

__device__ __forceinline__ Best best_of_lanes(Best best, int lanes = 32) {
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
        const Best other = {__shfl_xor_sync(FULL_WARP, best.value, distance),
                            __shfl_xor_sync(FULL_WARP, best.token, distance)};
        if (is_better(other, best)) best = other;
    }
    return best;
}
