// hopper_forward_rows.cuh - how the options affect a warp's rows in flash_attention_wgmma.cuh.
//
//   keep_weights, drop_weights    dropout
//   clear_rest       zeroes packed rows that belong to no sequence
//   write_tile       the epilogue: output and lse
//   recompute_nan    recomputes rows contaminated by 0 * NaN from their visible keys
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/hopper_rows.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/seen_row.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash/attention_policies.cuh"
#include "common/kernels/flash/hopper_forward_work.cuh"

namespace hopper {

__device__ __forceinline__ int64_t dropout_head(const BandProblem& a, const BandTile& tile) {
    return int64_t{tile.number} * a.heads + tile.head_;
}

// Which weights of a warp's rows dropout keeps.   first_row, key: of the warp and of the tile, in the sequence
template <int TILES>
__device__ __forceinline__ void keep_weights(Kept<false> (&kept)[TILES], const Dropout& dropout, int64_t seed,
                                             int64_t head, int first_row, int key) {
    static_assert(TILES % 2 == 0);
    UNROLL
    for (int k = 0; k < TILES; k += 2) {
        Kept<false> two[2];
        keep_two_tiles(two, dropout, seed, head, first_row / 16, key / 16 + k);
        kept[k] = two[0], kept[k + 1] = two[1];
    }
}
// Zeroes the others, as A operands.
template <int TILES>
__device__ __forceinline__ void drop_weights(unsigned (&p)[TILES][4], const Kept<false> (&kept)[TILES]) {
    UNROLL
    for (int i = 0; i < 4 * TILES; ++i) p[i / 4][i % 4] &= kept[i / 4].mask(i % 4 / 2, i % 2);
}

template <typename T>
__device__ __forceinline__ T* out_of(const ForwardProblem& a, const WorkTile& tile, int row) {
    const int64_t matrix_row = int64_t{tile.batch_head} * a.S_q + row;
    const int64_t interleaved = (int64_t{tile.batch(a)} * a.S_q + row) * a.heads + tile.head(a);
    return static_cast<T*>(a.out) + (a.by_rows ? interleaved : matrix_row) * a.head_dim;
}
__device__ __forceinline__ int out_row(const ForwardProblem& a) { return a.by_rows ? a.heads * a.head_dim : a.head_dim; }
template <typename T>
__device__ __forceinline__ T* out_of(const BandProblem& a, const BandTile& tile, int row) {
    return static_cast<T*>(a.out) + tile.number * a.out_strides.batch + tile.head_ * a.out_strides.head +
           (tile.first_row + row) * a.out_strides.row;
}

// Writes a warp's rows of a work tile.   first_row: the warp's first, in the sequence
template <typename T, int D>
__device__ __forceinline__ void write_tile(const ForwardProblem& a, const WorkTile& tile, int first_row, int rows_left,
                                           const float (&o)[1][D / 8][4], const flash::RowState<1>& rows) {
    const int64_t at = int64_t{tile.batch_head} * a.S_q + first_row;
    write_rows<T, D>(out_of<T>(a, tile, first_row), a.lse == nullptr ? nullptr : a.lse + at, o, rows, rows_left,
                     a.head_dim, out_row(a));
}
// The same with sinks, for dense or packed sequences.
template <typename T, int D>
__device__ __forceinline__ void write_tile(const BandProblem& a, const BandTile& tile, int first_row, int rows_left,
                                              const float (&o)[1][D / 8][4], const flash::RowState<1>& rows) {
    const int lane = threadIdx.x % 32;
    const int64_t matrix = a.cu_seqlens_q != nullptr ? tile.head_ : dropout_head(a, tile);
    float* lse = a.lse + matrix * a.S_q + tile.first_row + first_row;
    float factor[2];
    UNROLL
    for (int half = 0; half < 2; ++half) {
        const int row = mma::d_row(lane, 2 * half);
        const RowEnd end = end_of_row(a.sinks == nullptr ? nullptr : a.sinks + tile.head_, a.dropout.factor,
                                      rows.row_max[half], quad_sum(rows.sum[half]));
        factor[half] = end.factor;
        if (a.lse != nullptr && lane % 4 == 0 && row < rows_left) lse[row] = end.lse;
    }
    write_rows<T>(out_of<T>(a, tile, first_row), o[0], factor, rows_left, a.head_dim, a.out_strides.row);
}

// Zeroes output and lse of the packed rows before the first sequence and after the last: this CTA's share of them.
//   thread, threads: of the CTA's consumers
template <typename T>
__device__ __forceinline__ void clear_rest(const BandProblem& a, int thread, int threads) {
    const int first = Band<int>::within(a.cu_seqlens_q[0], a.S_q);
    const int end = max(first, Band<int>::within(a.cu_seqlens_q[a.batch], a.S_q));
    for (int i = blockIdx.x; i < a.S_q - (end - first); i += gridDim.x) {
        const int row = i < first ? i : end + i - first;
        for (int d = thread; d < a.heads * a.head_dim; d += threads)
            static_cast<T*>(a.out)[row * a.out_strides.row + d] = from_float<T>(0.0f);
        for (int head = thread; head < a.heads; head += threads) a.lse[int64_t{head} * a.S_q + row] = 0;
    }
}

// Recomputes NaN rows of a warp in a work tile.   S, Policy: of flash_attention_wgmma.cuh
template <typename T, class S, class Policy, class SomeProblem, class Tile>
__device__ __forceinline__ void recompute_nan(const SomeProblem& a, const Tile& tile, int first_row, int64_t /*seed*/) {
    const int head = tile.head(a);
    compute_nan_again(a.sources, out_of<T>(a, tile, first_row), tile.batch(a), head, head / a.group, first_row,
                      a.S_q - first_row, a.head_dim, out_row(a), [&](int row, auto f) {
                          const int begin = tile.first_key_of(a, row), end = tile.end_of_keys(a, row);
                          for (int t = 0; t < tile.tiles; ++t) {
                              const int from = tile.key_tile(a, t) * S::B_c;
                              for (int key = max(begin, from); key < min(end, from + S::B_c); ++key) f(key);
                          }
                      });
}
template <typename T, class S, class Policy>
__device__ __forceinline__ void recompute_nan(const BandProblem& a, const BandTile& tile, int first_row, int64_t seed) {
    const Sources& from = a.sources;
    const auto row_at = [&](const void* tensor, const RowStrides& strides, int head, int64_t row) {
        return static_cast<const T*>(tensor) + tile.number * strides.batch + head * strides.head + row * strides.row;
    };
    const T* key = row_at(from.key, from.key_strides, tile.head_ / a.group, tile.first_key);
    const T* value = row_at(from.value, from.value_strides, tile.head_ / a.group, tile.first_key);
    for_each_nan_row(out_of<T>(a, tile, first_row), tile.band.rows - first_row, a.head_dim, a.out_strides.row,
                     [&](int i, T* out) {
                         const int row = first_row + i;
                         attention::SeenRow<T, S::D> again(
                             row_at(from.query, from.query_strides, tile.head_, tile.first_row + row), a.head_dim);
                         for (int k = tile.band.first_key_of(row); k < tile.band.end_of_keys(row); ++k) {
                             if (again.lost()) break;
                             float score = again.product(key + k * from.key_strides.row);
                             score = Policy::SOFTCAP ? a.factor * LN_2 * tanh_of(score * a.inside) : score * from.scale;
                             const T* taken = value + k * from.value_strides.row;
                             if (Policy::DROPOUT && !keep_weight(a.dropout, seed, dropout_head(a, tile), row, k))
                                 taken = nullptr;
                             again.add(score, taken);
                         }
                         if (a.sinks != nullptr) again.add(a.sinks[tile.head_], nullptr);
                         again.write(out, a.dropout.factor);
                     });
}

}  // namespace hopper
