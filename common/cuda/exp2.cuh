// exp2.cuh - 2^x and log2(x) as the one instruction that a GPU has for each.
//
//   exp2_approx(x)   2^x with a relative error of at most 2^-22; results below 2^-126 become 0
//   log2_approx(x)   log2(x)
//
// exp2f(x) is this instruction and three more, which see to results below 2^-126. In a softmax such a number is
// added to a 1, where it changes nothing. 2^-infinity is 0, 2^infinity infinity, 2^NaN NaN. logarithms.h makes powers of
// two of powers of e.
#pragma once
#include <cuda_runtime.h>

#include <cmath>

#include "common/cuda/logarithms.h"

__device__ __forceinline__ float exp2_approx(float x) {
#ifdef CUDA_SIMULATOR
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// Of a positive number; -infinity of 0 and of what is smaller than 2^-126.
__device__ __forceinline__ float log2_approx(float x) {
#ifdef CUDA_SIMULATOR
    return log2f(x);
#else
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}
