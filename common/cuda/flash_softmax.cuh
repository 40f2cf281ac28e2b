// flash_softmax.cuh - the online softmax on a warp's fragments: scores, weights and output stay in registers.
//
//   RowState        what a warp carries from tile to tile for each of its rows
//   weigh           scores of a tile -> its weights, as the A operands of P V
//   needs_rescale   whether the scores of a tile exceed the current running max by too much
//   rescale         raises the running max; consists of
//   raise_row_max     the new running max, and the ratio to multiply by
//   scale_output      multiplies the output by these ratios
//   final_factor    what a row's output is multiplied by after its last tile
//   logsumexp_of    a row's lse
//
// A row's weights are 2^(factor * score - row_max), where factor = scale * log2(e) converts to base 2. Any row_max
// gives the same output, since it cancels between sum and output; it only has to keep the weights in range. The kernel
// taught in task 4 updates it and rescales the whole output for every tile. Here row_max stays until a score exceeds it
// by more than SLACK: weights up to 2^8 have the same relative precision as those up to 1, and fp16 reaches 2^16.
// After a row's first tile that is rare, so a tile costs one comparison per row and one warp vote, and no shuffles.
// (The largest weight is then not exactly 1, but rounded like any other.)
//
// M: the warp has 16 M rows. A lane holds parts of 2 M of them, each shared with the other lanes of its quad: by_row()
// of common/cuda/mma.cuh.
#pragma once
#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>

#include "common/cuda/exp2.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"

namespace flash {

using namespace mma;

constexpr float SLACK = 8;

// A row that has seen no key has row_max -FLT_MAX: the first score above -infinity exceeds it, and until then
// 2^(-infinity + FLT_MAX) = 0.
template <int M>
struct RowState {
    float row_max[2 * M];
    float sum[2 * M];  // row sum over this lane's columns

    __device__ __forceinline__ RowState() {
        UNROLL
        for (int r = 0; r < 2 * M; ++r) row_max[r] = -FLT_MAX, sum[r] = 0;
    }
};

// p[k] = weights for the keys 16 k ... 16 k + 15 of the tile
template <typename T, int M, int N>
__device__ __forceinline__ void weigh(unsigned (&p)[N / 2][M][4], RowState<M>& rows, const float (&s)[M][N][4],
                                      float factor) {
    UNROLL
    for (int i = 0; i < N / 2 * M * 4; ++i) {
        const int k = i / (4 * M), m = i / 4 % M, at = i % 4;  // register `at` of an A operand, as in accumulators_as_a
        const int r = 2 * m + at % 2, c = 4 * k + at / 2 * 2;
        const float left = exp2_approx(by_row(s)(r, c) * factor - rows.row_max[r]);
        const float right = exp2_approx(by_row(s)(r, c + 1) * factor - rows.row_max[r]);
        rows.sum[r] += left;
        rows.sum[r] += right;
        p[k][m][at] = pack<T>(left, right);
    }
}

// Same result in all lanes. top [2 M]: the largest score of each row in this lane's columns, for rescale().
template <int M, int N>
__device__ __forceinline__ bool needs_rescale(float (&top)[2 * M], const RowState<M>& rows, const float (&s)[M][N][4],
                                              float factor) {
    const auto score = by_row(s);
    bool exceeded = false;
    UNROLL
    for (int r = 0; r < 2 * M; ++r) {
        float x = fmaxf(score(r, 0), score(r, 1));
        UNROLL
        for (int n = 1; n < N; ++n) x = fmaxf(x, fmaxf(score(r, 2 * n), score(r, 2 * n + 1)));
        top[r] = x;
        exceeded |= x * factor - rows.row_max[r] > SLACK;
    }
    return __any_sync(FULL_WARP, exceeded);
}

// Raises each row_max to the row's largest score if that is larger, and rescales sum. ratio is what the output must be
// multiplied by.
template <int M>
__device__ __forceinline__ void raise_row_max(float (&ratio)[2 * M], RowState<M>& rows, const float (&top)[2 * M],
                                              float factor) {
    UNROLL
    for (int r = 0; r < 2 * M; ++r) {
        const float row_max = fmaxf(quad_max(top[r] * factor), rows.row_max[r]);
        ratio[r] = exp2_approx(rows.row_max[r] - row_max);
        rows.row_max[r] = row_max;
        rows.sum[r] *= ratio[r];
    }
}

// o [M][D / 8]
template <int M, int D8>
__device__ __forceinline__ void scale_output(float (&o)[M][D8][4], const float (&ratio)[2 * M]) {
    UNROLL
    for (int i = 0; i < M * D8 * 4; ++i) o[i / (4 * D8)][i / 4 % D8][i % 4] *= ratio[2 * (i / (4 * D8)) + i % 4 / 2];
}

// Raises each row_max to the row's largest score if that is larger, and rescales sum and o [M][D / 8].
template <int M, int D8>
__device__ __forceinline__ void rescale(RowState<M>& rows, float (&o)[M][D8][4], const float (&top)[2 * M],
                                        float factor) {
    float ratio[2 * M];
    raise_row_max(ratio, rows, top, factor);
    scale_output(o, ratio);
}

// sum: over all columns, that is, quad_sum() of RowState's. 0 if the row has seen no key.
__device__ __forceinline__ float final_factor(float sum) { return sum == 0 ? 0.0f : __fdividef(1.0f, sum); }
__device__ __forceinline__ float logsumexp_of(float row_max, float sum) {
    return sum == 0 ? -INFINITY : (row_max + __log2f(sum)) * LN_2;
}

}  // namespace flash
