// flash_attention_3xfp16.cu - float32 on tensor cores with the precision of float32, forward.
//
//   1. Shapes        SplitShape            sizes derived from head_dim; layout of shared memory
//   2. Multiplying   multiply_qk           S = Q K^T for one tile
//                    multiply_pv           O += P V
//   3. Softmax       scale_scores, hide_keys, weigh, scale_weights
//   4. Kernel        flash_3xfp16_kernel   the loop over the tiles
//   5. Launcher      flash_forward_3xfp16
//
// Differences from the kernel without tensor cores (flash_attention_fp32.cu):
//
//   1. Every number is the sum of two halves, and three mma replace one product: flash_split.cuh. K and V are split
//      once per block, on arrival in shared memory; Q once overall; P in registers.
//   2. Rows of Q, K, V and P are scaled by powers of two to the range of halves. A score is divided by the scales of
//      its query and its key; the scales of V's rows are folded into P.
//   3. S and P stay in registers: the accumulators of S are already where P V needs them.
//
// Errors are relative to a row of V: a column that is more than 10^5 times smaller than another begins to lose digits
// that the kernel without tensor cores keeps. An infinity in V wipes out the other columns of its row; rows of the
// output that become NaN because of it, or because of the contents of hidden keys, are recomputed (seen_row.cuh).
//
// Measurements and bottlenecks: README.md; what didn't work: notes/.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "common/cuda/empty_rows.cuh"
#include "common/cuda/exp2.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/row_pieces.cuh"
#include "common/cuda/seen_row.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash/flash_rows.cuh"
#include "common/kernels/flash/flash_split.cuh"

// ------------------------------------------------------------------------------------------------- 1. Shapes
//
// A warp owns 32 rows of the output, two fragments of 16, from start to end: every fragment of K and V that it loads is
// used twice. Scores, weights and output stay in registers, as D fragments of mma.cuh: of each, a lane holds rows
// lane / 4 and lane / 4 + 8 (half = 0, 1). COLUMNS: the number of 8-column fragments that the warp works on at a time.

template <int D_, int B_C_, int WARPS_, int COLUMNS_>
struct SplitShape {
    static constexpr int D = D_, B_C = B_C_, WARPS = WARPS_, COLUMNS = COLUMNS_;
    static constexpr int THREADS = 32 * WARPS, B_R = 32 * WARPS, STRIDE = D + 8;
    static constexpr int SCORES = B_C / 8, OUTPUTS = D / 8;  // fragments of S and O per warp and 16 rows
    static constexpr int Q_SMALL = B_R * STRIDE, KV_SMALL = B_C * STRIDE;  // distance from a big part to its small one
    static_assert(B_C % 32 == 0 && D % 32 == 0);

    // In bytes
    static constexpr int Q_AT = 0;                             // Q split
    static constexpr int K_AT = Q_AT + 2 * 2 * Q_SMALL;        // K split
    static constexpr int V_AT = K_AT + 2 * 2 * KV_SMALL;       // V split
    static constexpr int NEXT_K_AT = V_AT + 2 * 2 * KV_SMALL;  // the next K [B_C][D] float, before it is split
    static constexpr int NEXT_V_AT = NEXT_K_AT + 4 * B_C * D;  // the next V
    static constexpr int Q_SCALE_AT = NEXT_V_AT + 4 * B_C * D;
    static constexpr int K_SCALE_AT = Q_SCALE_AT + 4 * B_R;    // one float per row
    static constexpr int V_SCALE_AT = K_SCALE_AT + 4 * B_C;
    static constexpr int BYTES = V_SCALE_AT + 4 * B_C;
};

// -------------------------------------------------------------------------------------------- 2. Multiplying

// s = Q K^T, without the scales.
//
//   q [32 rows][STRIDE], starting at this warp's first row, k [B_C][STRIDE], shared, split
template <class S>
__device__ __forceinline__ void multiply_qk(float (&s)[2][S::SCORES][4], const __half* q, const __half* k) {
    constexpr int N = S::COLUMNS;
    const int lane = threadIdx.x % 32;
    q += lane % 16 * S::STRIDE + lane / 16 * 8;  // the rows that this lane addresses for ldmatrix
    k += lane % 8 * S::STRIDE + lane / 8 * 8;
    mma::clear(s);
    NO_UNROLL
    for (int d = 0; d < S::D; d += 32) {
        SplitA a;
        UNROLL
        for (int i = 0; i < 4; ++i) {
            const __half* from = q + 16 * (i / 2) * S::STRIDE + d + 16 * (i % 2);
            load(a.big[i / 2][i % 2], from);
            load(a.small[i / 2][i % 2], from + S::Q_SMALL);
        }
        UNROLL
        for (int first = 0; first < S::SCORES; first += N) {
            SplitB<N> b;
            UNROLL
            for (int n = 0; n < N; ++n) {
                load(b.big[n], k + 8 * (first + n) * S::STRIDE + d);
                load(b.small[n], k + 8 * (first + n) * S::STRIDE + d + S::KV_SMALL);
            }
            float sum[N][2][4];
            add_products(sum, a, b);
            UNROLL
            for (int i = 0; i < N * 2 * 4; ++i) s[i / 4 % 2][first + i / 8][i % 4] += sum[i / 8][i / 4 % 2][i % 4];
        }
    }
}

// o += scale * P V
//
//   v [B_C][STRIDE], shared, split
template <class S>
__device__ __forceinline__ void multiply_pv(float (&o)[2][S::OUTPUTS][4], const float (&p)[2][S::SCORES][4],
                                            const float (&scale)[2][2], const __half* v) {
    constexpr int N = S::COLUMNS;
    v += threadIdx.x % 32 * S::STRIDE;
    UNROLL
    for (int key = 0; key < S::B_C; key += 32) {
        SplitA a;
        UNROLL
        for (int i = 0; i < 16; ++i) {  // as in accumulators_as_a() of mma.cuh
            const int m = i / 8, k = i / 4 % 2, r = i % 4;
            const float(&pair)[4] = p[m][key / 8 + 2 * k + r / 2];
            split(pair[r % 2 * 2], pair[r % 2 * 2 + 1], a.big[m][k][r], a.small[m][k][r]);
        }
        UNROLL
        for (int first = 0; first < S::OUTPUTS; first += N) {
            SplitB<N> b;
            UNROLL
            for (int n = 0; n < N; ++n) {
                load_trans(b.big[n], v + key * S::STRIDE + 8 * (first + n));
                load_trans(b.small[n], v + key * S::STRIDE + 8 * (first + n) + S::KV_SMALL);
            }
            float sum[N][2][4];
            add_products(sum, a, b);
            UNROLL
            for (int i = 0; i < N * 2 * 4; ++i) {
                const int n = i / 8, m = i / 4 % 2, e = i % 4;
                o[m][first + n][e] += sum[n][m][e] * scale[m][e / 2];
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------ 3. Softmax
//
// [m][half]: row 16 m + 8 half + lane / 4 of the warp. A lane has keys 8 n + lane % 4 * 2 + 0, 1.

__device__ __forceinline__ int row_of(int m, int half) { return 16 * m + 8 * half + threadIdx.x % 32 / 4; }
__device__ __forceinline__ int key_of(int n) { return 8 * n + threadIdx.x % 4 * 2; }

// s[row][key] *= the scale of the key. The row's scale is left to weigh(); a factor of 2^14 moves from one to the
// other, so that neither is very large or small.
template <class S>
__device__ __forceinline__ void scale_scores(float (&s)[2][S::SCORES][4], const float* k_scale) {
    UNROLL
    for (int n = 0; n < S::SCORES; ++n) {
        const float2 scale = *reinterpret_cast<const float2*>(k_scale + key_of(n));
        const float even = scale.x * 0x1p-14f, odd = scale.y * 0x1p-14f;
        UNROLL
        for (int i = 0; i < 4; ++i) s[i / 2][n][i % 2 * 2] *= even, s[i / 2][n][i % 2 * 2 + 1] *= odd;
    }
}

// Masks (-infinity) the keys of the tile at k_start that the rows may not see. With a mask tensor, scores are first
// multiplied by their rows' scales, which then become 1. first_row: the warp's.
template <class S, bool GENERAL>
__device__ __forceinline__ void hide_keys(float (&s)[2][S::SCORES][4], float (&scale)[2][2],
                                          const FlashBlock<S::B_R, GENERAL>& block, int first_row, int64_t k_start) {
    UNROLL
    for (int i = 0; i < 4; ++i) {
        const int m = i / 2, half = i % 2, row = first_row + row_of(m, half);
        const int visible = block.visible(row, k_start);
        UNROLL
        for (int j = 0; j < 2 * S::SCORES; ++j) {
            const int key = key_of(j / 2) + j % 2;
            float& score = s[m][j / 2][2 * half + j % 2];
            if (key >= visible)
                score = -INFINITY;
            else if constexpr (GENERAL)
                score = block.masked(score * scale[m][half], row, k_start + key);
        }
        if constexpr (GENERAL) scale[m][half] = 1;
    }
}

// Carried by a lane from tile to tile: m is the same in the four lanes of a row, l is each lane's own part of the sum.
template <int OUTPUTS>
struct SplitRows {
    float m[2][2], l[2][2], o[2][OUTPUTS][4];

    __device__ __forceinline__ SplitRows() {
        UNROLL
        for (int i = 0; i < 4; ++i) m[i / 2][i % 2] = -INFINITY, l[i / 2][i % 2] = 0;
        mma::clear(o);
    }
};

// s -> 2^(scale * s - m); m, l and o as in the kernel taught in task 4.
template <class S>
__device__ __forceinline__ void weigh(float (&s)[2][S::SCORES][4], const float (&scale)[2][2],
                                      SplitRows<S::OUTPUTS>& rows) {
    UNROLL
    for (int i = 0; i < 4; ++i) {
        const int m = i / 2, half = i % 2;
        float largest = -INFINITY;
        UNROLL
        for (int n = 0; n < S::SCORES; ++n)
            largest = fmaxf(largest, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        const float m_new = fmaxf(rows.m[m][half], quad_max(largest) * scale[m][half]);
        const float shift = shift_of(m_new);
        const float rescale = exp2_approx(rows.m[m][half] - shift);
        rows.m[m][half] = m_new;
        float sum = 0;
        UNROLL
        for (int j = 0; j < 2 * S::SCORES; ++j) {
            float& p = s[m][j / 2][2 * half + j % 2];
            p = exp2_approx(p * scale[m][half] - shift);
            sum += p;
        }
        rows.l[m][half] = rows.l[m][half] * rescale + sum;
        UNROLL
        for (int j = 0; j < 2 * S::OUTPUTS; ++j) rows.o[m][j / 2][2 * half + j % 2] *= rescale;
    }
}

// p[row][key] *= the scale of V's row `key`; then rows of p are brought to the same magnitude: row = scale * p.
template <class S>
__device__ __forceinline__ void scale_weights(float (&p)[2][S::SCORES][4], float (&scale)[2][2], const float* v_scale) {
    float largest[2][2] = {};
    UNROLL
    for (int n = 0; n < S::SCORES; ++n) {
        const float2 key = *reinterpret_cast<const float2*>(v_scale + key_of(n));
        UNROLL
        for (int i = 0; i < 4; ++i) {
            float *pair = &p[i / 2][n][i % 2 * 2], &top = largest[i / 2][i % 2];
            pair[0] *= key.x, pair[1] *= key.y;
            top = fmaxf(top, fmaxf(pair[0], pair[1]));
        }
    }
    UNROLL
    for (int i = 0; i < 4; ++i) {
        const int m = i / 2, half = i % 2;
        const PowerOfTwo power(quad_max(largest[m][half]));
        scale[m][half] = power.inverse;
        UNROLL
        for (int j = 0; j < 2 * S::SCORES; ++j) p[m][j / 2][2 * half + j % 2] *= power.factor;
    }
}

// ------------------------------------------------------------------------------------------------- 4. Kernel
//
// Not inlined: the main loop needs every register.
template <int B_R, bool GENERAL>
__device__ __noinline__ void compute_again(const FlashArguments& a, int warp_row, unsigned marked) {
    const FlashBlock<B_R, GENERAL> block(a);
    attention::for_each_marked_row<32>(marked, [&](int row) { block.compute_again(warp_row + row); });
}

// grid: see FlashBlock; block (S::THREADS). VECTOR, GENERAL: see for_head_dim.

template <class S, bool VECTOR, bool GENERAL>
__global__ void __launch_bounds__(S::THREADS, 1) flash_3xfp16_kernel(const __grid_constant__ FlashArguments a) {
    extern __shared__ __align__(16) char shared[];
    const FlashBlock<S::B_R, GENERAL> block(a);
    const int warp_row = threadIdx.x / 32 * 32;
    const auto halves = [&](int at) { return reinterpret_cast<__half*>(shared + at); };
    const auto floats = [&](int at) { return reinterpret_cast<float*>(shared + at); };
    const auto load_next = [&](int64_t k_start) {
        if (k_start >= block.keys_end) return;
        load_rows<S::B_C, S::D, S::D, S::THREADS, VECTOR>(floats(S::NEXT_K_AT),
                                                          block.key + k_start * a.key_strides.row, a.key_strides.row,
                                                          a.S_k - k_start, a.head_dim);
        load_rows<S::B_C, S::D, S::D, S::THREADS, VECTOR>(floats(S::NEXT_V_AT),
                                                          block.value + k_start * a.value_strides.row,
                                                          a.value_strides.row, a.S_k - k_start, a.head_dim);
        cp_async_commit();
    };
    const auto split_next = [&](int from, int to, int scales) {
        split_rows<S::B_C, S::D, S::STRIDE, S::THREADS>(halves(to), floats(scales), [&](int row, int col) {
            return *reinterpret_cast<const float4*>(floats(from) + row * S::D + col);
        });
    };
    load_next(0);
    split_rows<S::B_R, S::D, S::STRIDE, S::THREADS>(halves(S::Q_AT), floats(S::Q_SCALE_AT), [&](int row, int col) {
        const float factor = a.scale * LOG2_E;
        const float4 x = read_four<VECTOR>(block.query + row * a.query_strides.row + col,
                                           row < block.rows_left ? a.head_dim - col : 0);
        return make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
    });

    SplitRows<S::OUTPUTS> rows;
    NO_UNROLL
    for (int64_t k_start = 0; k_start < block.keys_end; k_start += S::B_C) {
        cp_async_wait_all();
        __syncthreads();  // the next K and V have arrived, and all threads are done with the previous ones
        split_next(S::NEXT_K_AT, S::K_AT, S::K_SCALE_AT);
        split_next(S::NEXT_V_AT, S::V_AT, S::V_SCALE_AT);
        __syncthreads();  // all are split
        load_next(k_start + S::B_C);
        if (k_start >= block.seen(warp_row + 31)) continue;  // no row of this warp sees a key of the tile
        float s[2][S::SCORES][4], scale[2][2];
        multiply_qk<S>(s, halves(S::Q_AT) + warp_row * S::STRIDE, halves(S::K_AT));
        scale_scores<S>(s, floats(S::K_SCALE_AT));
        UNROLL
        for (int i = 0; i < 4; ++i)
            scale[i / 2][i % 2] = floats(S::Q_SCALE_AT)[warp_row + row_of(i / 2, i % 2)] * 0x1p14f;
        if (block.hides(warp_row, k_start, S::B_C)) hide_keys<S, GENERAL>(s, scale, block, warp_row, k_start);
        weigh<S>(s, scale, rows);
        scale_weights<S>(s, scale, floats(S::V_SCALE_AT));
        multiply_pv<S>(rows.o, s, scale, halves(S::V_AT));
    }

    UNROLL
    for (int i = 0; i < 4; ++i) {
        const int m = i / 2, half = i % 2, row = warp_row + row_of(m, half);
        const float l = quad_sum(rows.l[m][half]), inverse = inverse_of(l);
        if (row >= block.rows_left) continue;
        float* out = block.out + static_cast<int64_t>(row) * a.head_dim;
        UNROLL
        for (int n = 0; n < S::OUTPUTS; ++n)
            store_two<VECTOR>(out + key_of(n), rows.o[m][n][2 * half] * inverse, rows.o[m][n][2 * half + 1] * inverse,
                              a.head_dim - key_of(n));
        if (block.lse && threadIdx.x % 4 == 0) block.lse[row] = (rows.m[m][half] + log2f(l)) * LN_2;
    }
    unsigned marked = 0;
    UNROLL
    for (int i = 0; i < 4; ++i) {
        float sum = 0;
        UNROLL
        for (int n = 0; n < 2 * S::OUTPUTS; ++n) sum += rows.o[i / 2][n / 2][2 * (i % 2) + n % 2];
        marked |= (sum != sum) << i;
    }
    if (__any_sync(FULL_WARP, marked != 0)) compute_again<S::B_R, GENERAL>(a, warp_row, marked);
}

// ----------------------------------------------------------------------------------------------- 5. Launcher

template <class S, bool VECTOR, bool GENERAL>
static void launch(const FlashArguments& a) {
    launch_rows(flash_3xfp16_kernel<S, VECTOR, GENERAL>, S::B_R, S::THREADS, S::BYTES, a);
}

template <int D>
using LargeSplitShape = SplitShape<D, D <= 64 ? 64 : 32, 8, 2>;
template <int D>
using SmallSplitShape = SplitShape<D, 32, 4, 1>;

// 8 warps take 78 to 203 KB of shared memory. GPUs with less per block (A100: 163 KB, other Ampere and Ada: 99 KB,
// Turing: 64 KB) use 4 warps, in an instance that supports everything; if that does not fit either, the kernel without
// tensor cores.
void flash_forward_3xfp16(const FlashArguments& arguments) {
    const int available = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    for_head_dim(arguments, [&]<int D, bool VECTOR, bool GENERAL>() {
        if (LargeSplitShape<D>::BYTES <= available) return launch<LargeSplitShape<D>, VECTOR, GENERAL>(arguments);
        if (SmallSplitShape<D>::BYTES <= available) return launch<SmallSplitShape<D>, false, true>(arguments);
        flash_forward_fp32(arguments);
    });
}
