// tagged_words.cuh - numbers that blocks hand to each other through global memory, each with a tag beside it.
//
//   Word                            4 bytes of payload and 4 of tag, 8 bytes of global memory
//   put(word, payload, tag)         writes one
//   put_pair(words, a, b, tag)      two that lie side by side, at a multiple of 16 bytes
//   peek(words)                     asks for such a pair; what comes is an answer or not yet
//   settle(pair, words, tag)        waits until both have this tag: their payload
//   settle_all(pairs, words, tag)   the same of N pairs. Those that are missing are asked for again all at once, one
//                                   trip for all; waiting for one after the other takes a trip for each
//   get_all(pairs, words, tag)      asks for N pairs and waits for them
//
// Those that wait take a function as their last argument, which they call whenever something is still missing.
//
// All in namespace tagged.
//
// A barrier between blocks takes four trips to the L2 cache: the data is written, then the counter behind it, the
// counter is read, then the data. Here data and flag are one word of 64 bits, which is written and read in one piece.
// Whoever finds the tag it waits for has the payload in its hands: one trip there and one back, and no fence.
//
//     writer       payload | tag 7  ------>  L2  <------  payload | tag 6     not yet
//                                                <------  payload | tag 7     here
//
// What that takes: nobody writes a tag twice (they count up), memory begins without tags that are still to come, and a
// word is not written again before everybody has read it. That is for the kernel to see to: it follows, without a
// barrier, where every writer of a word has waited for something that each reader wrote after reading.
//
// Nothing but the words themselves is ordered: other memory needs fences and a word behind them.
//
// In the simulator the words are read and written by atomic operations, which give other blocks their turn.
#pragma once
#include <cuda_runtime.h>

#include "common/cuda/unroll.cuh"

namespace tagged {

struct alignas(8) Word {
    unsigned payload, tag;
};

// Two words: payload and tag, payload and tag.
using Pair = uint4;

#ifdef CUDA_SIMULATOR

__device__ __forceinline__ void put(Word* word, unsigned payload, unsigned tag) {
    const unsigned long long both = static_cast<unsigned long long>(tag) << 32 | payload;
    atomicExch(reinterpret_cast<unsigned long long*>(word), both);
}
__device__ __forceinline__ void put_pair(Word* words, unsigned a, unsigned b, unsigned tag) {
    put(words, a, tag);
    put(words + 1, b, tag);
}
__device__ __forceinline__ Pair peek(const Word* words) {
    auto* const both = const_cast<unsigned long long*>(reinterpret_cast<const unsigned long long*>(words));
    const unsigned long long first = atomicAdd(both, 0ull), second = atomicAdd(both + 1, 0ull);
    return make_uint4(static_cast<unsigned>(first), static_cast<unsigned>(first >> 32), static_cast<unsigned>(second),
                      static_cast<unsigned>(second >> 32));
}

#else

__device__ __forceinline__ void put(Word* word, unsigned payload, unsigned tag) {
    const unsigned long long both = static_cast<unsigned long long>(tag) << 32 | payload;
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(__cvta_generic_to_global(word)), "l"(both) : "memory");
}
__device__ __forceinline__ void put_pair(Word* words, unsigned a, unsigned b, unsigned tag) {
    const unsigned long long high = static_cast<unsigned long long>(tag) << 32;
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(words)), "l"(high | a),
                 "l"(high | b)
                 : "memory");
}
__device__ __forceinline__ Pair peek(const Word* words) {
    unsigned long long first, second;
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(first), "=l"(second)
                 : "l"(__cvta_generic_to_global(words))
                 : "memory");
    return make_uint4(static_cast<unsigned>(first), static_cast<unsigned>(first >> 32), static_cast<unsigned>(second),
                      static_cast<unsigned>(second >> 32));
}

#endif

__device__ __forceinline__ bool has_tag(const Pair& pair, unsigned tag) { return pair.y == tag && pair.w == tag; }

struct Nothing {
    __device__ __forceinline__ void operator()() const {}
};

template <class Meanwhile = Nothing>
__device__ __forceinline__ uint2 settle(Pair pair, const Word* words, unsigned tag, Meanwhile meanwhile = {}) {
    while (!has_tag(pair, tag)) {
        meanwhile();
        pair = peek(words);
    }
    return make_uint2(pair.x, pair.z);
}

// words(i): where pair i lies, nullptr: there is none.
template <int N, class Words, class Meanwhile = Nothing>
__device__ __forceinline__ void settle_all(Pair (&pairs)[N], Words words, unsigned tag, Meanwhile meanwhile = {}) {
    bool missing = true;
    while (missing) {
        missing = false;
        UNROLL
        for (int i = 0; i < N; ++i) {
            const Word* const from = words(i);
            if (from == nullptr || has_tag(pairs[i], tag)) continue;
            pairs[i] = peek(from);
            missing = true;
        }
        if (missing) meanwhile();
    }
}

// Pairs that are asked for and waited for together: those in which words(i) is not nullptr.
template <int N, class Words, class Meanwhile = Nothing>
__device__ __forceinline__ void get_all(Pair (&pairs)[N], Words words, unsigned tag, Meanwhile meanwhile = {}) {
    UNROLL
    for (int i = 0; i < N; ++i) {
        const Word* const from = words(i);
        if (from != nullptr) pairs[i] = peek(from);
    }
    settle_all(pairs, words, tag, meanwhile);
}

}  // namespace tagged
