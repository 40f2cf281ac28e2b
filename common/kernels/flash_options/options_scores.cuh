// options_scores.cuh - what becomes of the products of queries and keys: the options, on a warp's accumulators.
//
//   tanh_of          the hyperbolic tangent, without a branch
//   apply_options    q.k -> scores: scale, softcap, window, mask tensor; -infinity for hidden keys; and the slopes of the cap
//   seed_of          what dropout_words() counts from
//   keep             which weights dropout keeps
//   lse_of           lse as the backward pass takes it
//   hidden_reached   whether what is hidden may have spoilt a block's sums
//   end_of_row       what a row's output is multiplied by in the end, and its lse
//
// d [1][N][4]: 16 rows from first_row on, 8 N keys from first_key on, as mma.cuh draws them; both counted from the
// beginning of the sequence.
#pragma once
#include <cuda_runtime.h>

#include <cmath>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/exp2.cuh"
#include "common/cuda/flash_softmax.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/mma.cuh"
#include "common/cuda/philox.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash_options/options.h"
#include "common/kernels/flash_options/options_sequences.cuh"

// With a relative error of a few units in the last place: by a polynomial in x^2 up to 0.55, beyond that by a power of 2.
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

// slopes: d score / d (scale * q.k), 1 without a cap. They go back to q and k; the mask is added behind the cap.
//   mask: of this head, see mask_from
template <int N>
__device__ __forceinline__ void apply_options(float (&d)[1][N][4], float (&slopes)[1][N][4], const OptionsArguments& a,
                                              const AttentionMask& mask, const Sequence& sequence, int first_row,
                                              int first_key) {
    const int lane = threadIdx.x % 32, row = first_row + lane / 4;
    const int begin[2] = {sequence.first_key_of(row), sequence.first_key_of(row + 8)};
    const int end[2] = {sequence.end_of_keys(row), sequence.end_of_keys(row + 8)};
    UNROLL
    for (int n = 0; n < 4 * N; ++n) {
        float &x = d[0][n / 4][n % 4], &slope = slopes[0][n / 4][n % 4];
        x *= a.scale, slope = 1;
        if (a.softcap > 0) {
            const float t = tanh_of(x / a.softcap);
            x = a.softcap * t, slope = 1 - t * t;
        }
        const int half = n % 4 / 2, key = first_key + n / 4 * 8 + mma::d_col(lane, n % 4);
        const bool seen = key >= begin[half] && key < end[half];
        const float bias = seen ? masked_score(0.0f, mask, 0, row + 8 * half, key) : -INFINITY;
        x = bias == -INFINITY ? -INFINITY : x + bias;  // whatever x is: a hidden key may hold NaN
    }
}

// Four random words belong to rows i and i + 8 and keys j and j + 1, of every 16 rows and 2 keys: what a lane holds of
// one mma tile. dropout_mask() of options_dropout.cu counts the same way.
__device__ __forceinline__ uint4 dropout_words(int64_t seed, int64_t head, int row, int key) {
    const unsigned place = static_cast<unsigned>(row) / 16 * 8 + row % 8;
    return philox(make_uint4(static_cast<unsigned>(key) / 2, place, static_cast<unsigned>(head),
                             static_cast<unsigned>(static_cast<uint64_t>(head) >> 32)),
                  make_uint2(static_cast<unsigned>(seed), static_cast<unsigned>(static_cast<uint64_t>(seed) >> 32)));
}

// 0 without dropout. A kernel asks once: the number lies in memory.
template <bool DROPOUT = true>
__device__ __forceinline__ int64_t seed_of(const Dropout& dropout) {
    return DROPOUT && dropout.seed != nullptr ? *dropout.seed : 0;
}

// Bit n is set if d[0][n / 4][n % 4] is kept.   head: batch * heads + head
template <int N>
__device__ __forceinline__ unsigned keep(const Dropout& dropout, int64_t seed, int64_t head, int first_row,
                                         int first_key) {
    static_assert(4 * N <= 32);
    if (dropout.seed == nullptr) return 0xffffffffu;
    const int lane = threadIdx.x % 32;
    unsigned kept = 0;
    UNROLL
    for (int n = 0; n < N; ++n) {
        const uint4 words =
            dropout_words(seed, head, first_row + lane / 4, first_key + 8 * n + lane % 4 * 2);
        const unsigned word[4] = {words.x, words.y, words.z, words.w};
        UNROLL
        for (int i = 0; i < 4; ++i) kept |= static_cast<unsigned>(word[i] >= dropout.threshold) << (4 * n + i);
    }
    return kept;
}

// In units of log2(e); infinity, which leaves no weight, for rows that see nothing.
__device__ __forceinline__ float lse_of(float lse) { return lse == -INFINITY ? INFINITY : lse * LOG2_E; }

// A weight of 0 times NaN or infinity is NaN: what lies at a hidden key would reach the rows that share a tile with it.
// Zeroing the key does not help, since some of these rows may see it. So a block looks at its sums before it writes
// them: where one is NaN, it goes through its tiles once more by multiply_taken(). That is slow, and costs nothing where
// there is no NaN but the look. A NaN that a row does see comes out again.
//   nan: in this thread's sums; the same answer for all threads of the block
__device__ __forceinline__ bool hidden_reached(const OptionsArguments& a, bool nan) {
    const bool hides = a.causal || a.window_left >= 0 || a.window_right >= 0 || a.mask.kind != MaskKind::NONE;
    return hides && __syncthreads_or(nan);
}

// shift, sum: of the row, whose weights are 2^(score - shift). A sink is one more weight, without a value.
struct RowEnd {
    float factor, lse;
};
__device__ __forceinline__ RowEnd end_of_row(const OptionsArguments& a, int head, float shift, float sum) {
    float factor = a.dropout.factor;
    if (a.sinks != nullptr) {
        const float sink = a.sinks[head] * LOG2_E, larger = fmaxf(shift, sink);
        const float ratio = exp2_approx(shift - larger);
        sum = sum * ratio + exp2_approx(sink - larger);
        factor *= ratio;
        shift = larger;
    }
    return {factor * flash::final_factor(sum), flash::logsumexp_of(shift, sum)};
}
