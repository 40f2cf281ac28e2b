// empty_rows.cuh - the softmax of a row that has seen no key, or none but hidden ones: zeros, and no NaN.
//
//   shift_of(max)      what exponents subtract: max, or 0 where that is -infinity, for -infinity - (-infinity) is NaN.
//                      All powers of the row are 2^-infinity = 0 then
//   inverse_of(sum)    what they are multiplied by in the end: 1 / sum, or 0 where the sum is 0
#pragma once
#include <cuda_runtime.h>

#include <cmath>

__device__ __forceinline__ float shift_of(float max) { return max == -INFINITY ? 0.0f : max; }
__device__ __forceinline__ float inverse_of(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }
