// empty_rows.cuh - the softmax of a row that has seen no key, or only hidden ones: zeros instead of NaN.
//
//   shift_of(max)      what to subtract in the exponent: max, or 0 if that is -infinity, since -infinity - (-infinity)
//                      is NaN. All exponentials of the row are then 2^-infinity = 0
//   inverse_of(sum)    the final normalization: 1 / sum, or 0 if the sum is 0
#pragma once
#include <cuda_runtime.h>

#include <cmath>

__device__ __forceinline__ float shift_of(float max) { return max == -INFINITY ? 0.0f : max; }
__device__ __forceinline__ float inverse_of(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }
