// counted_sums.cuh - sums over blocks, in global memory, that say themselves how many addends they have.
//
//   Sum                              64 bits: a fixed-point number below, how many were added above
//   Scale, scale_for(addends)        in which units, and what is too large: counted_scale.h
//   to_fixed(scale, x), to_float(scale, fixed)     floats in these units and back
//   add(word, fixed)                 one more addend; who calls does not wait
//   peek(words)                      asks for two sums that lie side by side, at a multiple of 16 bytes
//   since(now, before, addends)      what was added between two looks, if it was so many addends
//   is_whole(difference)             whether it was; else the difference means nothing
//   is_number(scale, sum, addends)   whether none of them was too large or no number
//
// All in namespace counted.
//
//       63      56 55                                            0
//      | addends  |  sum of round(value / unit), modulo 2^56     |
//
// A sum over blocks by atomic additions and a counter takes one trip to the L2 cache for the additions, one until they are
// known to have been done (a fence), one for the counter, one to see it, one for the sums. Here an addition brings its 1
// for the count with it: whoever finds all addends has the sum in its hands. One trip there, one back, no fence.
//
// Integers: the sum is the same in whatever order addends come. Words are never set to zero in between. Only differences
// between two looks are used, so what came before does not count.
//
// No sum may reach 2^55, or the count would be wrong and who waits for it would wait for ever. So an addend counts only
// below LARGEST. Instead of a larger one, or of one that is no number, a constant B is added, such that
//
//     A B < 2^55                      A addends at most
//     B > (2 A - 1) LARGEST / unit    one B lifts a sum above A LARGEST, whatever the others are: is_number() sees it
//
// That leaves units of 2^-29 for up to 15 addends, of 2^-26 for 32: rounding to them is rounding a number of 0.1 or of 1
// to a float, and what is larger comes out more exact than that.
//
// What that takes: nobody adds the next addends before everybody has read the last ones. That is for the kernel to see to,
// as with tagged words (common/cuda/tagged_words.cuh). Nothing but the words themselves is ordered.
#pragma once
#include <cuda_runtime.h>

#include "common/kernels/gpt2/counted_scale.h"

namespace counted {

using Sum = unsigned long long;
struct Pair {
    Sum x, y;
};

__device__ __forceinline__ long long to_fixed(Scale scale, float x) {
    return fabsf(x) < LARGEST ? __float2ll_rn(x * scale.up) : scale.wrong;
}
__device__ __forceinline__ float to_float(Scale scale, long long fixed) {
    return __ll2float_rn(fixed) * scale.down;
}

// nvcc makes one instruction without an answer of it, of the device's scope, relaxed.
__device__ __forceinline__ void add(Sum* word, long long fixed) {
    atomicAdd(word, static_cast<Sum>(fixed) + (Sum{1} << COUNT_SHIFT));
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
__device__ __forceinline__ bool is_number(Scale scale, long long sum, unsigned addends) {
    return (sum < 0 ? -sum : sum) <= static_cast<long long>(addends) * scale.most;
}

}  // namespace counted
