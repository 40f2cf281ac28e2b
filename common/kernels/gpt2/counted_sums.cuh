// counted_sums.cuh - sums over blocks, in global memory, that say themselves how many addends they have.
//
//   Sum                              64 bits: a number in units of 2^-32 below, how many were added above
//   add(word, value)                 one more addend; who calls does not wait
//   peek(words)                      asks for two sums that lie side by side, at a multiple of 16 bytes
//   since(now, before, addends)      what was added between two looks, if it was so many addends
//   is_whole(difference)             whether it was; else the difference means nothing
//   to_fixed(x), to_float(fixed)     numbers in units of 2^-32 and back
//
// All in namespace counted.
//
//       63      56 55                                            0
//      | addends  |  sum of round(value * 2^32), modulo 2^56      |
//
// A sum over blocks by atomic additions and a counter takes one trip to the L2 cache for the additions, one until they are
// known to have been done (a fence), one for the counter, one to see it, one for the sums. Here an addition brings its 1
// for the count with it: whoever finds all addends has the sum in its hands. One trip there, one back, no fence.
//
// Integers: the sum is the same in whatever order addends come. Words are never set to zero. Only differences between two
// looks are used, so that nothing overflows as long as what is added in between stays below 2^23 in magnitude and has
// at most 255 addends.
//
// What that takes: nobody adds the next addends before everybody has read the last ones. That is for the kernel to see to,
// as with tagged words (common/cuda/tagged_words.cuh). Nothing but the words themselves is ordered.
#pragma once
#include <cuda_runtime.h>

namespace counted {

using Sum = unsigned long long;
struct Pair {
    Sum x, y;
};

constexpr int COUNT_SHIFT = 56;

__device__ __forceinline__ long long to_fixed(float x) { return __float2ll_rn(x * 4294967296.0f); }
__device__ __forceinline__ float to_float(long long fixed) { return __ll2float_rn(fixed) * (1.0f / 4294967296.0f); }

// nvcc makes one instruction without an answer of it, of the device's scope, relaxed.
__device__ __forceinline__ void add(Sum* word, float value) {
    atomicAdd(word, static_cast<Sum>(to_fixed(value)) + (Sum{1} << COUNT_SHIFT));
}

#ifdef CUDA_SIMULATOR
__device__ __forceinline__ Pair peek(const Sum* words) {
    auto* const both = const_cast<Sum*>(words);  // atomics give other blocks their turn
    return {atomicAdd(both, Sum{0}), atomicAdd(both + 1, Sum{0})};
}
#else
__device__ __forceinline__ Pair peek(const Sum* words) {
    Pair pair;
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(pair.x), "=l"(pair.y)
                 : "l"(__cvta_generic_to_global(words))
                 : "memory");
    return pair;
}
#endif

__device__ __forceinline__ long long since(Sum now, Sum before, unsigned addends) {
    return static_cast<long long>(now - before - (Sum{addends} << COUNT_SHIFT));
}
// Of a difference with too few addends the upper 8 bits are those of a negative number of them.
__device__ __forceinline__ bool is_whole(long long difference) {
    return static_cast<Sum>(difference + (1ll << (COUNT_SHIFT - 1))) >> COUNT_SHIFT == 0;
}

}  // namespace counted
