// flash_backward_fp32.cu - attention gradients in float32, without tensor cores.
//
//   1. Shapes        Fp32Gradients                 sizes derived from B_r, B_c and D; shared memory
//   2. Multiplying   rows_times_rows, turned_times_rows, times_rows       A B^T, A^T B, A B
//   3. Kernel        flash_backward_fp32_kernel    layout, phases, main loop
//   4. Launcher      flash_backward_fp32           picks the shape that fits
//
// The algorithm is that of flash_backward_mma.cuh; read that first. Here each half is 128 threads, and both halves
// share dQ, each with its own rows. The loop, tile by tile:
//
//                  half 0                                  half 1
//       barrier    Q(i) has arrived, and dS(i-1)
//       phase 1    compute_scores   S(i) = Q(i) K^T        add_dK       dK += dS(i-1)^T Q(i-1)
//                  compute_weights  P(i)
//                  add_dQ           dQ(i-1) += dS(i-1) K   add_dQ       the other rows
//       barrier    dO(i) has arrived, and P(i)
//       phase 2    add_dV           dV += P(i)^T dO(i)     compute_dS   dP(i) = dO(i) V^T, dS(i)
//
// The cost of a GEMM is reading its operands from shared memory: a thread uses every number of a row of A and a row of
// B several times. It owns a piece of the result, X_ROWS x X_COLS and so on below, and the threads of a half form a
// grid of 8 x 16, of which a warp is 4 x 8. Thread (r, c) owns
//
//   S, dP      rows r + 8 i                      columns c + 16 j                      (queries, keys)
//   dV, dK     rows 4 r + 32 i + 0 ... 3         columns 4 c + 64 j + 0 ... 3          (keys, head_dim)
//   dQ         rows r + 8 i of its half          columns 4 c + 64 j + 0 ... 3          (queries, head_dim)
//
// All reads are 16 bytes wide: 4 columns that are multiplied one after another (A B^T), or 4 neighbors that the thread
// owns. The lanes of a warp read at most 8 different pieces at a time, in different banks.
//
// dQ is accumulated by atomic additions in grad_query itself, so its last bits may differ from run to run, except with
// FlashGradients::deterministic. (A separate kernel for dQ would have to recompute S and dP: seven GEMMs instead of
// five.)
//
// Measurements: README.md; what didn't work: notes/.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/check.h"
#include "common/cuda/cp_async.cuh"
#include "common/cuda/exp2.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/row_pieces.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_backward.cuh"
#include "common/kernels/flash/flash_rows.cuh"
#include "common/kernels/flash/flash_seen_gradients.cuh"

// ------------------------------------------------------------------------------------------------- 1. Shapes

constexpr int THREAD_ROWS = 8, THREAD_COLS = 16, HALF = THREAD_ROWS * THREAD_COLS, THREADS = 2 * HALF;

template <int D_, int B_r_, int B_c_, int BLOCKS_>
struct Fp32Gradients {
    static constexpr int D = D_, B_r = B_r_, B_c = B_c_, BLOCKS = BLOCKS_;           // BLOCKS share an SM
    static constexpr int X_ROWS = B_r / THREAD_ROWS, X_COLS = B_c / THREAD_COLS;     // of S or dP, per thread
    static constexpr int SUM_ROWS = B_c / THREAD_ROWS, SUM_COLS = D / THREAD_COLS;   // of dV or dK, per thread
    static constexpr int DQ_ROWS = B_r / 2 / THREAD_ROWS, DQ_COLS = D / THREAD_COLS;  // of dQ, per thread
    static_assert(B_r % 16 == 0 && B_r <= THREADS && B_c % 32 == 0 && D % 64 == 0);

    // Shared memory, in floats. Rows are padded by 4 beyond D: when 8 rows are read in the same columns, each starts 4
    // banks later; and by 8 beyond B_c: when 4 rows are written in 8 columns, each starts 8 banks later.
    static constexpr int STRIDE = D + 4, P_STRIDE = B_c + 8;
    static constexpr int Q_TILE = B_r * STRIDE, K_TILE = B_c * STRIDE, P_TILE = B_r * P_STRIDE;
    static constexpr int K_AT = 0;                     // K [B_c][STRIDE]
    static constexpr int V_AT = K_AT + K_TILE;         // V [B_c][STRIDE]
    static constexpr int Q_AT = V_AT + K_TILE;         // Q [2][B_r][STRIDE]
    static constexpr int DO_AT = Q_AT + 2 * Q_TILE;    // dO [B_r][STRIDE]
    static constexpr int P_AT = DO_AT + Q_TILE;        // P [B_r][P_STRIDE]
    static constexpr int DS_AT = P_AT + P_TILE;        // dS [B_r][P_STRIDE]
    static constexpr int LSE_AT = DS_AT + P_TILE;      // lse [2][B_r]
    static constexpr int DELTA_AT = LSE_AT + 2 * B_r;  // delta [B_r]
    static constexpr int BYTES = (DELTA_AT + B_r) * sizeof(float);
};

// ------------------------------------------------------------------------------------------- 2. Multiplying

// a, b and d point to the start of the pieces of A, B and D that a thread owns; their layout is described above.

template <int ROWS, int COLS>
__device__ __forceinline__ void clear(float (&d)[ROWS][COLS]) {
    UNROLL
    for (int i = 0; i < ROWS * COLS; ++i) d[i / COLS][i % COLS] = 0.0f;
}

// d = A B^T: S = Q K^T, dP = dO V^T.    A [..][K], B [..][K], rows STRIDE floats apart
template <int K, int STRIDE, int ROWS, int COLS>
__device__ __forceinline__ void rows_times_rows(float (&d)[ROWS][COLS], const float* a, const float* b) {
    clear(d);
    UNROLL_BY(2)
    for (int k = 0; k < K; k += 4) {
        float4 y[COLS];
        UNROLL
        for (int j = 0; j < COLS; ++j) y[j] = four_at(b + THREAD_COLS * j * STRIDE + k);
        UNROLL
        for (int i = 0; i < ROWS; ++i) {
            const float4 x = four_at(a + THREAD_ROWS * i * STRIDE + k);
            UNROLL
            for (int j = 0; j < COLS; ++j) {
                d[i][j] += x.x * y[j].x;
                d[i][j] += x.y * y[j].y;
                d[i][j] += x.z * y[j].z;
                d[i][j] += x.w * y[j].w;
            }
        }
    }
}

// y = what the thread needs of a row of B; d += x * y.
template <int COLS>
__device__ __forceinline__ void load_row(float4 (&y)[COLS / 4], const float* b) {
    UNROLL
    for (int j = 0; j < COLS / 4; ++j) y[j] = four_at(b + 4 * THREAD_COLS * j);
}
template <int COLS>
__device__ __forceinline__ void add_row(float (&d)[COLS], float x, const float4 (&y)[COLS / 4]) {
    UNROLL
    for (int j = 0; j < COLS / 4; ++j) {
        d[4 * j] += x * y[j].x;
        d[4 * j + 1] += x * y[j].y;
        d[4 * j + 2] += x * y[j].z;
        d[4 * j + 3] += x * y[j].w;
    }
}

// d += A^T B: dV += P^T dO, dK += dS^T Q.    A [K][..], B [K][..]
template <int K, int A_STRIDE, int B_STRIDE, int ROWS, int COLS>
__device__ __forceinline__ void turned_times_rows(float (&d)[ROWS][COLS], const float* a, const float* b) {
    UNROLL_BY(4)
    for (int k = 0; k < K; ++k) {
        float4 y[COLS / 4];
        load_row<COLS>(y, b + k * B_STRIDE);
        UNROLL
        for (int i = 0; i < ROWS; i += 4) {
            const float4 x = four_at(a + k * A_STRIDE + THREAD_ROWS * i);
            add_row(d[i], x.x, y);
            add_row(d[i + 1], x.y, y);
            add_row(d[i + 2], x.z, y);
            add_row(d[i + 3], x.w, y);
        }
    }
}

// d = A B: dQ = dS K.    A [..][K], B [K][..]
template <int K, int A_STRIDE, int B_STRIDE, int ROWS, int COLS>
__device__ __forceinline__ void times_rows(float (&d)[ROWS][COLS], const float* a, const float* b) {
    clear(d);
    UNROLL_BY(2)
    for (int k = 0; k < K; k += 4) {
        float4 x[ROWS], y[COLS / 4];
        UNROLL
        for (int i = 0; i < ROWS; ++i) x[i] = four_at(a + THREAD_ROWS * i * A_STRIDE + k);
        UNROLL
        for (int n = 0; n < 4; ++n) {
            load_row<COLS>(y, b + (k + n) * B_STRIDE);
            UNROLL
            for (int i = 0; i < ROWS; ++i)
                add_row(d[i], n == 0 ? x[i].x : n == 1 ? x[i].y : n == 2 ? x[i].z : x[i].w, y);
        }
    }
}

// target[0 .. 4) += x up to the end of the row. PLAIN: in one 16-byte atomic, on GPUs that have one.
template <bool PLAIN>
__device__ __forceinline__ void add_four(float* target, float4 x, int left) {
#if !defined(CUDA_SIMULATOR) && __CUDA_ARCH__ >= 900
    if constexpr (PLAIN) {
        if (left > 0) atomicAdd(reinterpret_cast<float4*>(target), x);
        return;
    }
#endif
    const float xs[4] = {x.x, x.y, x.z, x.w};
    UNROLL
    for (int i = 0; i < 4; ++i)
        if (i < left) atomicAdd(target + i, xs[i]);
}

// ------------------------------------------------------------------------------------------------- 3. Kernel

// PLAIN: no mask, and all rows are 16-byte aligned.
template <class S, bool PLAIN>
__global__ void __launch_bounds__(THREADS, S::BLOCKS)
    flash_backward_fp32_kernel(const FlashGradients gradients, const RowNumbers row_numbers, int key_tile) {
    constexpr int D = S::D, B_r = S::B_r, B_c = S::B_c, STRIDE = S::STRIDE, P_STRIDE = S::P_STRIDE;
    const FlashArguments& f = gradients.forward;
    extern __shared__ __align__(16) float shared[];
    using Tile = typename KeyBlock<B_r, B_c>::Tile;
    const KeyBlock<B_r, B_c> block(f, KeyBlock<B_r, B_c>::place_of(f, key_tile));
    const int tiles = block.tiles;

    const int half = threadIdx.x / HALF;  // 0: S, P, dV; 1: dP, dS, dK; both: dQ
    const int warp = threadIdx.x % HALF / 32, lane = threadIdx.x % 32;
    // Lanes 0 and 1 are below one another in the grid, and so are 2 and 3: see
    // common/kernels/gemm/step3_no_conflicts.cu
    const int r = warp / 2 * 4 + lane % 2 + lane / 16 * 2, c = warp % 2 * 8 + lane / 2 % 8;

    // A tile of rows, with each row's number in [batch, heads, S_q]
    const auto load = [&](Tile tile, const void* source, const RowStrides& strides, float* to, const float* numbers,
                          float* numbers_to) {
        const int rows = block.rows(tile), n = threadIdx.x;
        load_rows<B_r, D, STRIDE, THREADS, PLAIN>(to, block.rows_of(static_cast<const float*>(source), strides, tile),
                                                  strides.row, rows, f.head_dim);
        if (n < B_r)
            cp_async_zfill<4>(
                numbers_to + n,
                numbers + row_numbers.at(f, block.sequence, block.head(tile), tile.q_start) + min(n, rows - 1), n < rows);
    };
    const auto load_query = [&](Tile tile, int i) {
        load(tile, f.query, f.query_strides, shared + S::Q_AT + i % 2 * S::Q_TILE, row_numbers.lse,
             shared + S::LSE_AT + i % 2 * B_r);
    };
    const auto load_grad_out = [&](Tile tile) {
        load(tile, gradients.grad_out, gradients.grad_out_strides, shared + S::DO_AT, row_numbers.delta,
             shared + S::DELTA_AT);
    };

    float sum[S::SUM_ROWS][S::SUM_COLS];  // dV or dK
    clear(sum);
    Tile tile = block.first();
    if (tiles > 0) {
        const auto load_keys = [&](const void* source, const RowStrides& strides, float* to) {
            load_rows<B_c, D, STRIDE, THREADS, PLAIN>(to, block.keys_of(static_cast<const float*>(source), strides),
                                                      strides.row, block.keys, f.head_dim);
        };
        load_keys(f.key, f.key_strides, shared + S::K_AT);
        load_keys(f.value, f.value_strides, shared + S::V_AT);
        load_query(tile, 0);
    }
    float* p_own = shared + S::P_AT + r * P_STRIDE + c;
    float* ds_own = shared + S::DS_AT + r * P_STRIDE + c;

    // ---- Phases. The loop owns the registers of the GEMMs, which makes their lifetimes visible.

    // S = Q K^T, without the scale; now: which of the two tiles of Q
    const auto compute_scores = [&](float (&s)[S::X_ROWS][S::X_COLS], int now) {
        rows_times_rows<D, STRIDE>(s, shared + S::Q_AT + now + r * STRIDE, shared + S::K_AT + c * STRIDE);
    };
    // dK += dS^T Q of the previous tile; before: which of the two tiles of Q
    const auto add_dK = [&](int before) {
        turned_times_rows<B_r, P_STRIDE, STRIDE>(sum, shared + S::DS_AT + 4 * r, shared + S::Q_AT + before + 4 * c);
    };
    // dQ += dS K of that tile
    const auto add_dQ = [&](float (&dq)[S::DQ_ROWS][S::DQ_COLS], Tile tile) {
        const int first = half * B_r / 2 + r;
        times_rows<B_c, P_STRIDE, STRIDE>(dq, shared + S::DS_AT + first * P_STRIDE, shared + S::K_AT + 4 * c);
        const Tile late = block.before(tile);
        const int rows = block.rows(late);
        float* target = block.rows_of(static_cast<float*>(gradients.grad_query), f.out_strides, late);
        UNROLL
        for (int n = 0; n < S::DQ_ROWS; ++n) {
            const int row = first + 8 * n;
            if (row >= rows) continue;
            UNROLL
            for (int m = 0; m < S::DQ_COLS; m += 4)
                add_four<PLAIN>(target + row * f.head_dim + 4 * c + 16 * m,
                                make_float4(dq[n][m] * f.scale, dq[n][m + 1] * f.scale, dq[n][m + 2] * f.scale,
                                            dq[n][m + 3] * f.scale),
                                f.head_dim - 4 * c - 16 * m);
        }
    };
    // dV += P^T dO
    const auto add_dV = [&] {
        turned_times_rows<B_r, P_STRIDE, STRIDE>(sum, shared + S::P_AT + 4 * r, shared + S::DO_AT + 4 * c);
    };
    // dP = dO V^T, dS = P * (dP - delta)
    const auto compute_dS = [&](float (&dp)[S::X_ROWS][S::X_COLS]) {
        rows_times_rows<D, STRIDE>(dp, shared + S::DO_AT + r * STRIDE, shared + S::V_AT + c * STRIDE);
        const float* delta = shared + S::DELTA_AT + r;
        UNROLL
        for (int n = 0; n < S::X_ROWS * S::X_COLS; ++n) {
            const int row = 8 * (n / S::X_COLS), at = row * P_STRIDE + 16 * (n % S::X_COLS);
            ds_own[at] = p_own[at] * (dp[n / S::X_COLS][n % S::X_COLS] - delta[row]);
        }
    };

    // ---- The loop

    NO_UNROLL
    for (int i = 0; i <= tiles; ++i, tile = block.after(tile)) {
        const bool more = i < tiles;
        const int now = i % 2 * S::Q_TILE, before = S::Q_TILE - now;
        cp_async_wait_all();
        __syncthreads();  // Q(i) has arrived, and dS(i-1)
        if (more) load_grad_out(tile);
        if (half == 0 && more) {
            float s[S::X_ROWS][S::X_COLS];
            compute_scores(s, now);
            const bool has_mask = !PLAIN && f.mask.kind != MaskKind::NONE;
            const AttentionMask mask = has_mask ? block.mask(tile, 0, 0) : AttentionMask();
            const int rows = block.rows(tile);
            const float* lse = shared + S::LSE_AT + i % 2 * B_r + r;
            // P = exp(scale S - lse), with the mask tensor if there is one. EDGE: some keys are hidden
            const auto compute_weights = [&]<bool EDGE>() {
                UNROLL
                for (int n = 0; n < S::X_ROWS; ++n) {
                    const int row = r + 8 * n, seen = EDGE ? block.seen(tile, row).end : B_c;
                    const float row_lse = lse[8 * n];
                    UNROLL
                    for (int m = 0; m < S::X_COLS; ++m) {
                        const int key = c + 16 * m;
                        float x = s[n][m] * f.scale;
                        if (has_mask && row < rows && key < block.keys) x = masked_score(x, mask, 0, row, key);
                        p_own[8 * n * P_STRIDE + 16 * m] = key >= seen ? 0.0f : exp2_approx((x - row_lse) * LOG2_E);
                    }
                }
            };
            if (!PLAIN || block.hides(tile))
                compute_weights.template operator()<true>();
            else
                compute_weights.template operator()<false>();
        }
        if (half == 1 && i > 0) add_dK(before);
        if (i > 0) {
            float dq[S::DQ_ROWS][S::DQ_COLS];
            add_dQ(dq, tile);
        }
        cp_async_wait_all();
        __syncthreads();  // dO(i) has arrived, and P(i)
        if (!more) break;
        if (i + 1 < tiles) load_query(block.after(tile), i + 1);
        if (half == 0) {
            add_dV();
        } else {
            float dp[S::X_ROWS][S::X_COLS];
            compute_dS(dp);
        }
    }

    const float factor = half == 0 ? 1.0f : f.scale;
    float* target = block.keys_of(static_cast<float*>(half == 0 ? gradients.grad_value : gradients.grad_key),
                                  gradients.grad_key_strides);
    UNROLL
    for (int n = 0; n < S::SUM_ROWS; ++n) {
        const int row = 4 * r + n / 4 * 32 + n % 4;
        if (row >= block.keys) continue;
        UNROLL
        for (int m = 0; m < S::SUM_COLS; m += 4)
            store_four<PLAIN>(
                target + row * f.head_dim + 4 * c + 16 * m,
                make_float4(sum[n][m] * factor, sum[n][m + 1] * factor, sum[n][m + 2] * factor, sum[n][m + 3] * factor),
                f.head_dim - 4 * c - 16 * m);
    }
}

// ----------------------------------------------------------------------------------------------- 4. Launcher

template <class S, bool PLAIN>
static void launch(const FlashGradients& g, const RowNumbers& numbers) {
    launch_key_blocks<S::B_c>(flash_backward_fp32_kernel<S, PLAIN>, THREADS, S::BYTES, g, numbers);
}

// Launches the largest shape that fits; calls that are not PLAIN use at most the middle one. SMALL fits in 64 KB.
template <class LARGE, class MIDDLE, class SMALL>
static void launch_largest(const FlashGradients& g, const RowNumbers& numbers, bool plain) {
    const int limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    static_assert(SMALL::BYTES <= 64 * 1024);
    if (MIDDLE::BYTES > limit) return launch<SMALL, false>(g, numbers);
    if (!plain) return launch<MIDDLE, false>(g, numbers);
    LARGE::BYTES > limit ? launch<MIDDLE, true>(g, numbers) : launch<LARGE, true>(g, numbers);
}

void flash_backward_fp32(const FlashGradients& g) {
    const FlashArguments& f = g.forward;
    check_row_count(f);
    const bool vectors = in_pieces<float>(g), plain = vectors && f.mask.kind == MaskKind::NONE;
    const BackwardSpace space(g, BackwardKernel::FP32);
    const RowNumbers numbers(g, space, 1);
    launch_row_numbers<float>(g, numbers, space, vectors);
    CUDA_CHECK(cudaMemsetAsync(g.grad_query, 0, f.batch * f.heads * f.S_q * f.head_dim * sizeof(float), f.stream));
    // 188, 78 and 53 KB of shared memory; 202, 93 and 63 KB
    const auto run = f.head_dim <= 64 ? launch_largest<Fp32Gradients<64, 64, 128, 1>, Fp32Gradients<64, 32, 64, 2>,
                                                       Fp32Gradients<64, 32, 32, 2>>
                                      : launch_largest<Fp32Gradients<128, 64, 64, 1>, Fp32Gradients<128, 32, 32, 2>,
                                                       Fp32Gradients<128, 16, 32, 2>>;
    run(g, numbers, plain);
    launch_seen_gradients<float>(g, numbers, nullptr);
}
