// flash_backward_plain.cu - attention gradients for every type, layout, option and head_dim: what the faster kernels do
// not support.
//
//   1. Shapes      QueryShape, KeyShape      what the blocks of the two kernels own; shared memory
//   2. Between     gradients_of_scores       P and dS of a tile, from its two GEMMs
//   3. Kernels     plain_query_kernel        dQ: a block has rows and loops over the keys
//                  plain_keys_kernel         dK, dV: a block has keys and loops over the rows
//   4. Launcher    plain_backward, block_backward
//
//   flash_backward.cuh    lse and delta of every row, before the two
//
// FlashAttention-2 (Dao 2023, arXiv:2307.08691, Algorithm 2), except that dQ has a separate kernel: no memory is added
// to by several blocks, so all gradients are bitwise reproducible. That takes seven GEMMs per tile instead of five.
// With m the dropout mask over (1 - p), c the softcap's slope, and lse including the sink:
//
//   S  = scale Q K^T         P  = exp(capped S - lse)         delta = sum over head_dim of dO * O
//   dP = dO V^T              dS = P * (m * dP - delta) * c
//   dV = (m * P)^T dO        dK = scale dS^T Q                dQ = scale dS K
//
// P and dS are 0 where a key is hidden from a row, regardless of the key's contents: hidden_reached() of
// plain_scores.cuh.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/cp_async.cuh"
#include "common/cuda/exp2.cuh"
#include "common/cuda/float_conversion.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/mma.cuh"
#include "common/cuda/seen_row.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_backward.cuh"
#include "common/kernels/flash/plain_launch.h"
#include "common/kernels/flash/plain_scores.cuh"
#include "common/kernels/flash/flash_sequences.cuh"
#include "common/kernels/flash/plain_tiles.cuh"
#include "common/kernels/flash/plain_transpose.cuh"
#include "common/kernels/flash/plain_walks.cuh"

// ------------------------------------------------------------------------------------------------- 1. Shapes

// dQ: a warp owns 16 rows.
template <typename T_, int D_, int WARPS_, int B_c_>
struct QueryShape {
    using T = T_;
    static constexpr int D = D_, WARPS = WARPS_, B_c = B_c_, B_r = 16 * WARPS, THREADS = 32 * WARPS;
    // Shared memory, in elements
    static constexpr int Q_AT = 0;                                    // Q [B_r][D]
    static constexpr int DO_AT = Q_AT + Tile<T, D>::elements(B_r);    // dO [B_r][D]
    static constexpr int K_AT = DO_AT + Tile<T, D>::elements(B_r);    // K [B_c][D]
    static constexpr int V_AT = K_AT + Tile<T, D>::elements(B_c);     // V [B_c][D]
    static constexpr int DS_AT = V_AT + Tile<T, D>::elements(B_c);    // dS [B_r][B_c], each warp its own rows
    static constexpr int BYTES = (DS_AT + Tile<T, B_c>::elements(B_r)) * sizeof(T);
};

// dK and dV: the warps form a grid over S [B_r][B_c], 16 rows each, and another over dK and dV [B_c][D], 16 keys each.
template <typename T_, int D_, int WARPS_, int B_r_, int B_c_>
struct KeyShape {
    using T = T_;
    static constexpr int D = D_, WARPS = WARPS_, B_r = B_r_, B_c = B_c_, THREADS = 32 * WARPS;
    static constexpr int S_COLS = B_c / (WARPS / (B_r / 16));    // columns of S per warp
    static constexpr int SUM_COLS = D / (WARPS / (B_c / 16));    // of dK and dV
    static_assert(S_COLS % 8 == 0 && SUM_COLS % 16 == 0 && WARPS % (B_r / 16) == 0 && WARPS % (B_c / 16) == 0);
    // Shared memory, in elements
    static constexpr int K_AT = 0;                                    // K [B_c][D]
    static constexpr int V_AT = K_AT + Tile<T, D>::elements(B_c);     // V [B_c][D]
    static constexpr int Q_AT = V_AT + Tile<T, D>::elements(B_c);     // Q [B_r][D]
    static constexpr int DO_AT = Q_AT + Tile<T, D>::elements(B_r);    // dO [B_r][D]
    static constexpr int P_AT = DO_AT + Tile<T, D>::elements(B_r);    // P [B_r][B_c]
    static constexpr int DS_AT = P_AT + Tile<T, B_c>::elements(B_r);  // dS [B_r][B_c]
    static constexpr int BYTES = (DS_AT + Tile<T, B_c>::elements(B_r)) * sizeof(T);
};

// ------------------------------------------------------------------------------------------------ 2. Between

// s = q.k and dp = dO.v of 16 rows and 8 N keys -> s = m * P and dp = dS.
//   row, key: the first ones, in the sequence; head: batch * heads + head; mask: of this head
//   lse, delta: of the lane's rows; lse is infinity for rows that see nothing
template <int N>
__device__ __forceinline__ void gradients_of_scores(float (&s)[1][N][4], float (&dp)[1][N][4], const float (&lse)[2],
                                                    const float (&delta)[2], const FlashArguments& a,
                                                    const AttentionMask& mask, const Sequence& sequence, int64_t seed,
                                                    int64_t head, int row, int key) {
    float slopes[1][N][4];
    apply_options(s, slopes, a, mask, sequence, row, key);
    const unsigned kept = keep<N>(a.dropout, seed, head, row, key);
    UNROLL
    for (int n = 0; n < 4 * N; ++n) {
        float &p = s[0][n / 4][n % 4], &x = dp[0][n / 4][n % 4];
        const int r = n % 4 / 2;
        const float weight = exp2_approx((p - lse[r]) * LOG2_E), m = kept >> n & 1 ? a.dropout.factor : 0.0f;
        const bool hidden = p == -INFINITY;  // then 0, even if x, the slope or the row's lse and delta are NaN
        x = hidden ? 0 : weight * (m * x - delta[r]) * slopes[0][n / 4][n % 4];
        p = hidden ? 0 : m * weight;
    }
}

// lse and delta of the lane's rows, `row` and `row` + 8 of the sequence.
__device__ __forceinline__ void read_numbers(float (&lse)[2], float (&delta)[2], const FlashArguments& a,
                                             const RowNumbers& numbers, const Sequence& sequence, int head, int row) {
    UNROLL
    for (int r = 0; r < 2; ++r) {
        lse[r] = INFINITY, delta[r] = 0;
        if (row + 8 * r >= sequence.rows) continue;
        const int64_t at = numbers.at(a, sequence, head, row + 8 * r);
        lse[r] = numbers.lse[at], delta[r] = numbers.delta[at];
    }
}

// ------------------------------------------------------------------------------------------------ 3. Kernels

template <class S, class Tiles>
__global__ void __launch_bounds__(S::THREADS)
    plain_query_kernel(const FlashGradients g, const RowNumbers numbers, bool pieces, const Tiles tiles) {
    using T = typename S::T;
    constexpr int D = S::D, B_c = S::B_c, N = B_c / 8;
    const FlashArguments& a = g.forward;
    extern __shared__ __align__(128) unsigned char bytes[];
    T* shared = reinterpret_cast<T*>(bytes);
    const Place place = place_of_block(a.cu_seqlens_q, a.S_q, a.batch, a.heads, S::B_r, true);
    if (place.number < 0) return;
    const Sequence sequence(a, place.number);
    const int head = place.head, kv_head = head / static_cast<int>(a.heads / a.kv_heads);
    const int rows = min(sequence.rows - place.start, S::B_r);
    const auto walk = tiles.template keys<B_c>(sequence, place, rows);
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;  // this warp's first row of the block
    const AttentionMask mask = mask_from(a.mask, place.number, head);
    const int64_t first_row = sequence.first_row + place.start;

    const auto load_rows = [&](const void* tensor, const RowStrides& strides, int at) {
        const T* from = row_at(static_cast<const T*>(tensor), strides, place.number, head, first_row);
        load_tile<T, S::B_r, D, S::THREADS>(shared + at, from, strides.row, rows, a.head_dim, pieces);
    };
    const auto load_keys = [&](const void* tensor, const RowStrides& strides, int at, const auto& tile) {
        const T* from =
            row_at(static_cast<const T*>(tensor), strides, place.number, kv_head, sequence.first_key + tile.start());
        load_tile<T, B_c, D, S::THREADS>(shared + at, from, strides.row, tile.left(), a.head_dim, pieces);
    };
    load_rows(a.query, a.query_strides, S::Q_AT);
    load_rows(g.grad_out, g.grad_out_strides, S::DO_AT);
    const int64_t seed = seed_of(a.dropout);
    float lse[2], delta[2], dq[1][D / 8][4];
    read_numbers(lse, delta, a, numbers, sequence, head, place.start + first + lane / 4);
#pragma unroll 1
    for (bool careful = false, done = false; !done; careful = true) {  // a second pass only if hidden_reached()
        mma::clear(dq);
#pragma unroll 1
        for (auto tile = walk; tile.more(); tile.advance()) {
            load_keys(a.key, a.key_strides, S::K_AT, tile);
            load_keys(a.value, a.value_strides, S::V_AT, tile);
            cp_async_wait_all();
            __syncthreads();
            float s[1][N][4], dp[1][N][4];
            mma::clear(s), mma::clear(dp);
            flash::multiply<false, false, D, D, D>(s, shared, S::Q_AT, first, S::K_AT, 0);
            flash::multiply<false, false, D, D, D>(dp, shared, S::DO_AT, first, S::V_AT, 0);
            gradients_of_scores(s, dp, lse, delta, a, mask, sequence, seed, place.number * a.heads + head,
                                place.start + first, tile.start());
            UNROLL
            for (int n = 0; n < 2 * N; ++n)
                store_pair<B_c>(shared + S::DS_AT, first + mma::row(lane, n % 2), 8 * (n / 2) + mma::col(lane, 0),
                                dp[0][n / 2][n % 2 * 2], dp[0][n / 2][n % 2 * 2 + 1]);
            __syncwarp();
            if (careful)
                multiply_taken<false, B_c, D, B_c>(dq, shared, S::DS_AT, first, S::K_AT, 0);
            else
                flash::multiply<false, true, B_c, D, B_c>(dq, shared, S::DS_AT, first, S::K_AT, 0);
            __syncthreads();
        }
        cp_async_wait_all();
        done = careful || !hidden_reached(a, attention::has_nan(dq[0]));
    }
    UNROLL
    for (int r = 0; r < 2; ++r) {
        const int row = first + mma::row(lane, r);
        if (row >= rows) continue;
        T* to = row_at(static_cast<T*>(g.grad_query), a.out_strides, place.number, head, first_row + row);
        UNROLL
        for (int n = 0; n < D / 8; ++n)
            store_row(to, 8 * n + mma::col(lane, 0), a.head_dim, dq[0][n][2 * r] * a.scale,
                      dq[0][n][2 * r + 1] * a.scale);
    }
}

template <class S, class Tiles>
__global__ void __launch_bounds__(S::THREADS)
    plain_keys_kernel(const FlashGradients g, const RowNumbers numbers, bool pieces, const Tiles tiles) {
    using T = typename S::T;
    constexpr int D = S::D, B_r = S::B_r, B_c = S::B_c, N = S::S_COLS / 8, SUMS = S::SUM_COLS / 8;
    const FlashArguments& a = g.forward;
    extern __shared__ __align__(128) unsigned char bytes[];
    T* shared = reinterpret_cast<T*>(bytes);
    const Place place = place_of_block(a.cu_seqlens_k, a.S_k, a.batch, a.kv_heads, B_c, false);
    if (place.number < 0) return;
    const Sequence sequence(a, place.number);
    const int kv_head = place.head, group = static_cast<int>(a.heads / a.kv_heads);
    const int keys = min(sequence.keys - place.start, B_c);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp % (B_r / 16) * 16, col = warp / (B_r / 16) * S::S_COLS;           // this warp's piece of S
    const int key = warp % (B_c / 16) * 16, sum_col = warp / (B_c / 16) * S::SUM_COLS;     // of dK and dV
    const int64_t first_key = sequence.first_key + place.start;

    const auto load_keys = [&](const void* tensor, const RowStrides& strides, int at) {
        const T* from = row_at(static_cast<const T*>(tensor), strides, place.number, kv_head, first_key);
        load_tile<T, B_c, D, S::THREADS>(shared + at, from, strides.row, keys, a.head_dim, pieces);
    };
    const auto load_rows = [&](const void* tensor, const RowStrides& strides, int at, int head, int start) {
        const T* from = row_at(static_cast<const T*>(tensor), strides, place.number, head, sequence.first_row + start);
        load_tile<T, B_r, D, S::THREADS>(shared + at, from, strides.row, sequence.rows - start, a.head_dim, pieces);
    };
    load_keys(a.key, a.key_strides, S::K_AT);
    load_keys(a.value, a.value_strides, S::V_AT);
    const int64_t seed = seed_of(a.dropout);
    float dk[1][SUMS][4], dv[1][SUMS][4];
#pragma unroll 1
    for (bool careful = false, done = false; !done; careful = true) {  // a second pass only if hidden_reached()
        mma::clear(dk), mma::clear(dv);
#pragma unroll 1
        for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
            const AttentionMask mask = mask_from(a.mask, place.number, head);
#pragma unroll 1
            for (auto tile = tiles.template rows<B_r>(sequence, place, keys, head); tile.more(); tile.advance()) {
                const int start = tile.start();
                load_rows(a.query, a.query_strides, S::Q_AT, head, start);
                load_rows(g.grad_out, g.grad_out_strides, S::DO_AT, head, start);
                cp_async_wait_all();
                __syncthreads();
                float s[1][N][4], dp[1][N][4], lse[2], delta[2];
                read_numbers(lse, delta, a, numbers, sequence, head, start + row + lane / 4);
                mma::clear(s), mma::clear(dp);
                flash::multiply<false, false, D, D, D>(s, shared, S::Q_AT, row, S::K_AT, col);
                flash::multiply<false, false, D, D, D>(dp, shared, S::DO_AT, row, S::V_AT, col);
                gradients_of_scores(s, dp, lse, delta, a, mask, sequence, seed, place.number * a.heads + head,
                                    start + row, place.start + col);
                UNROLL
                for (int n = 0; n < 2 * N; ++n) {
                    const int r = row + mma::row(lane, n % 2), c = col + 8 * (n / 2) + mma::col(lane, 0);
                    const float *p = &s[0][n / 2][n % 2 * 2], *ds = &dp[0][n / 2][n % 2 * 2];
                    store_pair<B_c>(shared + S::P_AT, r, c, p[0], p[1]);
                    store_pair<B_c>(shared + S::DS_AT, r, c, ds[0], ds[1]);
                }
                __syncthreads();
                if (careful) {
                    multiply_taken<true, B_c, D, B_r>(dv, shared, S::P_AT, key, S::DO_AT, sum_col);
                    multiply_taken<true, B_c, D, B_r>(dk, shared, S::DS_AT, key, S::Q_AT, sum_col);
                } else {
                    flash::multiply<true, true, B_c, D, B_r>(dv, shared, S::P_AT, key, S::DO_AT, sum_col);
                    flash::multiply<true, true, B_c, D, B_r>(dk, shared, S::DS_AT, key, S::Q_AT, sum_col);
                }
                __syncthreads();
            }
        }
        cp_async_wait_all();
        done = careful || !hidden_reached(a, attention::has_nan(dk[0]) || attention::has_nan(dv[0]));
    }
    UNROLL
    for (int r = 0; r < 2; ++r) {
        const int at = key + mma::row(lane, r);
        if (at >= keys) continue;
        T* to_key = row_at(static_cast<T*>(g.grad_key), g.grad_key_strides, place.number, kv_head, first_key + at);
        T* to_value = row_at(static_cast<T*>(g.grad_value), g.grad_key_strides, place.number, kv_head, first_key + at);
        UNROLL
        for (int n = 0; n < SUMS; ++n) {
            const int c = sum_col + 8 * n + mma::col(lane, 0);
            store_row(to_key, c, a.head_dim, dk[0][n][2 * r] * a.scale, dk[0][n][2 * r + 1] * a.scale);
            store_row(to_value, c, a.head_dim, dv[0][n][2 * r], dv[0][n][2 * r + 1]);
        }
    }
}

// ----------------------------------------------------------------------------------------------- 4. Launcher

// The shapes: as many rows and keys as fit in 64 KB of shared memory for head_dim up to 128, and in 99 KB up to 256; no
// more accumulators than fit in registers.
template <typename T, int D>
struct Shapes {
    using Query = QueryShape<T, D, (D <= 128 ? 4 : 2), 32>;
    using Key = KeyShape<T, D, 4, (D <= 128 ? 64 : 32), 32>;
};
template <>
struct Shapes<float, 64> {
    using Query = QueryShape<float, 64, 4, 32>;
    using Key = KeyShape<float, 64, 4, 32, 32>;
};
template <>
struct Shapes<float, 128> {
    using Query = QueryShape<float, 128, 2, 16>;
    using Key = KeyShape<float, 128, 4, 32, 16>;
};
template <>
struct Shapes<float, 256> {
    using Query = QueryShape<float, 256, 2, 8>;
    using Key = KeyShape<float, 256, 2, 16, 16>;
};

// Shapes for block lists, of 32 rows or less: they divide a block.
template <typename T, int D>
struct BlockShapes {
    static constexpr int B_c = sizeof(T) * D <= 256 ? 32 : 16;
    using Query = QueryShape<T, D, 2, B_c>;
    using Key = KeyShape<T, D, 4, 32, B_c>;
};

template <typename T, class Query, class Key, class Tiles>
static void launch(const FlashGradients& g, const Tiles& walks) {
    const FlashArguments& a = g.forward;
    const bool pieces = in_pieces<T>(a) && in_pieces<T>(g.grad_out, g.grad_out_strides);
    const BackwardSpace space(g, BackwardKernel::PLAIN);
    const RowNumbers numbers(g, space, 1);
    launch_row_numbers<T>(g, numbers, space, pieces);
    launch_plain<Query>(plain_query_kernel<Query, Tiles>, a.heads * tiles_of(a.batch, a.S_q, a.packed(), Query::B_r),
                        "query", a.stream, g, numbers, pieces, walks);
    launch_plain<Key>(plain_keys_kernel<Key, Tiles>, a.kv_heads * tiles_of(a.batch, a.S_k, a.packed(), Key::B_c), "key",
                      a.stream, g, numbers, pieces, walks);
}

void plain_backward(const FlashGradients& g) {
    check_row_count(g.forward);
    for_type_and_head_dim(g.forward, [&]<typename T, int D>() {
        launch<T, typename Shapes<T, D>::Query, typename Shapes<T, D>::Key>(g, AllTiles());
    });
}

void block_backward(const FlashGradients& g, const BlockLists& lists, int* transposed) {
    const FlashArguments& a = g.forward;
    check_row_count(a);
    const int q_blocks = static_cast<int>(a.S_q) / lists.block, k_blocks = static_cast<int>(a.S_k) / lists.block;
    const ListedTiles tiles = {lists, transpose_lists(lists, transposed, a.heads, q_blocks, k_blocks, a.stream), q_blocks,
                               k_blocks};
    for_type_and_head_dim(a, [&]<typename T, int D>() {
        if constexpr (D <= MAX_BLOCK_HEAD_DIM)
            launch<T, typename BlockShapes<T, D>::Query, typename BlockShapes<T, D>::Key>(g, tiles);
    });
}
