// strided_attention.cu - attention to every stride-th key, forward, float32: one kernel, no copy of K and V.
//
// Contents
//   Tiles                      sizes, and where each tile lies in shared memory
//   RowState                   a warp's rows in registers: running maximum, running sum, output
//   load_tile                  rows of a tensor, row_step apart -> neighbours in shared memory    (gap 1)
//   compute_scores             S = Q K^T for one tile
//   mask_scores                -infinity for keys that a row may not see                          (gap 2)
//   online_softmax             S -> P; old output and sum are rescaled to the new maximum         (gap 3)
//   accumulate_output          O += P V
//   store_output               O / l -> global memory
//   strided_attention_kernel   the loop over the tiles of strided keys                            (gap 4)
//   launch_strided_attention   shared memory, grid and launch                                     (gap 5)
//   custom_strided_attention   the host function: picks the tile width for a head_dim
//
// Every query attends to the keys at the positions offset, offset + stride, offset + 2 * stride, ... < S_k. They are
// numbered n = 0, 1, 2, ...; strided key n has the position offset + n * stride. For stride 4 and offset 1:
//
//        position    0   1   2   3   4   5   6   7   8   9  10
//        n               0               1               2
//
// The algorithm is task 4's (FlashAttention-2, arXiv:2307.08691, Algorithm 1) over n in place of the position. In shared
// memory the strided keys are neighbours, so behind load_tile a tile looks like one of task 4. The mask and the end of
// the loop compare positions: with `causal`, query i sees strided key n when offset + n * stride <= i.
//
// Who does what: a block has B_R rows of one head, a warp ROWS of them from beginning to end. A tile has 32 strided
// keys: in S and P, lane i of every warp owns key i; in O it owns the columns i, i + 32, ... The change of owner goes
// through P in shared memory, and a warp reads only those rows of P that it wrote itself.
//
// Positions and strided keys in the whole sequence are int64_t, those within a tile are int.

#include "task5/strided_attention.h"

#include <stdexcept>

#include "common/cuda/check.h"
#include "common/cuda/not_implemented.h"
#include "common/cuda/warp.cuh"

constexpr float LOG2_E = 1.4426950408889634f;

// WIDTH = head_dim rounded up to 64 or 128. Rows of K are 4 floats longer than that: 8 lanes that read the same column
// of 8 rows as float4 then meet in no bank (task 4 says why).
template <int WIDTH>
struct Tiles {
    static constexpr int B_R = 48;  // rows of Q per block
    static constexpr int B_C = 32;  // strided keys per tile: one for each lane
    static constexpr int D = WIDTH, WARPS = 4, THREADS = 32 * WARPS;
    static constexpr int ROWS = B_R / WARPS;  // rows per warp
    static constexpr int COLS = D / 32;       // output columns per lane
    static constexpr int K_LENGTH = D + 4;    // floats per row of the K tile

    static constexpr int Q_AT = 0;                      // Q [B_R][D]
    static constexpr int K_AT = Q_AT + B_R * D;         // K [B_C][K_LENGTH]
    static constexpr int V_AT = K_AT + B_C * K_LENGTH;  // V [B_C][D]
    static constexpr int P_AT = V_AT + B_C * D;         // P [B_R][B_C]
    static constexpr int BYTES = (P_AT + B_R * B_C) * sizeof(float);
    static_assert(BYTES <= 64 * 1024, "all that a Turing multiprocessor (sm_75) has");
};

// A warp's rows. m is the same in all lanes; l is not: each lane sums over the keys it owns, and the parts are added
// once, in store_output.
template <typename T>
struct RowState {
    float m[T::ROWS];
    float l[T::ROWS];
    float o[T::ROWS][T::COLS];
};

// tile[r][col] = source[r * row_step][col] * factor for r < rows_left and col < head_dim; zero elsewhere.
//
//   tile     [TILE_ROWS][LENGTH], shared        source   rows of head_dim floats, global; those between are not read
template <typename T, int TILE_ROWS, int LENGTH>
__device__ __forceinline__ void load_tile(float* tile, const float* source, int64_t rows_left, int64_t row_step,
                                          int head_dim, float factor) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // TODO (about 7 lines): as in task 4, each warp takes every WARPS-th row (T::WARPS) and each lane every 32nd
    //     column of all TILE_ROWS x T::D; but row r of the tile lies r * row_step rows of head_dim floats after
    //     source. Zero is written where nothing is to be read.
    NOT_IMPLEMENTED();
    // END TODO
}

// s[r] = dot product of Q row first_row + r and K row `lane`; four columns at a time, one float4 of K for all rows.
//
//   s   [ROWS], registers      q_tile [B_R][D], k_tile [B_C][K_LENGTH], shared
template <typename T>
__device__ __forceinline__ void compute_scores(float (&s)[T::ROWS], const float* q_tile, const float* k_tile,
                                               int first_row) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < T::ROWS; ++r) s[r] = 0.0f;
#pragma unroll 1
    for (int d = 0; d < T::D; d += 4) {
        const float4 k = *reinterpret_cast<const float4*>(&k_tile[lane * T::K_LENGTH + d]);
#pragma unroll
        for (int r = 0; r < T::ROWS; ++r) {
            const float4 q = *reinterpret_cast<const float4*>(&q_tile[(first_row + r) * T::D + d]);
            s[r] += q.x * k.x + q.y * k.y + q.z * k.z + q.w * k.w;
        }
    }
}

// The lane's key has the position key_position, row r of the warp the position query_position + r.
template <typename T>
__device__ __forceinline__ void mask_scores(float (&s)[T::ROWS], int64_t key_position, int64_t query_position,
                                            int64_t S_k, bool causal) {
    // TODO (about 4 lines): s[r] = -INFINITY unless the lane's key exists and row r may see it.
    NOT_IMPLEMENTED();
    // END TODO
}

// The online softmax for one tile: takes s into m, l and P, and rescales what older tiles left in l and o. The scores
// arrive multiplied by log2(e), so e^x is exp2f(s). A row that has seen no key yet has m = -infinity and subtracts 0.
//
//   s, state.m, state.l [ROWS], state.o [ROWS][COLS], registers      p_tile [B_R][B_C], shared
template <typename T>
__device__ __forceinline__ void online_softmax(const float (&s)[T::ROWS], RowState<T>& state, float* p_tile,
                                               int first_row) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < T::ROWS; ++r) {
        const float tile_max = warp_max(s[r]);
        // TODO (about 9 lines): the new maximum of the row, what to subtract (not -infinity), the factor for l and
        //     o; p of the lane's key, added to l and stored at row first_row + r, column lane of p_tile.
        NOT_IMPLEMENTED();
        // END TODO
    }
}

// o[r][c] += sum over the tile's keys j of P[first_row + r][j] * V[j][lane + 32 * c]; four keys at a time.
//
//   p_tile [B_R][B_C], v_tile [B_C][D], shared
template <typename T>
__device__ __forceinline__ void accumulate_output(RowState<T>& state, const float* p_tile, const float* v_tile,
                                                  int first_row) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int j = 0; j < T::B_C; j += 4) {
        float v[4][T::COLS];
#pragma unroll
        for (int c = 0; c < T::COLS; ++c) {
#pragma unroll
            for (int k = 0; k < 4; ++k) v[k][c] = v_tile[(j + k) * T::D + lane + 32 * c];
        }
#pragma unroll
        for (int r = 0; r < T::ROWS; ++r) {
            const float4 p = *reinterpret_cast<const float4*>(&p_tile[(first_row + r) * T::B_C + j]);
#pragma unroll
            for (int c = 0; c < T::COLS; ++c)
                state.o[r][c] += p.x * v[0][c] + p.y * v[1][c] + p.z * v[2][c] + p.w * v[3][c];
        }
    }
}

// out[row][col] = o / l. A row that saw no key (l = 0) gives zeros.
//
//   out [rows_left][head_dim], global
template <typename T>
__device__ __forceinline__ void store_output(float* out, const RowState<T>& state, int first_row, int64_t rows_left,
                                             int head_dim) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < T::ROWS; ++r) {
        const int row = first_row + r;
        const float l = warp_sum(state.l[r]);
        const float inverse = l == 0.0f ? 0.0f : 1.0f / l;
#pragma unroll
        for (int c = 0; c < T::COLS; ++c) {
            const int col = lane + 32 * c;
            if (row < rows_left && col < head_dim) out[row * head_dim + col] = state.o[r][c] * inverse;
        }
    }
}

// One block: rows q_start .. q_start + B_R - 1 of one head; the last rows of a head come first, which have the longest
// way to go under a causal mask. Grid: batch_heads * q_tiles blocks along x.
//
//   query, out [batch_heads, S_q, head_dim]      key, value [batch_heads, S_k, head_dim]
template <int D>
__global__ void __launch_bounds__(Tiles<D>::THREADS)
    strided_attention_kernel(const float* __restrict__ query, const float* __restrict__ key,
                             const float* __restrict__ value, float* __restrict__ out, int64_t S_q, int64_t S_k,
                             int head_dim, int64_t stride, int64_t offset, bool causal, float scale_log2) {
    using T = Tiles<D>;
    extern __shared__ __align__(16) float shared[];
    float* q_tile = shared + T::Q_AT;  // [B_R][D]
    float* k_tile = shared + T::K_AT;  // [B_C][K_LENGTH]
    float* v_tile = shared + T::V_AT;  // [B_C][D]
    float* p_tile = shared + T::P_AT;  // [B_R][B_C]

    const int64_t q_tiles = ceil_div(S_q, int64_t{T::B_R});
    const int64_t head = blockIdx.x / q_tiles;
    const int64_t q_start = (q_tiles - 1 - blockIdx.x % q_tiles) * T::B_R;
    const int lane = threadIdx.x % 32;
    const int first_row = threadIdx.x / 32 * T::ROWS;  // this warp's first row of the tile
    query += (head * S_q + q_start) * head_dim;
    out += (head * S_q + q_start) * head_dim;
    key += head * S_k * head_dim;
    value += head * S_k * head_dim;

    load_tile<T, T::B_R, D>(q_tile, query, S_q - q_start, 1, head_dim, scale_log2);
    RowState<T> state;
#pragma unroll
    for (int r = 0; r < T::ROWS; ++r) {
        state.m[r] = -INFINITY;
        state.l[r] = 0.0f;
#pragma unroll
        for (int c = 0; c < T::COLS; ++c) state.o[r][c] = 0.0f;
    }

    // TODO (about 15 lines): how many strided keys does the last row of this block, q_start + B_R - 1, see? They
    //     are those at positions before S_k and, with causal, before q_start + B_R; there may be none. Then the loop
    //     over n = 0, B_C, 2 * B_C, ... below that number: the position of strided key n; K and V from there on into
    //     shared memory (rows_left: as many as are left of that number); scores; the mask, which wants the positions of
    //     the lane's key and of the warp's first row; online softmax; the product with V. The three synchronisations
    //     are those of task 4.
    NOT_IMPLEMENTED();
    // END TODO

    store_output<T>(out, state, first_row, S_q - q_start, head_dim);
}

template <int D>
void launch_strided_attention(const float* query, const float* key, const float* value, float* out,
                              int64_t batch_heads, int64_t S_q, int64_t S_k, int head_dim, int64_t stride,
                              int64_t offset, bool causal, float scale_log2, cudaStream_t stream) {
    using T = Tiles<D>;
    const int64_t blocks = batch_heads * ceil_div(S_q, int64_t{T::B_R});
    if (blocks > 0x7fffffff) {
        throw std::invalid_argument("query needs " + std::to_string(blocks) +
                                    " blocks; a grid has at most 2^31 - 1: split the batch");
    }
    // TODO (about 5 lines): allow the kernel T::BYTES of dynamic shared memory (cudaFuncSetAttribute), launch it
    //     with T::THREADS threads per block, and check both calls with CUDA_CHECK and CUDA_CHECK_LAUNCH.
    NOT_IMPLEMENTED();
    // END TODO
}

void custom_strided_attention(const float* query, const float* key, const float* value, float* out,
                              int64_t batch_heads, int64_t S_q, int64_t S_k, int head_dim, int64_t stride,
                              int64_t offset, bool causal, float scale, cudaStream_t stream) {
    const auto launch = head_dim > 64 ? launch_strided_attention<128> : launch_strided_attention<64>;
    // softmax in base e of x is softmax in base 2 of log2(e) * x
    launch(query, key, value, out, batch_heads, S_q, S_k, head_dim, stride, offset, causal, scale * LOG2_E, stream);
}
