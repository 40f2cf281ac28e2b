// cuda_bf16.h - __nv_bfloat16 and __nv_bfloat162; what both 16-bit types share is in simulator/float16.h.
#pragma once
#include <cuda_runtime.h>

#include "simulator/float16.h"

using __nv_bfloat16 = simulator::Float16<simulator::Bf16Format>;
using __nv_bfloat162 = simulator::Float16Pair<simulator::Bf16Format>;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline __nv_bfloat16 __float2bfloat16(float a) { return a; }
inline __nv_bfloat16 __float2bfloat16_rn(float a) { return a; }
inline __nv_bfloat16 __double2bfloat16(double a) { return a; }
inline __nv_bfloat16 __int2bfloat16_rn(int a) { return a; }
inline float __bfloat162float(__nv_bfloat16 a) { return a; }
inline int __bfloat162int_rn(__nv_bfloat16 a) { return static_cast<int>(nearbyintf(a)); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 a) { return a.bits; }
inline short __bfloat16_as_short(__nv_bfloat16 a) { return static_cast<short>(a.bits); }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short a) { return __nv_bfloat16::from_bits(a); }
inline __nv_bfloat16 __short_as_bfloat16(short a) {
    return __nv_bfloat16::from_bits(static_cast<unsigned short>(a));
}

inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat162 __float2bfloat162_rn(float a) { return {a, a}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {a, b}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 a) { return {a.x, a.y}; }
inline float2 __bfloat1622float2(__nv_bfloat162 a) { return {a.x, a.y}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 a) { return a.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 a) { return a.y; }
inline __nv_bfloat162 __low2bfloat162(__nv_bfloat162 a) { return {a.x, a.x}; }
inline __nv_bfloat162 __high2bfloat162(__nv_bfloat162 a) { return {a.y, a.y}; }
