// gelu.cuh - GPT-2's activation, x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): Hendrycks and Gimpel 2016,
// arXiv:1606.08415.
#pragma once
#include <cuda_runtime.h>

__device__ __forceinline__ float gelu(float x) {
    constexpr float SQRT_2_OVER_PI = 0.7978845608028654f;
    return 0.5f * x * (1.0f + tanhf(SQRT_2_OVER_PI * (x + 0.044715f * x * x * x)));
}

// The same as x / (1 + exp(-2 ...)), using the special function unit: accurate to a few ulps of float32.
__device__ __forceinline__ float fast_gelu(float x) {
    constexpr float MINUS_2_SQRT_2_OVER_PI = -1.5957691216057308f;
    return __fdividef(x, 1.0f + __expf(MINUS_2_SQRT_2_OVER_PI * (x + 0.044715f * x * x * x)));
}
