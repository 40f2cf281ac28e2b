// attention_policies.cuh - what the options of attention do, shared by all kernel families.
//
//   Band           the keys that a row sees and the rows that see a key: causal in both alignments, windows
//   rows_of        the rows of a packed sequence
//   tanh_of        softcap: tanh to a few ulps; tanh_approx: one instruction, 11 bits
//   cap_scores     applies the softcap to a warp's scores
//   keep_weight    dropout: whether a weight is kept
//   keep_tile      which weights of a warp's fragments are kept; keep_two_tiles: the same at half the cost
//   end_of_row     a row's final factor and its lse; a sink is one more weight in the row sum
//
// Kernels apply them in this order: scores = scale * q.k, softcap, bias or mask, Band (hidden keys get -infinity);
// weights = 2^(score - m), all of which enter the row sum l, even dropped ones; O = P V; end_of_row.
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "common/cuda/exp2.cuh"
#include "common/cuda/flash_softmax.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/mma.cuh"
#include "common/cuda/philox.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash/dropout.h"

// --------------------------------------------------------------------------------------- which keys a row sees

// Row i of a sequence sees keys i + lowest ... i + highest, as far as they exist. Both bounds increase with the row, so
// a tile's first row has the first key and its last row the last; the same holds for the rows that see a key.
//   Int: int64_t, or int where rows, keys and the window are below 2^28
template <typename Int>
struct Band {
    int rows, keys;
    Int lowest, highest;

    // window_left, window_right: -1 for unbounded; lower_right: the last row is aligned with the last key
    __device__ __forceinline__ void set(int rows_, int keys_, bool causal, bool lower_right, Int window_left,
                                        Int window_right) {
        rows = rows_, keys = keys_;
        const Int shift = lower_right ? Int{keys} - rows : 0;
        lowest = window_left < 0 ? -Int{rows} : shift - window_left;
        highest = window_right < 0 ? Int{keys} : shift + window_right;
        if (causal) highest = min(highest, shift);
    }

    // A row sees keys first_key_of(row) ... end_of_keys(row) - 1; none if there is no such row.
    __device__ __forceinline__ int first_key_of(int row) const { return within(row + lowest, keys); }
    __device__ __forceinline__ int end_of_keys(int row) const { return row < rows ? within(row + highest + 1, keys) : 0; }
    // Rows first_row_of(key) ... end_of_rows(key) - 1 see a key, if any.
    __device__ __forceinline__ int first_row_of(int key) const { return within(key - highest, rows); }
    __device__ __forceinline__ int end_of_rows(int key) const { return within(key - lowest + 1, rows); }

    static __device__ __forceinline__ int within(Int x, int most) {
        return static_cast<int>(max(min(x, Int{most}), Int{0}));
    }
};

// The rows (or keys) of a packed sequence, starting at `first`. Clamped to the tensor, whatever cu_seqlens holds.
//   length: of all sequences together
template <typename Int>
__device__ __forceinline__ int rows_of(const int* cu_seqlens, int number, Int length, Int& first) {
    first = min(max(Int{cu_seqlens[number]}, Int{0}), length);
    const Int end = min(Int{cu_seqlens[number + 1]}, length);
    return static_cast<int>(max(end - first, Int{0}));
}

// -------------------------------------------------------------------------------------------------- softcap

// With a relative error of a few ulps: a polynomial in x^2 up to 0.55, exp2 beyond that.
__device__ __forceinline__ float tanh_of(float x) {
    const float size = fabsf(x), square = x * x;
    const float large = 1.0f - __fdividef(2.0f, exp2_approx(size * (2 * LOG2_E)) + 1.0f);
    float p = fmaf(-0.00616429f, square, 0.020989f);
    p = fmaf(p, square, -0.05383063f);
    p = fmaf(p, square, 0.13332357f);
    p = fmaf(p, square, -0.3333331f);
    const float small = fmaf(p * square, x, x);
    return size < 0.55f ? small : copysignf(large, x);
}

// With a relative error of at most 2^-11: the hardware instruction, for weights that are rounded to 16 bits.
__device__ __forceinline__ float tanh_approx(float x) {
#ifdef CUDA_SIMULATOR
    return tanhf(x);
#else
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// q.k of a warp's part of a tile -> tanh(scale * q.k / softcap). Forward and backward pass both call it, so that they
// have the same weights.   inside: scale / softcap
template <int N8>
__device__ __forceinline__ void cap_scores(float (&s)[N8][4], float inside) {
    UNROLL
    for (int i = 0; i < 4 * N8; ++i) s[i / 4][i % 4] = tanh_approx(s[i / 4][i % 4] * inside);
}

// -------------------------------------------------------------------------------------------------- dropout
//
// A weight is kept if a random byte is at least the threshold (dropout.h). One call of philox() yields the 16 bytes for
// rows 2 a, 2 a + 1, 2 a + 8, 2 a + 9 and keys 2 b, 2 b + 1, 2 b + 8, 2 b + 9 of a 16 x 16 tile of weights: word
// 2 (row % 2) + key % 2, byte 2 (row / 8 % 2) + key / 8 % 2. So whether a lane's fragment has rows (forward: S) or keys
// (backward: S^T) in its rows, its 8 weights are in two of the words, and the other 8 belong to the lane 4 further on.

// 0 without dropout. Kernels read it once: the seed is in memory.
template <bool DROPOUT = true>
__device__ __forceinline__ int64_t seed_of(const Dropout& dropout) {
    return DROPOUT && dropout.seed != nullptr ? *dropout.seed : 0;
}

// head: batch * heads + head; row_tile, key_tile: indices of tiles of 16 rows or keys in the sequence
__device__ __forceinline__ uint4 dropout_words(int64_t seed, int64_t head, int row_tile, int key_tile, int a, int b) {
    return philox<7>(make_uint4(4 * static_cast<unsigned>(key_tile) + b, 4 * static_cast<unsigned>(row_tile) + a,
                                static_cast<unsigned>(head), static_cast<unsigned>(static_cast<uint64_t>(head) >> 32)),
                     make_uint2(static_cast<unsigned>(seed), static_cast<unsigned>(static_cast<uint64_t>(seed) >> 32)));
}

// Bit 7 of each byte: whether the byte is at least the threshold's.
__device__ __forceinline__ unsigned at_least(unsigned bytes, unsigned threshold) {
    const unsigned low = (bytes | 0x80808080u) - (threshold & 0x7f7f7f7fu);  // bit 7: low 7 bits >= threshold's
    return (bytes & low) | ((bytes | low) & ~threshold);
}

// For a single weight.
__device__ __forceinline__ bool keep_weight(const Dropout& dropout, int64_t seed, int64_t head, int row, int key) {
    const uint4 words = dropout_words(seed, head, row / 16, key / 16, row % 8 / 2, key % 8 / 2);
    const unsigned by_row[2] = {key % 2 ? words.y : words.x, key % 2 ? words.w : words.z};
    const int byte = 2 * (row / 8 % 2) + key / 8 % 2;
    return at_least(by_row[row % 2], dropout.threshold) >> (8 * byte + 7) & 1;
}

// Which of its 8 weights of a 16 x 16 tile a lane keeps: fragments of mma.cuh d[2][4], d[n][i] in columns
// 8 n + 2 (lane % 4) + i % 2 and row lane / 4 + 8 (i / 2). TURNED: the fragment's rows are keys, as in S^T.
template <bool TURNED>
struct Kept {
    unsigned flags[2];  // indexed by i % 2; bit 7 of the byte for n and i / 2

    __device__ __forceinline__ bool operator()(int n, int i) const {
        return flags[i % 2] >> (8 * byte_of(n, i / 2) + 7) & 1;
    }
    // For two packed 16-bit weights, of columns c and c + 1: all ones where kept. Register 2 n + half of an A operand.
    __device__ __forceinline__ unsigned mask(int n, int half) const {
        const unsigned byte = 8 | byte_of(n, half);  // 8: replicate bit 7 of the byte eight times
        unsigned mask;
        asm("prmt.b32 %0, %1, %2, %3;"
            : "=r"(mask)
            : "r"(flags[0]), "r"(flags[1]), "r"(byte | byte << 4 | (byte + 4) << 8 | (byte + 4) << 12));
        return mask;
    }

  private:
    static __host__ __device__ constexpr int byte_of(int n, int half) {
        return TURNED ? 2 * (n % 2) + half : 2 * half + n % 2;
    }
};

// For one tile: half of the random bytes go unused.
template <bool TURNED = false>
__device__ __forceinline__ Kept<TURNED> keep_tile(const Dropout& dropout, int64_t seed, int64_t head, int row_tile,
                                                  int key_tile) {
    const int lane = threadIdx.x % 32, pair = lane / 8, odd = lane / 4 % 2, column = lane % 4;
    const uint4 w = TURNED ? dropout_words(seed, head, row_tile, key_tile, column, pair)
                           : dropout_words(seed, head, row_tile, key_tile, pair, column);
    const unsigned one = !odd ? w.x : TURNED ? w.y : w.z, other = odd ? w.w : TURNED ? w.z : w.y;
    return {{at_least(one, dropout.threshold), at_least(other, dropout.threshold)}};
}

// For this tile and the next one to the right (key_tile + 1, or TURNED: row_tile + 1): all bytes are used, since each
// lane of a pair draws for one of the tiles and they exchange halves.
template <bool TURNED = false>
__device__ __forceinline__ void keep_two_tiles(Kept<TURNED> (&kept)[2], const Dropout& dropout, int64_t seed,
                                               int64_t head, int row_tile, int key_tile) {
    const int lane = threadIdx.x % 32, pair = lane / 8, column = lane % 4;
    const bool odd = lane / 4 % 2;
    const uint4 w = TURNED ? dropout_words(seed, head, row_tile + odd, key_tile, column, pair)
                           : dropout_words(seed, head, row_tile, key_tile + odd, pair, column);
    const unsigned even_words[2] = {w.x, TURNED ? w.z : w.y}, odd_words[2] = {TURNED ? w.y : w.z, w.w};
    UNROLL
    for (int e = 0; e < 2; ++e) {
        const unsigned own = at_least(odd ? odd_words[e] : even_words[e], dropout.threshold);
        const unsigned others = at_least(odd ? even_words[e] : odd_words[e], dropout.threshold);
        const unsigned got = __shfl_xor_sync(FULL_WARP, others, 4);
        kept[0].flags[e] = odd ? got : own;
        kept[1].flags[e] = odd ? own : got;
    }
}

// -------------------------------------------------------------------------------------------------- row sums

// shift, sum: of the row, whose weights are 2^(score - shift). factor: dropout's, 1 without.
//   sink: pointer to the head's sink, a score that belongs to no key; nullptr: none
struct RowEnd {
    float factor, lse;
};
__device__ __forceinline__ RowEnd end_of_row(const float* sink, float factor, float shift, float sum) {
    if (sink != nullptr) {
        const float score = *sink * LOG2_E, larger = fmaxf(shift, score);
        const float ratio = exp2_approx(shift - larger);
        sum = sum * ratio + exp2_approx(score - larger);
        factor *= ratio;
        shift = larger;
    }
    return {factor * flash::final_factor(sum), flash::logsumexp_of(shift, sum)};
}
