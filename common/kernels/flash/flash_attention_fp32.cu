// flash_attention_fp32.cu - FlashAttention-2, forward, float32 without tensor cores.
//
//   1. Shapes        Fp32Shape           sizes derived from head_dim; layout of shared memory
//   2. Multiplying   multiply_qk         S += Q K^T for one tile
//                    multiply_pv         O += P V for a part of one
//   3. Softmax       hide_keys, weigh    masks; S -> P, with the old output rescaled
//   4. Kernel        flash_fp32_kernel   the loop over the tiles
//   5. Launcher      flash_forward_fp32  picks the shape
//
// Differences from the kernel taught in task 4:
//
//   1. Register tiles. A thread computes 8 x 8 scores (8 x 4 for D > 64) and 8 x (D / 8) outputs, instead of 16 x 1 and
//      16 x (D / 32). Per 16 numbers read from shared memory it does 64 multiplications instead of 15.
//   2. float4 throughout; no bank conflicts. The lanes form a grid of 4 x 8, and tile rows are padded such that
//      lanes that read at the same time read different banks or the same words.
//   3. Asynchronous copies: V arrives during Q K^T and the next K during P V. Two barriers per tile, and two blocks
//      share an SM, so that one computes while the other waits at a barrier.
//   4. Tiles that hide no key from a warp's rows are not masked; a warp whose rows see no key of a tile skips it.
//      2^x is one instruction.
//   5. NaN or infinity at a hidden key does not reach a row: seen_row.cuh.
//
// Measurements and bottlenecks: README.md; what didn't work: notes/.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "common/cuda/empty_rows.cuh"
#include "common/cuda/exp2.cuh"
#include "common/cuda/row_pieces.cuh"
#include "common/cuda/seen_row.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash/flash_rows.cuh"

// ------------------------------------------------------------------------------------------------- 1. Shapes
//
// A warp owns 32 rows of the output from start to end. A thread, at (lane_row, lane_col) in the grid of lanes, owns
//
//   8 rows              lane_row + 4 r             r = 0 ... 7
//   KEYS keys           lane_col + 8 c             c = 0 ... KEYS - 1
//   COLS columns of O   4 lane_col + 32 c + 0 ... 3
//
// How the tiles in shared memory are read, 16 bytes per lane at a time:
//
//   Q, K   neighboring lanes own neighboring rows           -> rows of D + 4 floats: each starts 4 banks later
//   V      one row, neighboring columns                      -> D floats
//   P      transposed, [key][row], since a thread needs 8 rows of one key. Its rows are ordered by lane_row, not as in
//          the tile: the 4 rows r = 0 ... 3 of a thread side by side, then r = 4 ... 7.
//                                                             -> 40 floats: 8 lanes write 8 rows in one pass
//
// P is written and read by the same warp, P_KEYS keys at a time: all of it would not fit next to Q.

template <int D_, int WARPS_>
struct Fp32Shape {
    static constexpr int D = D_, WARPS = WARPS_, THREADS = 32 * WARPS, B_R = 32 * WARPS;
    static constexpr int B_C = D <= 64 ? 64 : 32, P_KEYS = D <= 64 ? 32 : 16;
    static constexpr int KEYS = B_C / 8, COLS = D / 8;
    static constexpr int AT_ONCE = D <= 64 ? 2 : 8;  // keys of P V without a branch in between
    static constexpr int QK_STRIDE = D + 4, P_STRIDE = 40;

    static constexpr int Q_AT = 0;                       // Q [B_R][QK_STRIDE]
    static constexpr int K_AT = Q_AT + B_R * QK_STRIDE;  // K [B_C][QK_STRIDE]
    static constexpr int V_AT = K_AT + B_C * QK_STRIDE;  // V [B_C][D]
    static constexpr int P_AT = V_AT + B_C * D;          // P [WARPS][P_KEYS][P_STRIDE]
    static constexpr int BYTES = (P_AT + WARPS * P_KEYS * P_STRIDE) * static_cast<int>(sizeof(float));
};

// Among any four consecutive lanes, two have the same lane_row and two the same lane_col: neighboring lanes share what
// they read. (See common/kernels/gemm/step3_no_conflicts.cu.)
__device__ __forceinline__ int lane_row() { return threadIdx.x % 2 + threadIdx.x % 32 / 16 * 2; }
__device__ __forceinline__ int lane_col() { return threadIdx.x / 2 % 8; }

// The 8 lanes of a row differ in bits 1 ... 3 of their numbers.
template <typename X, typename Combine>
__device__ __forceinline__ X over_row(X x, Combine combine) {
    for (int distance = 2; distance <= 8; distance *= 2) x = combine(x, __shfl_xor_sync(FULL_WARP, x, distance));
    return x;
}

// -------------------------------------------------------------------------------------------- 2. Multiplying

// s = Q K^T, four columns of Q and K at a time.
//
//   q [B_R][QK_STRIDE], k [B_C][QK_STRIDE], shared, each starting at this thread's first row
template <class S>
__device__ __forceinline__ void multiply_qk(float (&s)[8][S::KEYS], const float* q, const float* k) {
    for (int r = 0; r < 8; ++r)
        for (int c = 0; c < S::KEYS; ++c) s[r][c] = 0;
    NO_UNROLL
    for (int d = 0; d < S::D; d += 4) {
        float4 k4[S::KEYS], q4[8];
        for (int c = 0; c < S::KEYS; ++c) k4[c] = four_at(k + 8 * c * S::QK_STRIDE + d);
        for (int r = 0; r < 8; ++r) q4[r] = four_at(q + 4 * r * S::QK_STRIDE + d);
        for (int c = 0; c < S::KEYS; ++c)
            for (int r = 0; r < 8; ++r) s[r][c] += q4[r].x * k4[c].x;
        for (int c = 0; c < S::KEYS; ++c)
            for (int r = 0; r < 8; ++r) s[r][c] += q4[r].y * k4[c].y;
        for (int c = 0; c < S::KEYS; ++c)
            for (int r = 0; r < 8; ++r) s[r][c] += q4[r].z * k4[c].z;
        for (int c = 0; c < S::KEYS; ++c)
            for (int r = 0; r < 8; ++r) s[r][c] += q4[r].w * k4[c].w;
    }
}

// o += P V for P_KEYS keys.
//
//   p [P_KEYS][P_STRIDE], v [P_KEYS][D], shared, each starting at this thread's first column
template <class S>
__device__ __forceinline__ void multiply_pv(float (&o)[8][S::COLS], const float* p, const float* v) {
    NO_UNROLL
    for (int first = 0; first < S::P_KEYS; first += S::AT_ONCE) {
        for (int key = first; key < first + S::AT_ONCE; ++key) {
            const float4 low = four_at(p + key * S::P_STRIDE), high = four_at(p + key * S::P_STRIDE + 16);
            const float p_rows[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            for (int c = 0; c < S::COLS; c += 4) {
                const float4 v4 = four_at(v + key * S::D + 8 * c);
                for (int r = 0; r < 8; ++r) o[r][c] += p_rows[r] * v4.x;
                for (int r = 0; r < 8; ++r) o[r][c + 1] += p_rows[r] * v4.y;
                for (int r = 0; r < 8; ++r) o[r][c + 2] += p_rows[r] * v4.z;
                for (int r = 0; r < 8; ++r) o[r][c + 3] += p_rows[r] * v4.w;
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------ 3. Softmax

// Masks (-infinity) the keys of the tile at k_start that this thread's rows may not see. first_row: the thread's.
template <class S, bool GENERAL>
__device__ __forceinline__ void hide_keys(float (&s)[8][S::KEYS], const FlashBlock<S::B_R, GENERAL>& block,
                                          int first_row, int64_t k_start) {
    for (int r = 0; r < 8; ++r) {
        const int row = first_row + 4 * r, visible = block.visible(row, k_start);
        for (int c = 0; c < S::KEYS; ++c) {
            const int key = lane_col() + 8 * c;
            if (key >= visible)
                s[r][c] = -INFINITY;
            else if constexpr (GENERAL)
                s[r][c] = block.masked(s[r][c], row, k_start + key);
        }
    }
}

// Carried by a thread from tile to tile: m is the same in all 8 lanes of a row, l is each lane's own part of the sum.
template <int COLS>
struct Fp32Rows {
    float m[8], l[8], o[8][COLS];

    __device__ __forceinline__ Fp32Rows() {
        for (int r = 0; r < 8; ++r) {
            m[r] = -INFINITY;
            l[r] = 0;
            for (int c = 0; c < COLS; ++c) o[r][c] = 0;
        }
    }
};

// s -> 2^(s - m); m, l and o as in the kernel taught in task 4.
template <class S>
__device__ __forceinline__ void weigh(float (&s)[8][S::KEYS], Fp32Rows<S::COLS>& rows) {
    for (int r = 0; r < 8; ++r) {
        float m = rows.m[r];
        for (int c = 0; c < S::KEYS; ++c) m = fmaxf(m, s[r][c]);
        m = over_row(m, fmaxf);
        const float shift = shift_of(m);
        const float rescale = exp2_approx(rows.m[r] - shift);
        rows.m[r] = m;
        rows.l[r] *= rescale;
        for (int c = 0; c < S::COLS; ++c) rows.o[r][c] *= rescale;
        for (int c = 0; c < S::KEYS; ++c) {
            s[r][c] = exp2_approx(s[r][c] - shift);
            rows.l[r] += s[r][c];
        }
    }
}

// ------------------------------------------------------------------------------------------------- 4. Kernel
//
// grid: see FlashBlock; block (S::THREADS). VECTOR, GENERAL: see for_head_dim.

template <class S, bool VECTOR, bool GENERAL>
__global__ void __launch_bounds__(S::THREADS, 2) flash_fp32_kernel(FlashArguments a) {
    extern __shared__ __align__(16) float shared[];
    const FlashBlock<S::B_R, GENERAL> block(a);
    const int warp = threadIdx.x / 32, warp_row = 32 * warp, first_row = warp_row + lane_row();
    float* q_tile = shared + S::Q_AT;                                      // [B_R][QK_STRIDE]
    float* k_tile = shared + S::K_AT;                                      // [B_C][QK_STRIDE]
    float* v_tile = shared + S::V_AT;                                      // [B_C][D]
    float* p_tile = shared + S::P_AT + warp * S::P_KEYS * S::P_STRIDE;     // [P_KEYS][P_STRIDE]
    const auto load_k = [&](int64_t k_start) {
        if (k_start >= block.keys_end) return;
        load_rows<S::B_C, S::D, S::QK_STRIDE, S::THREADS, VECTOR>(k_tile, block.key + k_start * a.key_strides.row,
                                                                 a.key_strides.row, a.S_k - k_start, a.head_dim);
        cp_async_commit();
    };
    const auto load_v = [&](int64_t k_start) {
        load_rows<S::B_C, S::D, S::D, S::THREADS, VECTOR>(v_tile, block.value + k_start * a.value_strides.row,
                                                         a.value_strides.row, a.S_k - k_start, a.head_dim);
        cp_async_commit();
    };
    load_k(0);
    load_scaled_rows<S::B_R, S::D, S::QK_STRIDE, S::THREADS, VECTOR>(q_tile, block.query, a.query_strides.row,
                                                                    block.rows_left, a.head_dim, a.scale * LOG2_E);

    Fp32Rows<S::COLS> rows;
    NO_UNROLL
    for (int64_t k_start = 0; k_start < block.keys_end; k_start += S::B_C) {
        const bool seen = k_start < block.seen(warp_row + 31);  // whether any row of this warp sees a key
        float s[8][S::KEYS];
        cp_async_wait_all();
        __syncthreads();  // K has arrived, and all threads are done with V
        load_v(k_start);
        if (seen) {
            multiply_qk<S>(s, q_tile + first_row * S::QK_STRIDE, k_tile + lane_col() * S::QK_STRIDE);
            if (block.hides(warp_row, k_start, S::B_C)) hide_keys<S, GENERAL>(s, block, first_row, k_start);
            weigh<S>(s, rows);
        }
        cp_async_wait_all();
        __syncthreads();  // V has arrived, and all threads are done with K
        load_k(k_start + S::B_C);
        if (!seen) continue;
        UNROLL
        for (int key = 0; key < S::B_C; key += S::P_KEYS) {
            __syncwarp();  // all lanes have read the last part of P
            for (int c = 0; c < S::P_KEYS / 8; ++c)
                for (int i = 0; i < 2; ++i) {
                    const int own = key / 8 + c;
                    *reinterpret_cast<float4*>(p_tile + (lane_col() + 8 * c) * S::P_STRIDE + 4 * lane_row() + 16 * i) =
                        make_float4(s[4 * i][own], s[4 * i + 1][own], s[4 * i + 2][own], s[4 * i + 3][own]);
                }
            __syncwarp();
            multiply_pv<S>(rows.o, p_tile + 4 * lane_row(), v_tile + key * S::D + 4 * lane_col());
        }
    }

    for (int r = 0; r < 8; ++r) {
        const float l = over_row(rows.l[r], [](float x, float y) { return x + y; });
        const float inverse = inverse_of(l);
        const int row = first_row + 4 * r;
        if (row >= block.rows_left) continue;
        for (int c = 0; c < S::COLS; c += 4) {
            const int col = 4 * lane_col() + 8 * c;
            const float* o = rows.o[r] + c;
            store_four<VECTOR>(block.out + static_cast<int64_t>(row) * a.head_dim + col,
                               make_float4(o[0] * inverse, o[1] * inverse, o[2] * inverse, o[3] * inverse),
                               a.head_dim - col);
        }
        if (block.lse && lane_col() == 0) block.lse[row] = (rows.m[r] + log2f(l)) * LN_2;
    }
    if (!block.hides_keys()) return;
    unsigned marked = 0;  // rows with a NaN in a column of this lane: bit r
    UNROLL
    for (int r = 0; r < 8; ++r) marked |= attention::has_nan(rows.o[r]) << r;
    if (!__any_sync(FULL_WARP, marked != 0)) return;
    marked = over_row(marked, [](unsigned x, unsigned y) { return x | y; });
    __syncwarp();
    NO_UNROLL
    for (int i = 0; i < 32; ++i) {  // row i of the warp is row r = i / 4 of the lanes with lane_row() == i % 4
        const int lane = i % 4 % 2 + i % 4 / 2 * 16;
        if (__shfl_sync(FULL_WARP, marked, lane) >> i / 4 & 1) block.compute_again(warp_row + i);
    }
}

// ----------------------------------------------------------------------------------------------- 5. Launcher

template <class S, bool VECTOR, bool GENERAL>
static void launch(const FlashArguments& a) {
    launch_rows(flash_fp32_kernel<S, VECTOR, GENERAL>, S::B_R, S::THREADS, S::BYTES, a);
}

// For GPUs with 99 KB of shared memory per block (Ampere and Ada except the A100) or 64 KB (Turing), where 4 warps do
// not fit: 2 or 1, in an instance that supports everything.
template <int D>
static void launch_small(const FlashArguments& a, int available) {
    if constexpr (D == 128)
        if (Fp32Shape<D, 2>::BYTES > available) return launch<Fp32Shape<D, 1>, false, true>(a);
    launch<Fp32Shape<D, 2>, false, true>(a);
}

void flash_forward_fp32(const FlashArguments& arguments) {
    const int available = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    for_head_dim(arguments, [&]<int D, bool VECTOR, bool GENERAL>() {
        if (Fp32Shape<D, 4>::BYTES <= available) return launch<Fp32Shape<D, 4>, VECTOR, GENERAL>(arguments);
        if constexpr (D > 32) launch_small<D>(arguments, available);
    });
}
