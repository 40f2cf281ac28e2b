// flash_backward_mma.cu - the gradients of attention, float16 and bfloat16 on tensor cores.
//
//   1. Shapes      Shape                        what a block and a warp own; shared memory
//   2. Between     store_weights, store_dS      S -> P and dP -> dS, between the products
//   3. Kernel      flash_backward_kernel        where everything lies; its phases; the loop
//   4. Launcher    flash_backward_fp16, flash_backward_bf16
//
//   flash_backward.cuh    which tiles a block has; delta
//   flash_query_sum.cuh   dQ, which many blocks add to
//   common/cuda/          flash_products.cuh: the products, from shared memory to registers and back; flash_tiles.cuh:
//                         tiles in shared memory
//
// The algorithm (Dao 2023, "FlashAttention-2", arXiv:2307.08691, Algorithm 2). The forward pass left, for every row,
// lse = log(sum of exp(score)); with it P = exp(score - lse) comes in one go, tile by tile, without the online softmax.
// A block has B_c keys, K and V and their gradients, and walks over the rows of Q in tiles of B_r:
//
//   S  = scale Q K^T                 dV += P^T dO
//   P  = exp(S - lse)                dK += scale dS^T Q
//   dP = dO V^T                      dQ += scale dS K           in global memory, since other blocks add to it, too
//   dS = P * (dP - delta)
//
// dK and dV stay in registers to the end, also while the block goes from one query head to the next that shares its
// K/V head: only dQ needs atomic additions. Rows that saw no key have lse = -infinity, and P = 0.
//
// Who does what. Half of the warps compute S, P and dV, the other half dP, dS, dK and dQ. So a warp holds a piece of dV
// or of dK and not of both, twice as large, and larger pieces need fewer reads from shared memory for the same work;
// reading is what would limit this kernel otherwise. The halves meet at two barriers per tile i. This is the loop:
//
//                    score warps                           gradient warps
//       meet()       Q(i) is here, and dS(i-1)
//       phase 1      find_scores    S(i) = Q(i) K^T        add_dK_dQ    dK += dS(i-1)^T Q(i-1), dQ(i-1) += dS(i-1) K
//                    find_weights   P(i)
//       meet()       dO(i) is here, and P(i)
//       phase 2      add_dV         dV += P(i)^T dO(i)     find_dS      dP(i) = dO(i) V^T, dS(i)
//
// so that dK and dQ are one tile late; both halves have products to make in both phases, and powers and differences of
// one half are computed while the tensor cores work for the other. dO(i) is copied during phase 1, Q(i+1) during phase
// 2, hence two tiles of Q and one of dO.
//
// All operands of the five products are tiles in shared memory, rows as they came from global memory; where a product
// wants one turned over, ldmatrix.trans turns it on the way.
//
// Measured, and what was tried: README.md.
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
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_backward.cuh"
#include "common/kernels/flash/flash_host.h"
#include "common/kernels/flash/flash_query_sum.cuh"
#include "common/kernels/flash/flash_seen_gradients.cuh"

using namespace flash;  // TileLoader, lane_start, block_at, multiply, first_pair, pair_at
using namespace mma;    // clear, pack, unpack, swizzled

// ------------------------------------------------------------------------------------------------- 1. Shapes
//
// The warps of a half stand in a grid of WARP_ROWS x WARP_COLS over each of their products:
//
//                         block         warp, D = 64 (2 x 1)    D = 128 (2 x 2)
//     S, dP               64 x 64           32 x 64                 32 x 32
//     dV, dK              64 x D            32 x 64                 32 x 64
//     dQ, 32 columns      64 x D            32 x 32, twice          32 x 32, twice
//     at a time
//
// BLOCKS share a multiprocessor: while one waits at a barrier, the others compute.

constexpr int B_c = 64, DQ_COLS = 32;

template <typename T_, int D_, int B_r_, int WARP_ROWS_, int WARP_COLS_, int BLOCKS_>
struct Shape {
    using T = T_;
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
    static constexpr int P_AT = DO_AT + Q_TILE;      // P [B_r][B_c]
    static constexpr int DS_AT = P_AT + P_TILE;      // dS [B_r][B_c]
    static constexpr int ROWS_AT = DS_AT + P_TILE;   // float: lse [2][B_r], delta [B_r]
    static constexpr int BYTES = ROWS_AT * sizeof(T) + 3 * B_r * sizeof(float);
};

// ------------------------------------------------------------------------------------------------ 2. Between

// P = exp(factor * s - lse), rounded to T, to shared memory. lse: from the lane's first row on. Hidden keys get 0 if
// EDGE: row r of the lane's (0, 8, 16, ...) may see seen(r) keys from the lane's first one on.
template <bool EDGE, typename T, int M, int N, typename Seen>
__device__ __forceinline__ void store_weights(T* shared, unsigned first, const float (&s)[M][N][4], const float* lse,
                                              float factor_log2, Seen seen) {
    UNROLL
    for (int i = 0; i < 2 * M; ++i) {
        const int half = i % 2, r = 8 * i, end = EDGE ? seen(r) : 0;
        const float shift = lse[r] == -INFINITY ? -INFINITY : -lse[r] * LOG2_E;
        UNROLL
        for (int j = 0; j < N; ++j) {
            float p[2];
            UNROLL
            for (int e = 0; e < 2; ++e) {
                p[e] = exp2_approx(s[i / 2][j][2 * half + e] * factor_log2 + shift);
                if (EDGE && 8 * j + e >= end) p[e] = 0;
            }
            pair_at<B_c>(shared, first, i / 2, j, half) = pack<T>(p[0], p[1]);
        }
    }
}

// dS = P * (dp - delta), rounded to T; P is read from where the score warps put it, dS goes DISTANCE further.
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

// ------------------------------------------------------------------------------------------------- 3. Kernel

// All copies that this thread has asked for are here, and everybody is.
__device__ __forceinline__ void meet() {
    cp_async_wait_all();
    __syncthreads();
}

// PLAIN: there is no mask, and all rows are aligned to 16 bytes.
template <class S, bool PLAIN>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    flash_backward_kernel(const FlashGradients gradients, int key_tile) {
    using T = typename S::T;
    constexpr int D = S::D, B_r = S::B_r, M = S::ROWS / 16, N = S::COLS / 8;
    const FlashArguments& f = gradients.forward;
    extern __shared__ __align__(128) unsigned char bytes[];
    T* shared = reinterpret_cast<T*>(bytes);
    float* lse_rows = reinterpret_cast<float*>(shared + S::ROWS_AT);  // [2][B_r]
    float* delta_rows = lse_rows + 2 * B_r;                           // [B_r]
    const KeyBlock<B_r, B_c> block(f, key_tile);
    using Tile = typename KeyBlock<B_r, B_c>::Tile;
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

    // The score warps copy. A tile of rows, with the number that each row has in [batch, heads, S_q]
    using Loader = TileLoader<T, D, S::HALF, PLAIN>;
    const auto load = [&](Tile tile, const void* source, const RowStrides& strides, int to, const float* numbers,
                          float* numbers_to) {
        const int rows = block.rows(tile), r = threadIdx.x;
        Loader(block.template rows_of<T>(source, strides, tile), strides.row, f.head_dim)
            .template load<B_r>(shared + to, rows);
        if (r < B_r)
            cp_async_zfill<4>(numbers_to + r, numbers + block.row_number(tile) + min(r, rows - 1), r < rows);
    };
    const auto load_query = [&](Tile tile, int i) {
        load(tile, f.query, f.query_strides, S::Q_AT + i % 2 * S::Q_TILE, f.lse, lse_rows + i % 2 * B_r);
    };
    const auto load_grad_out = [&](Tile tile) {
        load(tile, gradients.grad_out, gradients.grad_out_strides, S::DO_AT, gradients.delta, delta_rows);
    };

    float sum[S::SUM_ROWS / 16][S::SUM_COLS / 8][4];  // dV or dK
    clear(sum);

    // ---- Phases. The registers of a product are the loop's, so that it shows what is alive when.

    // S = Q K^T; now: which of the two tiles of Q
    const auto find_scores = [&](float (&s)[M][N][4], unsigned now) {
        clear(s);
        multiply<false, false, D, D, D>(s, shared, x_a + now, x_b);
    };
    // The mask tensor, if there is one. Returns what S still has to be multiplied by.
    const auto apply_mask = [&](float (&s)[M][N][4], Tile tile) {
        float factor = f.scale;
        if (!PLAIN && f.mask.kind != MaskKind::NONE) {
            const AttentionMask mask = block.mask(tile, row, col);
            const int rows = block.rows(tile) - row, keys = block.keys - col;
            UNROLL
            for (int n = 0; n < 4 * M * N; ++n) {
                const int q = n / (4 * N) * 16 + d_row(lane, n % 4), k = n / 4 % N * 8 + d_col(lane, n % 4);
                float& x = s[n / (4 * N)][n / 4 % N][n % 4];
                if (q < rows && k < keys) x = masked_score(x * factor, mask, 0, q, k);
            }
            factor = 1;
        }
        return factor;
    };
    // P = exp(factor S - lse). lse: from this lane's first row on; position: of the tile's first row
    const auto find_weights = [&](const float (&s)[M][N][4], Tile tile, const float* lse, int position, float factor) {
        const int at = position + row + lane / 4, first_key = col + lane % 4 * 2;
        const auto seen = [&](int r) { return block.seen(at + r) - first_key; };
        if (!PLAIN || block.hides(tile))
            store_weights<true>(shared, pairs, s, lse, factor * LOG2_E, seen);
        else
            store_weights<false>(shared, pairs, s, lse, factor * LOG2_E, seen);
    };
    // dK += dS^T Q, dQ += dS K of the tile before this one; before: which of the two tiles of Q
    const auto add_dK_dQ = [&](float (&dq)[M][DQ_COLS / 8][4], Tile tile, unsigned before) {
        multiply<true, true, B_c, D, B_r>(sum, shared, sum_a, sum_b + before);
        const Tile late = block.before(tile);
        const int rows = block.rows(late) - row;
        const int64_t head = block.head_number(late);
        float* target =
            gradients.grad_query_sum + QuerySum<D>::at(head, (late.q_start + row) / 16, sum_col / 8, f.S_q, lane);
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
    const auto find_dS = [&](float (&dp)[M][N][4]) {
        clear(dp);
        multiply<false, false, D, D, D>(dp, shared, x_a, x_b);
        store_dS<S::P_TILE>(shared, pairs, dp, delta_rows + row + lane / 4);
    };

    // ---- The loop

    Tile tile = block.first();
    if (scores && tiles > 0) {
        Loader(block.template keys_of<T>(f.key, f.key_strides), f.key_strides.row, f.head_dim)
            .template load<B_c>(shared + S::K_AT, block.keys);
        Loader(block.template keys_of<T>(f.value, f.value_strides), f.value_strides.row, f.head_dim)
            .template load<B_c>(shared + S::V_AT, block.keys);
        load_query(tile, 0);
    }
    NO_UNROLL
    for (int i = 0; i <= tiles; ++i, tile = block.after(tile)) {
        const bool more = i < tiles;
        const unsigned now = i % 2 * S::Q_TILE, before = S::Q_TILE - now;
        meet();  // Q(i) is here, and dS(i-1)
        if (scores && more) {
            load_grad_out(tile);
            float s[M][N][4];
            find_scores(s, now);
            const float factor = apply_mask(s, tile);
            find_weights(s, tile, lse_rows + i % 2 * B_r + row + lane / 4, block.position(tile), factor);
        }
        if (!scores && i > 0) {
            float dq[M][DQ_COLS / 8][4];
            add_dK_dQ(dq, tile, before);
        }
        meet();  // dO(i) is here, and P(i)
        if (!more) break;
        if (scores) {
            if (i + 1 < tiles) load_query(block.after(tile), i + 1);
            add_dV();
        } else {
            float dp[M][N][4];
            find_dS(dp);
        }
    }

    // ---- dK and dV go through the tiles of K and V, so that they are written 16 bytes at a time.
    const float factor = scores ? 1.0f : f.scale;
    const unsigned first = (scores ? S::V_AT : S::K_AT) + first_pair<D>(sum_row, sum_col);
    UNROLL
    for (int n = 0; n < S::SUM_ROWS / 16 * S::SUM_COLS / 8 * 2; ++n) {
        const int half = n % 2, j = n / 2 % (S::SUM_COLS / 8), m = n / 2 / (S::SUM_COLS / 8);
        const float* d = &sum[m][j][2 * half];
        pair_at<D>(shared, first, m, j, half) = pack<T>(d[0] * factor, d[1] * factor);
    }
    __syncthreads();
    for (int n = threadIdx.x; n < 2 * B_c * D / 8; n += S::THREADS) {
        const int r = n / (D / 8) % B_c, chunk = n % (D / 8), of_value = n / (D / 8) / B_c;
        if (r >= block.keys || chunk * 8 >= f.head_dim) continue;
        const T* from = swizzled<D>(shared + S::K_AT + of_value * S::K_TILE, r, chunk);
        T* to = static_cast<T*>(of_value ? gradients.grad_value : gradients.grad_key) +
                (block.key_number() + r) * f.head_dim + chunk * 8;
        if constexpr (PLAIN) {
            *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
        } else {
            for (int d = 0; d < 8 && chunk * 8 + d < f.head_dim; ++d) to[d] = from[d];
        }
    }
}

// ----------------------------------------------------------------------------------------------- 4. Launcher

template <class S, bool PLAIN>
static void launch(const FlashGradients& g, bool vectors) {
    using T = typename S::T;
    const FlashArguments& f = g.forward;
    launch_delta<T>(g, nan_flag(g, false), vectors);
    CUDA_CHECK(cudaMemsetAsync(g.grad_query_sum, 0, query_sum_elements(f, false) * sizeof(float), f.stream));
    launch_key_blocks<B_c>(flash_backward_kernel<S, PLAIN>, S::THREADS, S::BYTES, g);
    launch_convert_sum<T, S::D>(g, vectors);
    launch_seen_gradients<T>(g, delta_numbers(g), nan_flag(g, false));
}

// What is not PLAIN needs more registers, so fewer blocks share a multiprocessor.
template <typename T>
static void backward(const FlashGradients& g) {
    const FlashArguments& f = g.forward;
    check_row_count(f);
    const bool vectors = in_pieces<T>(g), plain = vectors && f.mask.kind == MaskKind::NONE;
    const int shared_limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    if (f.head_dim <= 64)  // 57 KB of shared memory
        plain ? launch<Shape<T, 64, 64, 2, 1, 3>, true>(g, vectors)
              : launch<Shape<T, 64, 64, 2, 1, 2>, false>(g, vectors);
    else if (shared_limit >= Shape<T, 128, 64, 2, 2, 2>::BYTES)  // 97 KB
        plain ? launch<Shape<T, 128, 64, 2, 2, 2>, true>(g, vectors)
              : launch<Shape<T, 128, 64, 2, 2, 1>, false>(g, vectors);
    else  // 49 KB
        launch<Shape<T, 128, 16, 1, 2, 1>, false>(g, vectors);
}

void flash_backward_fp16(const FlashGradients& g) { backward<__half>(g); }

void flash_backward_bf16(const FlashGradients& g) {
    require_bfloat16();
    backward<__nv_bfloat16>(g);
}
