// plain_scores.cuh - from query-key products to weights: the options, applied to a warp's accumulators.
//
//   apply_options    q.k -> scores: scale, softcap, window, mask tensor; -infinity for hidden keys; the cap's slopes
//   keep             which weights dropout keeps
//   hidden_reached   whether hidden keys may have contaminated a block's sums
//   end_of_row       the final factor of a row's output, and its lse
//
// d [1][N][4]: 16 rows starting at first_row, 8 N keys starting at first_key, in the layout of mma.cuh; both counted
// from the start of the sequence.
#pragma once
#include <cuda_runtime.h>

#include <cmath>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/attention_policies.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_sequences.cuh"

// slopes: d score / d (scale * q.k), 1 without a softcap; backward, for q and k. The mask is added after the softcap.
//   mask: of this head, see mask_from
template <int N>
__device__ __forceinline__ void apply_options(float (&d)[1][N][4], float (&slopes)[1][N][4], const FlashArguments& a,
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
        x = bias == -INFINITY ? -INFINITY : x + bias;  // whatever x: a hidden key may hold NaN
    }
}

// Bit n is set if d[0][n / 4][n % 4] is kept.   head: batch * heads + head
template <int N>
__device__ __forceinline__ unsigned keep(const Dropout& dropout, int64_t seed, int64_t head, int first_row,
                                         int first_key) {
    static_assert(N == 1 || (N % 2 == 0 && N <= 8));
    if (dropout.seed == nullptr) return 0xffffffffu;
    unsigned kept = 0;
    UNROLL
    for (int n = 0; n < N; n += 2) {
        const Kept<false> tile = keep_tile(dropout, seed, head, first_row / 16, (first_key + 8 * n) / 16);
        UNROLL
        for (int i = 0; i < (N == 1 ? 4 : 8); ++i)
            kept |= static_cast<unsigned>(tile(first_key / 8 % 2 + i / 4, i % 4)) << (4 * n + i);
    }
    return kept;
}

// 0 times NaN or infinity is NaN: the contents of a hidden key would reach rows that share a tile with it. Zeroing the
// key does not help, since some of these rows may see it. So a block checks its sums before it writes them; if one is
// NaN, it repeats its tiles with multiply_taken(). That is slow, but without a NaN only the check costs time. A NaN
// that a row does see comes out again.
//   nan: in this thread's sums; same result in all threads of the block
__device__ __forceinline__ bool hidden_reached(const FlashArguments& a, bool nan) {
    const bool hides = a.causal || a.window_left >= 0 || a.window_right >= 0 || a.mask.kind != MaskKind::NONE;
    return hides && __syncthreads_or(nan);
}

__device__ __forceinline__ RowEnd end_of_row(const FlashArguments& a, int head, float row_max, float sum) {
    return end_of_row(a.sinks == nullptr ? nullptr : a.sinks + head, a.dropout.factor, row_max, sum);
}
