// cuda_fp16.h - __half and __half2; simulator/float16.h holds what both 16-bit types share.
#pragma once
#include <cuda_runtime.h>

#include "simulator/float16.h"

using __half = simulator::Float16<simulator::Fp16Format>;
using __half2 = simulator::Float16Pair<simulator::Fp16Format>;
using half = __half;
using half2 = __half2;
using __half_raw = simulator::Fp16Format::Raw;
using __half2_raw = simulator::Fp16Format::Raw2;

SIMULATOR_CONVERSIONS(half, __half)

#define CUDART_INF_FP16 __ushort_as_half((unsigned short)0x7C00U)
#define CUDART_NAN_FP16 __ushort_as_half((unsigned short)0x7FFFU)
#define CUDART_MIN_DENORM_FP16 __ushort_as_half((unsigned short)0x0001U)
#define CUDART_MAX_NORMAL_FP16 __ushort_as_half((unsigned short)0x7BFFU)
#define CUDART_NEG_ZERO_FP16 __ushort_as_half((unsigned short)0x8000U)
#define CUDART_ZERO_FP16 __ushort_as_half((unsigned short)0x0000U)
#define CUDART_ONE_FP16 __ushort_as_half((unsigned short)0x3C00U)
