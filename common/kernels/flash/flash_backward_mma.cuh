// flash_backward_mma.cuh - attention gradients, float16 and bfloat16 on tensor cores.
//
//   1. Shapes      Shape                        what a block and a warp own; shared memory
//   2. Between     store_weights, store_dS      S -> P and dP -> dS, between the GEMMs
//                  weigh_with_options           the same with a softcap, a mask tensor and dropout
//   3. Kernel      flash_backward_kernel        layout, phases, main loop
//   4. Launcher    backward_by_mma              flash_backward_mma_fp16.cu and _bf16.cu instantiate it
//
//   flash_backward.cuh    which tiles a block has; lse and delta
//   flash_query_sum.cuh   dQ, which many blocks add to
//   common/cuda/          flash_products.cuh: GEMMs, from shared memory to registers and back; flash_tiles.cuh: tiles
//                         in shared memory
//
// The algorithm (Dao 2023, "FlashAttention-2", arXiv:2307.08691, Algorithm 2). The forward pass saved
// lse = log(sum of exp(score)) for every row, so P = exp(score - lse) is computed directly, tile by tile, without an
// online softmax. A block has B_c keys, K and V and their gradients, and loops over the rows of Q in tiles of B_r:
//
//   S  = scale Q K^T                 dV += P^T dO
//   P  = exp(S - lse)                dK += scale dS^T Q
//   dP = dO V^T                      dQ += scale dS K           in global memory, since other blocks add to it, too
//   dS = P * (dP - delta)
//
// With m the dropout factor of a weight and c the slope of the softcap: dV += (m P)^T dO and dS = c P (m dP - delta).
// The sinks are included in lse, and their gradient comes from delta (flash_sinks.cu).
//
// dK and dV stay in registers to the end, even while the block moves on to the next query head that shares its K/V
// head: only dQ needs atomic additions. Rows that saw no key have lse = infinity here, and P = 0.
//
// Division of labor. Half of the warps compute S, P and dV, the other half dP, dS, dK and dQ. So a warp holds a piece
// of either dV or dK, twice as large as if it held both, and larger pieces need fewer reads from shared memory for the
// same work; those reads would otherwise be the bottleneck. The halves synchronize at two barriers per tile i. The
// loop:
//
//                  score warps                             gradient warps
//       meet()     Q(i) has arrived, and dS(i-1)
//       phase 1    compute_scores   S(i) = Q(i) K^T        add_dK_dQ    dK += dS(i-1)^T Q(i-1), dQ(i-1) += dS(i-1) K
//                  compute_weights  P(i)
//       meet()     dO(i) has arrived, and P(i)
//       phase 2    add_dV           dV += P(i)^T dO(i)     compute_dS   dP(i) = dO(i) V^T, dS(i)
//
// So dK and dQ are one tile late; both halves have GEMMs in both phases, and the elementwise work of one half overlaps
// with the other's tensor core work. dO(i) is copied during phase 1, Q(i+1) during phase 2, hence two tiles of Q and
// one of dO.
//
// All operands of the five GEMMs are tiles in shared memory, with rows as in global memory; where a GEMM needs a
// transposed operand, ldmatrix.trans transposes it on the fly.
//
// Measurements: README.md; what didn't work: notes/.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/check.h"
#include "common/cuda/cp_async.cuh"
#include "common/cuda/exp2.cuh"
#include "common/cuda/flash_products.cuh"
#include "common/cuda/flash_tiles.cuh"
#include "common/cuda/ldmatrix.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/mma.cuh"
#include "common/cuda/seen_row.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/attention_policies.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_backward.cuh"
#include "common/kernels/flash/flash_host.h"
#include "common/kernels/flash/flash_query_sum.cuh"
#include "common/kernels/flash/flash_seen_gradients.cuh"

using namespace flash;  // TileLoader, lane_start, block_at, multiply, first_pair, pair_at
using namespace mma;    // clear, pack, unpack, swizzled

// ------------------------------------------------------------------------------------------------- 1. Shapes
//
// The warps of a half form a grid of WARP_ROWS x WARP_COLS over each of their results:
//
//                         block         warp, D = 64 (2 x 1)    D = 128 (2 x 2)    D = 256 (2 x 2)
//     S, dP               64 x 64           32 x 64                 32 x 32            32 x 32
//     dV, dK              64 x D            32 x 64                 32 x 64            32 x 128
//     dQ, 32 columns      64 x D            32 x 32, twice          32 x 32, twice     32 x 32, four times
//     at a time
//
// BLOCKS share an SM: while one waits at a barrier, the others compute. OPTIONS: softcap, mask tensor and dropout, for
// which dV and dS use different weights. Every instance supports windows, packed sequences and sinks.

constexpr int B_c = 64, DQ_COLS = 32;

template <typename T_, int D_, int B_r_, int WARP_ROWS_, int WARP_COLS_, int BLOCKS_, bool OPTIONS_>
struct Shape {
    using T = T_;
    static constexpr bool OPTIONS = OPTIONS_;
    static constexpr int D = D_, B_r = B_r_, WARP_ROWS = WARP_ROWS_, WARP_COLS = WARP_COLS_, BLOCKS = BLOCKS_;
    static constexpr int HALF = 32 * WARP_ROWS * WARP_COLS, THREADS = 2 * HALF;
    static constexpr int ROWS = B_r / WARP_ROWS, COLS = B_c / WARP_COLS;        // a warp's piece of S or dP
    static constexpr int SUM_ROWS = B_c / WARP_ROWS, SUM_COLS = D / WARP_COLS;  // of dV or dK; of dQ: ROWS, SUM_COLS
    static_assert(ROWS % 16 == 0 && COLS % 16 == 0 && SUM_COLS % DQ_COLS == 0 && B_r <= HALF && D % 64 == 0);

    // Shared memory, in elements
    static constexpr int Q_TILE = B_r * D, K_TILE = B_c * D, P_TILE = B_r * B_c;
    static constexpr int K_AT = 0;                   // K [B_c][D]; at the end dK
    static constexpr int V_AT = K_AT + K_TILE;       // V [B_c][D]; at the end dV
    static constexpr int Q_AT = V_AT + K_TILE;       // Q [2][B_r][D]
    static constexpr int DO_AT = Q_AT + 2 * Q_TILE;  // dO [B_r][D]
    static constexpr int P_AT = DO_AT + Q_TILE;      // P, or with OPTIONS m P [B_r][B_c]
    static constexpr int DS_AT = P_AT + P_TILE;      // dS [B_r][B_c]
    static constexpr int W_AT = DS_AT + P_TILE;      // with OPTIONS: c P [B_r][B_c]
    static constexpr int ROWS_AT = W_AT + (OPTIONS ? P_TILE : 0);  // float: lse [2][B_r], delta [B_r]
    static constexpr int BYTES = ROWS_AT * sizeof(T) + 3 * B_r * sizeof(float);
};

// ------------------------------------------------------------------------------------------------ 2. Between

// Stores P = 2^(factor * s - lse), rounded to T, to shared memory. lse: starts at the lane's first row. With EDGE,
// hidden keys get 0: row r of the lane's (0, 8, 16, ...) sees keys seen(r), counted from the lane's first one.
template <bool EDGE, typename T, int M, int N, typename F>
__device__ __forceinline__ void store_weights(T* shared, unsigned first, const float (&s)[M][N][4], const float* lse,
                                              float factor, F seen) {
    UNROLL
    for (int i = 0; i < 2 * M; ++i) {
        const int half = i % 2, r = 8 * i;
        const KeyRange range = EDGE ? seen(r) : KeyRange{0, 0};
        const float row_lse = lse[r];
        UNROLL
        for (int j = 0; j < N; ++j) {
            float p[2];
            UNROLL
            for (int e = 0; e < 2; ++e) {
                p[e] = exp2_approx(s[i / 2][j][2 * half + e] * factor - row_lse);
                if (EDGE && (8 * j + e < range.begin || 8 * j + e >= range.end)) p[e] = 0;
            }
            pair_at<B_c>(shared, first, i / 2, j, half) = pack<T>(p[0], p[1]);
        }
    }
}

// Stores dS = P * (dp - delta), rounded to T; P is read from where the score warps put it, dS goes DISTANCE further.
template <int DISTANCE, typename T, int M, int N>
__device__ __forceinline__ void store_dS(T* shared, unsigned first, const float (&dp)[M][N][4], const float* delta) {
    UNROLL
    for (int i = 0; i < 2 * M; ++i) {
        const int half = i % 2;
        const float d = delta[8 * i];
        UNROLL
        for (int j = 0; j < N; ++j) {
            const float* x = &dp[i / 2][j][2 * half];
            const float2 p = unpack<T>(pair_at<B_c>(shared, first, i / 2, j, half));
            pair_at<B_c>(shared + DISTANCE, first, i / 2, j, half) = pack<T>(p.x * (x[0] - d), p.y * (x[1] - d));
        }
    }
}

// What dropout keeps of a warp's piece of a tile, as in keep_tile.   row, key: the piece's first, in the sequence
template <class F>
__device__ __forceinline__ void for_each_16x16(int M, int N, const Dropout& dropout, int64_t seed, int64_t head, int row,
                                               int key, F f) {
    UNROLL
    for (int i = 0; i < M * N / 2; ++i) {
        Kept<false> kept = {{0x80808080u, 0x80808080u}};
        if (dropout.seed != nullptr) kept = keep_tile(dropout, seed, head, row / 16 + i / (N / 2), key / 16 + i % (N / 2));
        f(i / (N / 2), i % (N / 2) * 2, kept);
    }
}

// From s = q.k, stores m P (without m's factor) and, DISTANCE further, c P, rounded to T, to shared memory.
//   row, col: of the warp's piece in the tile
template <int DISTANCE, typename T, int M, int N, class Block>
__device__ __forceinline__ void weigh_with_options(T* shared, unsigned first, const float (&s)[M][N][4], const float* lse,
                                                   const Block& block, typename Block::Tile tile, int row, int col,
                                                   int64_t seed) {
    const FlashArguments& a = block.a;
    const int lane = threadIdx.x % 32, rows = block.rows(tile) - row, keys = block.keys - col;
    const AttentionMask mask = block.mask(tile, row, col);
    for_each_16x16(M, N, a.dropout, seed, block.place.number * a.heads + block.head(tile), tile.q_start + row,
                   block.place.start + col, [&](int m, int n, const Kept<false>& kept) {
        UNROLL
        for (int i = 0; i < 4; ++i) {
            const int half = i / 2, j = n + i % 2, q = 16 * m + 8 * half + lane / 4;
            const auto seen = block.seen(tile, row + q);
            float taken[2], weight[2];
            UNROLL
            for (int e = 0; e < 2; ++e) {
                const int k = 8 * j + lane % 4 * 2 + e;
                float x = s[m][j][2 * half + e] * a.scale, slope = 1;
                if (a.softcap > 0) {
                    const float t = tanh_of(x / a.softcap);
                    x = a.softcap * t, slope = 1 - t * t;
                }
                if (q < rows && k < keys) x = masked_score(x, mask, 0, q, k);
                const float p = exp2_approx(x * LOG2_E - lse[16 * m + 8 * half]);
                const bool hidden = col + k < seen.begin || col + k >= seen.end || x == -INFINITY;
                weight[e] = hidden ? 0 : p * slope;
                taken[e] = hidden || !kept(j % 2, 2 * half + e) ? 0 : p;
            }
            pair_at<B_c>(shared, first, m, j, half) = pack<T>(taken[0], taken[1]);
            pair_at<B_c>(shared + DISTANCE, first, m, j, half) = pack<T>(weight[0], weight[1]);
        }
    });
}

// ------------------------------------------------------------------------------------------------- 3. Kernel

// Waits for all copies issued by this thread, and for all threads.
__device__ __forceinline__ void meet() {
    cp_async_wait_all();
    __syncthreads();
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    flash_backward_kernel(const FlashGradients g, const RowNumbers numbers, int key_tile) {
    using T = typename S::T;
    constexpr int D = S::D, B_r = S::B_r, M = S::ROWS / 16, N = S::COLS / 8;
    const FlashArguments& a = g.forward;
    extern __shared__ __align__(128) unsigned char bytes[];
    T* shared = reinterpret_cast<T*>(bytes);
    float* lse_rows = reinterpret_cast<float*>(shared + S::ROWS_AT);  // [2][B_r]
    float* delta_rows = lse_rows + 2 * B_r;                           // [B_r]
    using Block = KeyBlock<B_r, B_c>;
    using Tile = typename Block::Tile;
    const Place place = Block::place_of(a, key_tile);
    if (place.number < 0) return;
    const Block block(a, place);
    if (block.keys <= 0) return;
    const int tiles = block.tiles;

    const bool scores = threadIdx.x < S::HALF;
    const int lane = threadIdx.x % 32, warp = threadIdx.x % S::HALF / 32;
    const int warp_row = warp / S::WARP_COLS, warp_col = warp % S::WARP_COLS;
    const int row = warp_row * S::ROWS, col = warp_col * S::COLS;                  // of this warp's piece of S or dP
    const int sum_row = warp_row * S::SUM_ROWS, sum_col = warp_col * S::SUM_COLS;  // of dV or dK; of dQ: row, sum_col
    // Where this lane reads the operands of S or dP, of dV or dK, and of dQ; its first pair of P
    const unsigned x_a = block_at<D>((scores ? S::Q_AT : S::DO_AT) + lane_start<D>(), row / 16, 0);
    const unsigned x_b = block_at<D>((scores ? S::K_AT : S::V_AT) + lane_start_b<D>(), col / 16, 0);
    const unsigned sum_a = block_at<B_c>((scores ? S::P_AT : S::DS_AT) + lane_start_b<B_c>(), 0, sum_row / 16);
    const unsigned sum_b = block_at<D>((scores ? S::DO_AT : S::Q_AT) + lane_start<D>(), 0, sum_col / 16);
    const unsigned dq_a = block_at<B_c>(S::DS_AT + lane_start<B_c>(), row / 16, 0);
    const unsigned dq_b = block_at<D>(S::K_AT + lane_start<D>(), 0, sum_col / 16);
    const unsigned pairs = S::P_AT + first_pair<B_c>(row, col);
    const int64_t seed = S::OPTIONS ? seed_of(a.dropout) : 0;

    // The score warps copy: a tile of rows, along with one number per row
    using Loader = TileLoader<T, D, S::HALF, true>;
    const auto load = [&](Tile tile, const void* source, const RowStrides& strides, int to, const float* from,
                          float* numbers_to) {
        const int rows = block.rows(tile), r = threadIdx.x;
        Loader(block.rows_of(static_cast<const T*>(source), strides, tile), strides.row, a.head_dim)
            .template load<B_r>(shared + to, rows);
        if (r < B_r)
            cp_async_zfill<4>(numbers_to + r,
                              from + numbers.at(a, block.sequence, block.head(tile), tile.q_start) + min(r, rows - 1),
                              r < rows);
    };
    const auto load_query = [&](Tile tile, int i) {
        load(tile, a.query, a.query_strides, S::Q_AT + i % 2 * S::Q_TILE, numbers.lse, lse_rows + i % 2 * B_r);
    };
    const auto load_grad_out = [&](Tile tile) {
        load(tile, g.grad_out, g.grad_out_strides, S::DO_AT, numbers.delta, delta_rows);
    };
    const auto load_keys = [&](const void* source, const RowStrides& strides, int to) {
        Loader(block.keys_of(static_cast<const T*>(source), strides), strides.row, a.head_dim)
            .template load<B_c>(shared + to, block.keys);
    };

    float sum[S::SUM_ROWS / 16][S::SUM_COLS / 8][4];  // dV or dK
    clear(sum);

    // ---- Phases. The loop owns the registers of the GEMMs, which makes their lifetimes visible.

    // S = Q K^T; now: which of the two tiles of Q
    const auto compute_scores = [&](float (&s)[M][N][4], unsigned now) {
        clear(s);
        multiply<false, false, D, D, D>(s, shared, x_a + now, x_b);
    };
    // P = exp(scale S - lse). lse: starts at this lane's first row
    const auto compute_weights = [&](const float (&s)[M][N][4], Tile tile, const float* lse) {
        const int first_row = row + lane / 4, first_key = col + lane % 4 * 2;
        const auto seen = [&](int r) {
            const auto range = block.seen(tile, first_row + r);
            return KeyRange{range.begin - first_key, range.end - first_key};
        };
        if constexpr (S::OPTIONS)
            weigh_with_options<S::W_AT - S::P_AT>(shared, pairs, s, lse, block, tile, row, col, seed);
        else if (block.hides(tile))
            store_weights<true>(shared, pairs, s, lse, a.scale * LOG2_E, seen);
        else
            store_weights<false>(shared, pairs, s, lse, a.scale * LOG2_E, seen);
    };
    // dK += dS^T Q, dQ += dS K of the previous tile; before: which of the two tiles of Q
    const auto add_dK_dQ = [&](float (&dq)[M][DQ_COLS / 8][4], Tile tile, unsigned before) {
        multiply<true, true, B_c, D, B_r>(sum, shared, sum_a, sum_b + before);
        const Tile late = block.before(tile);
        const int rows = block.rows(late) - row;
        const int64_t at = numbers.at(a, block.sequence, block.head(late), late.q_start + row);
        float* target = g.workspace + QuerySum<D>::at(at / 16, sum_col / 8, lane);
        UNROLL
        for (int c = 0; c < S::SUM_COLS; c += DQ_COLS) {
            clear(dq);
            multiply<false, true, B_c, D, B_c>(dq, shared, dq_a, block_at<D>(dq_b, 0, c / 16));
            UNROLL
            for (int n = 0; n < M; ++n) {
                if (16 * n >= rows) continue;
                UNROLL
                for (int j = 0; j < DQ_COLS / 8; ++j)
                    QuerySum<D>::add(target + (n * D / 8 + c / 8 + j) * QuerySum<D>::TILE, dq[n][j]);
            }
        }
    };
    // dV += P^T dO
    const auto add_dV = [&] { multiply<true, true, B_c, D, B_r>(sum, shared, sum_a, sum_b); };
    // dP = dO V^T, dS = P * (dP - delta)
    const auto compute_dS = [&](float (&dp)[M][N][4], Tile tile) {
        clear(dp);
        multiply<false, false, D, D, D>(dp, shared, x_a, x_b);
        if constexpr (S::OPTIONS) {
            if (a.dropout.seed != nullptr)
                for_each_16x16(M, N, a.dropout, seed, block.place.number * a.heads + block.head(tile),
                               tile.q_start + row, place.start + col, [&](int m, int n, const Kept<false>& kept) {
                    UNROLL
                    for (int i = 0; i < 8; ++i) dp[m][n + i / 4][i % 4] *= kept(i / 4, i % 4) ? a.dropout.factor : 0.0f;
                });
            store_dS<S::DS_AT - S::W_AT>(shared + S::W_AT - S::P_AT, pairs, dp, delta_rows + row + lane / 4);
        } else {
            store_dS<S::DS_AT - S::P_AT>(shared, pairs, dp, delta_rows + row + lane / 4);
        }
    };

    // ---- The loop

    Tile tile = block.first();
    if (scores && tiles > 0) {
        load_keys(a.key, a.key_strides, S::K_AT);
        load_keys(a.value, a.value_strides, S::V_AT);
        load_query(tile, 0);
    }
    NO_UNROLL
    for (int i = 0; i <= tiles; ++i, tile = block.after(tile)) {
        const bool more = i < tiles;
        const unsigned now = i % 2 * S::Q_TILE, before = S::Q_TILE - now;
        meet();  // Q(i) has arrived, and dS(i-1)
        if (scores && more) {
            load_grad_out(tile);
            float s[M][N][4];
            compute_scores(s, now);
            compute_weights(s, tile, lse_rows + i % 2 * B_r + row + lane / 4);
        }
        if (!scores && i > 0) {
            float dq[M][DQ_COLS / 8][4];
            add_dK_dQ(dq, tile, before);
        }
        meet();  // dO(i) has arrived, and P(i)
        if (!more) break;
        if (scores) {
            if (i + 1 < tiles) load_query(block.after(tile), i + 1);
            add_dV();
        } else {
            float dp[M][N][4];
            compute_dS(dp, tile);
        }
    }

    // ---- Stages dK and dV in the tiles of K and V, so that stores are 16 bytes wide.
    const float factor = scores ? a.dropout.factor : a.scale;
    const unsigned first = (scores ? S::V_AT : S::K_AT) + first_pair<D>(sum_row, sum_col);
    bool nan = false;
    UNROLL
    for (int i = 0; i < S::SUM_ROWS / 16; ++i) nan |= attention::has_nan(sum[i]);
    if (nan) atomicOr(numbers.nan(), 1);
    UNROLL
    for (int n = 0; n < S::SUM_ROWS / 16 * S::SUM_COLS / 8 * 2; ++n) {
        const int half = n % 2, j = n / 2 % (S::SUM_COLS / 8), m = n / 2 / (S::SUM_COLS / 8);
        const float* d = &sum[m][j][2 * half];
        pair_at<D>(shared, first, m, j, half) = pack<T>(d[0] * factor, d[1] * factor);
    }
    __syncthreads();
    for (int n = threadIdx.x; n < 2 * B_c * D / 8; n += S::THREADS) {
        const int r = n / (D / 8) % B_c, chunk = n % (D / 8), of_value = n / (D / 8) / B_c;
        if (r >= block.keys || chunk * 8 >= a.head_dim) continue;
        const T* from = swizzled<D>(shared + S::K_AT + of_value * S::K_TILE, r, chunk);
        T* to = block.keys_of(static_cast<T*>(of_value ? g.grad_value : g.grad_key), g.grad_key_strides);
        *reinterpret_cast<uint4*>(to + r * g.grad_key_strides.row + chunk * 8) = *reinterpret_cast<const uint4*>(from);
    }
}

// ----------------------------------------------------------------------------------------------- 4. Launcher

template <class S>
bool launch_by_mma(const FlashGradients& g, bool dry) {
    using T = typename S::T;
    if (S::BYTES > device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) return false;
    if (dry) return true;
    const BackwardSpace space(g, BackwardKernel::MMA);
    const RowNumbers numbers(g, space, LOG2_E);
    launch_row_numbers<T>(g, numbers, space, true);
    launch_key_blocks<B_c>(flash_backward_kernel<S>, S::THREADS, S::BYTES, g, numbers);
    launch_convert<T, S::D, SumOrder::TILES>(g, numbers, space.nan(g));
    launch_seen_gradients<T>(g, numbers, space.nan(g));
    return true;
}

// Whether it supports the call: rows in 16-byte pieces, and enough shared memory. With OPTIONS fewer blocks share an
// SM, since they need more registers.
template <typename T>
bool backward_by_mma(const FlashGradients& g, bool dry) {
    const FlashArguments& a = g.forward;
    if (!in_pieces<T>(g)) return false;
    check_row_count(a);
    const bool options = a.mask.kind != MaskKind::NONE || a.softcap > 0 || a.dropout.seed != nullptr;
    if (a.head_dim <= 64)  // 65 KB of shared memory with OPTIONS, 57 KB without
        return options ? launch_by_mma<Shape<T, 64, 64, 2, 1, 2, true>>(g, dry)
                       : launch_by_mma<Shape<T, 64, 64, 2, 1, 3, false>>(g, dry);
    if (a.head_dim <= 128)  // 105 KB, 97 KB; or 51 KB
        return (options ? launch_by_mma<Shape<T, 128, 64, 2, 2, 1, true>>(g, dry)
                        : launch_by_mma<Shape<T, 128, 64, 2, 2, 2, false>>(g, dry)) ||
               launch_by_mma<Shape<T, 128, 16, 1, 2, 1, true>>(g, dry);
    return options ? launch_by_mma<Shape<T, 256, 64, 2, 2, 1, true>>(g, dry)  // 185 KB, 177 KB
                   : launch_by_mma<Shape<T, 256, 64, 2, 2, 1, false>>(g, dry);
}
