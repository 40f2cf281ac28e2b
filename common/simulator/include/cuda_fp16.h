// cuda_fp16.h - __half and __half2; what both 16-bit types share is in simulator/float16.h.
#pragma once
#include <cuda_runtime.h>

#include "simulator/float16.h"

using __half = simulator::Float16<simulator::Fp16Format>;
using __half2 = simulator::Float16Pair<simulator::Fp16Format>;
using half = __half;
using half2 = __half2;
using __half_raw = unsigned short;

inline __half __float2half(float a) { return a; }
inline __half __float2half_rn(float a) { return a; }
inline __half __double2half(double a) { return a; }
inline __half __int2half_rn(int a) { return a; }
inline __half __uint2half_rn(unsigned a) { return a; }
inline float __half2float(__half a) { return a; }
inline int __half2int_rn(__half a) { return static_cast<int>(nearbyintf(a)); }
inline int __half2int_rz(__half a) { return static_cast<int>(static_cast<float>(a)); }
inline unsigned short __half_as_ushort(__half a) { return a.bits; }
inline short __half_as_short(__half a) { return static_cast<short>(a.bits); }
inline __half __ushort_as_half(unsigned short a) { return __half::from_bits(a); }
inline __half __short_as_half(short a) { return __half::from_bits(static_cast<unsigned short>(a)); }

inline __half2 make_half2(__half a, __half b) { return {a, b}; }
inline __half2 __half2half2(__half a) { return {a, a}; }
inline __half2 __float2half2_rn(float a) { return {a, a}; }
inline __half2 __floats2half2_rn(float a, float b) { return {a, b}; }
inline __half2 __float22half2_rn(float2 a) { return {a.x, a.y}; }
inline float2 __half22float2(__half2 a) { return {a.x, a.y}; }
inline __half2 __low2half2(__half2 a) { return {a.x, a.x}; }
inline __half2 __high2half2(__half2 a) { return {a.y, a.y}; }
