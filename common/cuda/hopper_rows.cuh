// hopper_rows.cuh - a warp's rows between the matmuls: scores, weights and output in wgmma's register layout.
//
//   hide_from       masks the scores of all keys from a given one on (-infinity)
//   hide_before     the same for S^T, whose rows are keys: masks queries before a given one
//   hide_outside    the same, for queries before one and from another one on
//   exponentials    scores -> exponentials, in place
//   round_weights   weights -> the A operand of P V
//   transpose_quad  transposes words among the four lanes of a quad, for write_rows
//   write_rows      writes the output, and lse with it, to global memory
//   Sources         pointers and strides of query, key and value, for compute_nan_again
//   for_each_nan_row    visits rows of the output that have a NaN
//   compute_nan_again   keeps the contents of hidden keys out of a row: seen_row.cuh
//
// The online softmax is that of flash_softmax.cuh with M = 1, since a warp of a warpgroup has 16 rows in the fragment
// layout of mma.sync. Only weigh() is split in two here: P V still reads the registers of the old weights while the
// new exponentials are computed, so these stay in the score registers and are rounded later.
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "common/cuda/attention_arguments.h"
#include "common/cuda/exp2.cuh"
#include "common/cuda/flash_softmax.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/seen_row.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"

namespace hopper {

using namespace mma;

// end: each row sees the first `end` keys of the tile; one for each of this lane's rows, lane / 4 and lane / 4 + 8
template <int N8>
__device__ __forceinline__ void hide_from(float (&s)[1][N8][4], const int (&end)[2]) {
    const int first = mma::d_col(threadIdx.x % 32, 0), last[2] = {end[0] - first, end[1] - first};
    UNROLL
    for (int n = 0; n < N8; ++n)
        UNROLL
        for (int e = 0; e < 4; ++e)  // columns 8 n and 8 n + 1 of this lane's first row, then of its second
            if (8 * n + e % 2 >= last[e / 2]) s[0][n][e] = -INFINITY;
}

// begin: the first query of the tile that sees the key; one for each of this lane's keys, lane / 4 and lane / 4 + 8
template <int N8>
__device__ __forceinline__ void hide_before(float (&s)[N8][4], const int (&begin)[2]) {
    const int first = mma::d_col(threadIdx.x % 32, 0), start[2] = {begin[0] - first, begin[1] - first};
    UNROLL
    for (int n = 0; n < N8; ++n)
        UNROLL
        for (int e = 0; e < 4; ++e)
            if (8 * n + e % 2 < start[e / 2]) s[n][e] = -INFINITY;
}

// end: one past the last query that sees the key
template <int N8>
__device__ __forceinline__ void hide_outside(float (&s)[N8][4], const int (&begin)[2], const int (&end)[2]) {
    const int first = mma::d_col(threadIdx.x % 32, 0);
    const int from[2] = {begin[0] - first, begin[1] - first}, to[2] = {end[0] - first, end[1] - first};
    UNROLL
    for (int n = 0; n < N8; ++n)
        UNROLL
        for (int e = 0; e < 4; ++e) {
            const int query = 8 * n + e % 2;
            if (query < from[e / 2] || query >= to[e / 2]) s[n][e] = -INFINITY;
        }
}

template <int N8>
__device__ __forceinline__ void exponentials(float (&s)[1][N8][4], flash::RowState<1>& rows, float factor) {
    UNROLL
    for (int n = 0; n < N8; ++n)
        UNROLL
        for (int e = 0; e < 4; ++e) {
            s[0][n][e] = exp2_approx(s[0][n][e] * factor - rows.row_max[e / 2]);
            rows.sum[e / 2] += s[0][n][e];
        }
}

// p[k] = weights for the keys 16 k ... 16 k + 15 of the tile
template <typename T, int N8>
__device__ __forceinline__ void round_weights(unsigned (&p)[N8 / 2][4], const float (&s)[1][N8][4]) {
    UNROLL
    for (int k = 0; k < N8 / 2; ++k) accumulators_as_a<T>(p[k], s[0][2 * k], s[0][2 * k + 1]);
}

// The lanes of a quad hold the columns of a 4 x 4 matrix of words; afterward, lane i holds row i.
__device__ __forceinline__ void transpose_quad(unsigned (&w)[4]) {
    UNROLL
    for (int distance = 1; distance <= 2; distance *= 2) {
        const bool upper = threadIdx.x & distance;
        UNROLL
        for (int i = 0; i < 2; ++i) {
            const int low = distance == 1 ? 2 * i : i, high = low + distance;
            const unsigned got = __shfl_xor_sync(FULL_WARP, upper ? w[low] : w[high], distance);
            (upper ? w[low] : w[high]) = got;
        }
    }
}

// Writes factor * o for a warp's 16 rows, with one factor for each of this lane's two. A lane has two of every 8
// neighboring columns; after a transpose within the quad it has all 8 of one group, so that each lane writes 16 bytes
// and the quad 64 contiguous ones.
//
//   out [rows_left][head_dim], starting at the warp's first row    head_dim: a multiple of 8, <= D = 8 D8
//   row_stride: row stride of out, in elements
template <typename T, int D8, typename Stride>
__device__ __forceinline__ void write_rows(T* out, const float (&o)[D8][4], const float (&factor)[2], int rows_left,
                                           int head_dim, Stride row_stride) {
    const int lane = threadIdx.x % 32;
    UNROLL
    for (int half = 0; half < 2; ++half) {
        const int row = mma::d_row(lane, 2 * half);
        UNROLL
        for (int n = 0; n < D8; n += 4) {
            unsigned w[4];
            UNROLL
            for (int i = 0; i < 4; ++i)
                w[i] = pack<T>(o[n + i][2 * half] * factor[half], o[n + i][2 * half + 1] * factor[half]);
            transpose_quad(w);
            const int column = 8 * (n + lane % 4);
            if (row < rows_left && column < head_dim)
                *reinterpret_cast<uint4*>(out + row * row_stride + column) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

// Writes o / sum; lse [rows_left], starting at the warp's first row, or nullptr
template <typename T, int D>
__device__ __forceinline__ void write_rows(T* out, float* lse, const float (&o)[1][D / 8][4],
                                           const flash::RowState<1>& rows, int rows_left, int head_dim, int row_stride) {
    const int lane = threadIdx.x % 32;
    float factor[2];
    UNROLL
    for (int half = 0; half < 2; ++half) {
        const int row = mma::d_row(lane, 2 * half);
        const float sum = quad_sum(rows.sum[half]);
        factor[half] = flash::final_factor(sum);
        if (lse != nullptr && lane % 4 == 0 && row < rows_left) lse[row] = flash::logsumexp_of(rows.row_max[half], sum);
    }
    write_rows<T>(out, o[0], factor, rows_left, head_dim, row_stride);
}

// Tensor maps are for TMA; these are for ordinary loads.
struct Sources {
    const void *query, *key, *value;
    RowStrides query_strides, key_strides, value_strides;
    float scale;
    bool hides_keys;  // whether any key is hidden from any row

    void set(const AttentionArguments& a, bool hides) {
        query = a.query, key = a.key, value = a.value;
        query_strides = a.query_strides, key_strides = a.key_strides, value_strides = a.value_strides;
        scale = a.scale, hides_keys = hides;
    }
};

// Calls f(i, out of row i) for those of a warp's 16 rows that have a NaN, with all lanes together. The warp has written
// the rows and reads them back: a kernel calls this after its last GEMM, when registers are free, and only if some row
// had a NaN.
//
//   out [rows_left][head_dim], starting at the warp's first row; row_stride in elements
template <typename T, typename F>
__device__ __forceinline__ void for_each_nan_row(T* out, int rows_left, int head_dim, int64_t row_stride, F f) {
    __syncwarp();
    NO_UNROLL
    for (int i = 0; i < min(rows_left, 16); ++i, out += row_stride) {
        bool nan = false;
        for (int d = threadIdx.x % 32; d < head_dim; d += 32) nan |= to_float(out[d]) != to_float(out[d]);
        if (__any_sync(FULL_WARP, nan)) f(i, out);
    }
}

// Recomputes these rows from their visible keys.
//
//   out [rows_left][head_dim], from the warp's first row on, which is row `first_row` of its head; row_stride in
//   elements for_each_seen(row, f)     calls f(key) for the keys that a row of the head sees
template <typename T, typename Seen>
__device__ __forceinline__ void compute_nan_again(const Sources& from, T* out, int batch, int head, int kv_head,
                                                  int first_row, int rows_left, int head_dim, int row_stride,
                                                  Seen for_each_seen) {
    const auto head_of = [](const void* tensor, const RowStrides& strides, int64_t b, int64_t h) {
        return static_cast<const T*>(tensor) + b * strides.batch + h * strides.head;
    };
    const T* key = head_of(from.key, from.key_strides, batch, kv_head);
    const T* value = head_of(from.value, from.value_strides, batch, kv_head);
    for_each_nan_row(out, rows_left, head_dim, row_stride, [&](int i, T* row_out) {
        const int row = first_row + i;
        attention::SeenRow<T> again(head_of(from.query, from.query_strides, batch, head) + row * from.query_strides.row,
                                    head_dim);
        for_each_seen(row, [&](int64_t k) {
            if (again.lost()) return;
            again.add(again.product(key + k * from.key_strides.row) * from.scale, value + k * from.value_strides.row);
        });
        again.write(row_out);
    });
}

}  // namespace hopper
