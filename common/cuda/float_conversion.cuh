// float_conversion.cuh - float, __half and __nv_bfloat16 for code templated on the type.
//
//   to_float(x)                   one element as float
//   from_float<T>(x)              a float as T, rounded to nearest
//   for_float_type(type, f)       host: calls f.operator()<T>() with the C++ type of a FloatType
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "common/cuda/float_type.h"

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T from_float(float x) {
    if constexpr (std::is_same_v<T, __half>)
        return __float2half(x);
    else if constexpr (std::is_same_v<T, __nv_bfloat16>)
        return __float2bfloat16(x);
    else
        return x;
}

template <typename F>
void for_float_type(FloatType type, F f) {
    if (type == FloatType::FLOAT32) return f.template operator()<float>();
    if (type == FloatType::FLOAT16) return f.template operator()<__half>();
    f.template operator()<__nv_bfloat16>();
}
