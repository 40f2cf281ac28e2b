// fixed_point.cuh - grid-wide sums by fixed-point atomics with an arrival count. Namespace fixed_point.
//
//   Scale, scale_for(addends)           the unit, and the limit for addends
//   to_fixed(scale, x), to_float        floats <-> units
//   add(sum, value)                     one addend; the caller doesn't wait
//   load_pair(sums)                     two adjacent sums, 16-byte aligned
//   added(now, before, addends)         what was added between two loads, once complete(...): by `addends` addends
//   is_number(scale, value, addends)    whether none of them was too large, infinite or NaN
//
//       63      56 55                                            0
//      | addends  |  sum of round(x / unit), modulo 2^56          |
//
// Atomics plus a counter take five trips to the L2 cache: the atomics, the fence, the counter, the poll, the load. Here
// each addend carries its own 1 for the count, so a poll that sees all addends has the sum: two trips and no fence.
// Integer addition is associative: any order gives the same bits. Words are never reset; only the difference between
// two loads is used. The caller ensures that no CTA adds to a word again before every reader has read it.
//
// No sum may reach 2^55, where it would corrupt the count. So an addend is valid only below LIMIT = 2^17; for a larger
// one or NaN, `wrong` is added instead, chosen such that A addends of `wrong` stay below 2^55, and a single one lifts
// the sum above A * LIMIT whatever the others are. That leaves units of 2^-29 for 15 addends and of 2^-26 for 32.
#pragma once
#include <cuda_runtime.h>

namespace fixed_point {

using Sum = unsigned long long;
constexpr int COUNT_SHIFT = 56;
constexpr float LIMIT = 131072.0f;

struct Scale {
    float up, down;          // 1 / unit, unit: powers of 2
    long long limit, wrong;  // LIMIT in units; what is added instead of a larger number
};
// addends: 1 .. 255, at most
__host__ __device__ constexpr Scale scale_for(int addends) {
    const long long wrong = ((1ll << (COUNT_SHIFT - 1)) - 1) / addends;
    Scale scale = {1.0f, 1.0f, 1ll << 17, wrong};
    while (scale.up < 4294967296.0f && 2 * scale.limit <= wrong / (2 * addends))
        scale.up *= 2, scale.down /= 2, scale.limit *= 2;
    return scale;
}

#if defined(__CUDACC__) || defined(CUDA_SIMULATOR)  // not in binding.cpp
__device__ __forceinline__ long long to_fixed(Scale scale, float x) {
    return fabsf(x) < LIMIT ? __float2ll_rn(x * scale.up) : scale.wrong;
}
__device__ __forceinline__ float to_float(Scale scale, long long fixed) { return __ll2float_rn(fixed) * scale.down; }

__device__ __forceinline__ void add(Sum* sum, long long fixed) {
    const Sum addend = static_cast<Sum>(fixed) + (Sum{1} << COUNT_SHIFT);
#ifdef CUDA_SIMULATOR
    atomicAdd(sum, addend);
#else  // nvcc compiles atomicAdd to atom, although the result is unused
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(sum)), "l"(addend)
                 : "memory");
#endif
}
__device__ __forceinline__ ulonglong2 load_pair(const Sum* sums) {
#ifdef CUDA_SIMULATOR  // atomics let other CTAs run
    return make_ulonglong2(atomicAdd(const_cast<Sum*>(sums), Sum{0}), atomicAdd(const_cast<Sum*>(sums) + 1, Sum{0}));
#else
    ulonglong2 pair;
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(pair.x), "=l"(pair.y)
                 : "l"(__cvta_generic_to_global(sums))
                 : "memory");
    return pair;
#endif
}

__device__ __forceinline__ long long added(Sum now, Sum before, unsigned addends) {
    return static_cast<long long>(now - before - (Sum{addends} << COUNT_SHIFT));
}
// While addends are missing, the upper 8 bits of the difference are negative.
__device__ __forceinline__ bool complete(long long difference) {
    return static_cast<Sum>(difference + (1ll << (COUNT_SHIFT - 1))) >> COUNT_SHIFT == 0;
}
__device__ __forceinline__ bool is_number(Scale scale, long long sum, unsigned addends) {
    return (sum < 0 ? -sum : sum) <= static_cast<long long>(addends) * scale.limit;
}
#endif

}  // namespace fixed_point
