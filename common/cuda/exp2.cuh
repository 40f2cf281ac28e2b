// exp2.cuh - 2^x and log2(x) as one hardware instruction each.
//
//   exp2_approx(x)   2^x with a relative error of at most 2^-22; results below 2^-126 become 0
//   log2_approx(x)   log2(x)
//
// exp2f(x) is this instruction plus three that handle results below 2^-126. In a softmax such a result is added to
// a 1, where it changes nothing. 2^-infinity is 0, 2^infinity infinity, 2^NaN NaN. logarithms.h converts from base e.
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

// x positive; -infinity for 0 and for anything below 2^-126.
__device__ __forceinline__ float log2_approx(float x) {
#ifdef CUDA_SIMULATOR
    return log2f(x);
#else
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}
