// attention_tiles.cuh - attention tile by tile, float32: what strided_attention.cu and sparse_attention.cu share.
//
// Contents
//   Tiles               sizes, and where each tile is in shared memory
//   RowState            a warp's rows in registers: running maximum, running sum, output
//   BlockRows           which rows of which head a block computes
//   add_dot             sum + a . b for four floats
//   load_tile           rows of a tensor, row_step apart -> neighbors in shared memory
//   compute_scores      S = Q K^T for one tile
//   hidden_rows         which rows may not see the lane's key                              (gap 1)
//   online_softmax      S -> P; old output and sum are rescaled to the new maximum
//   accumulate_output   O += P V
//   attend_to_tile      one tile of keys from beginning to end
//   start_rows          before the first tile: loads Q, initializes the state
//   store_output        after the last tile: O / l -> global memory
//
// The algorithm and the function names are task 4's (FlashAttention-2, arXiv:2307.08691, Algorithm 1); the functions
// are given here. There are three differences: load_tile takes a row_step, a tile has one key per lane, and the mask is
// a bit mask. A kernel of this task decides two things: which tiles of keys a block loops over, and which of a tile's
// keys a row may see.
//
// Work partitioning: a block computes B_r rows of one head, a warp ROWS of them from beginning to end. A tile has 32
// keys: in S and P, lane i of every warp owns key i; in O it owns the columns i, i + 32, ... To get from one layout to
// the other, P goes through shared memory; a warp reads only the rows of P that it wrote itself.
//
// Positions in the whole sequence are int64_t, those within a tile are int.
#pragma once
#include "common/cuda/check.h"
#include "common/cuda/logarithms.h"
#include "common/cuda/not_implemented.h"
#include "common/cuda/warp.cuh"

// WIDTH = head_dim rounded up to 64 or 128. Rows of K are padded by 4 floats: 8 lanes that read the same column of 8
// rows as float4 then have no bank conflicts (task 4 explains why).
template <int WIDTH, int BLOCK_ROWS>
struct Tiles {
    static constexpr int B_r = BLOCK_ROWS;  // rows of Q per block
    static constexpr int B_c = 32;          // keys per tile: one for each lane
    static constexpr int D = WIDTH, WARPS = 4, THREADS = 32 * WARPS;
    static constexpr int ROWS = B_r / WARPS;  // rows per warp
    static constexpr int COLS = D / 32;       // output columns per lane
    static constexpr int K_STRIDE = D + 4;    // floats per row of the K tile

    static constexpr int Q_AT = 0;                      // Q [B_r][D]
    static constexpr int K_AT = Q_AT + B_r * D;         // K [B_c][K_STRIDE]
    static constexpr int V_AT = K_AT + B_c * K_STRIDE;  // V [B_c][D]
    static constexpr int P_AT = V_AT + B_c * D;         // P [B_r][B_c]
    static constexpr int BYTES = (P_AT + B_r * B_c) * sizeof(float);
    static_assert(BYTES <= 64 * 1024, "all that a Turing SM (sm_75) has");
};

// A warp's rows. m is the same in all lanes; l is not: each lane sums over the keys it owns, and the partial sums are
// added once, in store_output.
template <typename T>
struct RowState {
    float m[T::ROWS];
    float l[T::ROWS];
    float o[T::ROWS][T::COLS];
};

// A block computes rows q_start .. q_start + B_r - 1 of one head, numbered 0 .. batch * heads - 1. The last rows of a
// head come first: under a causal mask they have the most work.
struct BlockRows {
    int head;
    int64_t q_start;
};

template <typename T>
__device__ __forceinline__ BlockRows block_rows(int64_t S_q) {
    const int q_tiles = static_cast<int>(ceil_div(S_q, int64_t{T::B_r}));
    const int block = blockIdx.x;
    return {block / q_tiles, int64_t{q_tiles - 1 - block % q_tiles} * T::B_r};
}

// The grid for block_rows: the number of blocks along x.
template <typename T>
unsigned grid_size(int64_t batch_heads, int64_t S_q) {
    return grid_blocks(batch_heads * ceil_div(S_q, int64_t{T::B_r}), "query");
}

// sum + a . b: four fused multiply-adds for two 16-byte loads.
__device__ __forceinline__ float add_dot(float sum, float4 a, float4 b) {
    sum += a.x * b.x;
    sum += a.y * b.y;
    sum += a.z * b.z;
    sum += a.w * b.w;
    return sum;
}

// tile[r][col] = source[r * row_step][col] * factor for r < rows_left and col < head_dim; zero elsewhere.
//
//   tile     [TILE_ROWS][STRIDE], shared        source   rows of head_dim floats, global; rows in between are not read
template <typename T, int TILE_ROWS, int STRIDE>
__device__ __forceinline__ void load_tile(float* tile, const float* source, int64_t rows_left, int64_t row_step,
                                          int head_dim, float factor) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 4
    for (int row = warp; row < TILE_ROWS; row += T::WARPS) {
        for (int col = lane; col < T::D; col += 32) {
            const bool inside = row < rows_left && col < head_dim;
            tile[row * STRIDE + col] = inside ? source[row * row_step * head_dim + col] * factor : 0.0f;
        }
    }
}

// s[r] = dot product of Q row first_row + r and K row `lane`; four columns at a time, one float4 of K for all rows.
//
//   s   [ROWS], registers      q_tile [B_r][D], k_tile [B_c][K_STRIDE], shared
template <typename T>
__device__ __forceinline__ void compute_scores(float (&s)[T::ROWS], const float* q_tile, const float* k_tile,
                                               int first_row) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < T::ROWS; ++r) s[r] = 0.0f;
#pragma unroll 1
    for (int d = 0; d < T::D; d += 4) {
        const float4 k = *reinterpret_cast<const float4*>(&k_tile[lane * T::K_STRIDE + d]);
#pragma unroll
        for (int r = 0; r < T::ROWS; ++r) {
            const float4 q = *reinterpret_cast<const float4*>(&q_tile[(first_row + r) * T::D + d]);
            s[r] = add_dot(s[r], q, k);
        }
    }
}

// Bit r of the result is set if row r of the warp, whose query is at position query_position + r, may not see the
// lane's key, which is at position key_position.
template <typename T>
__device__ __forceinline__ unsigned hidden_rows(int64_t key_position, int64_t query_position, int64_t S_k,
                                                bool causal) {
    unsigned hidden = 0;
    // BEGIN SOLUTION 1 (5 lines): hidden |= 1u << r unless the lane's key exists and row r may see it.
    const int64_t ahead = key_position - query_position;  // of the warp's first row
#pragma unroll
    for (int r = 0; r < T::ROWS; ++r) {
        if (key_position >= S_k || (causal && ahead > r)) hidden |= 1u << r;
    }
    // END SOLUTION
    return hidden;
}

// The online softmax for one tile: updates m and l, writes P, and rescales the l and o of earlier tiles. The scores are
// already multiplied by log2(e), so e^x is exp2f(s). A row that has seen no key has m = -infinity and subtracts 0.
//
//   s, state.m, state.l [ROWS], state.o [ROWS][COLS], registers      p_tile [B_r][B_c], shared
template <typename T>
__device__ __forceinline__ void online_softmax(const float (&s)[T::ROWS], RowState<T>& state, float* p_tile,
                                               int first_row) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < T::ROWS; ++r) {
        const float tile_max = warp_max(s[r]);
        const float m_new = fmaxf(state.m[r], tile_max);
        const float shift = m_new == -INFINITY ? 0.0f : m_new;
        const float rescale = exp2f(state.m[r] - shift);
        const float p = exp2f(s[r] - shift);
        state.m[r] = m_new;
        state.l[r] = state.l[r] * rescale + p;
#pragma unroll
        for (int c = 0; c < T::COLS; ++c) state.o[r][c] *= rescale;
        p_tile[(first_row + r) * T::B_c + lane] = p;
    }
}

// o[r][c] += sum over the tile's keys j of P[first_row + r][j] * V[j][lane + 32 * c]; four keys at a time.
//
//   p_tile [B_r][B_c], v_tile [B_c][D], shared
template <typename T>
__device__ __forceinline__ void accumulate_output(RowState<T>& state, const float* p_tile, const float* v_tile,
                                                  int first_row) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int j = 0; j < T::B_c; j += 4) {
        float4 v[T::COLS];
#pragma unroll
        for (int c = 0; c < T::COLS; ++c) {
            const float* column = &v_tile[j * T::D + lane + 32 * c];
            v[c] = make_float4(column[0], column[T::D], column[2 * T::D], column[3 * T::D]);
        }
#pragma unroll
        for (int r = 0; r < T::ROWS; ++r) {
            const float4 p = *reinterpret_cast<const float4*>(&p_tile[(first_row + r) * T::B_c + j]);
#pragma unroll
            for (int c = 0; c < T::COLS; ++c) state.o[r][c] = add_dot(state.o[r][c], p, v[c]);
        }
    }
}

// Adds one tile of keys to m, l and O of the warp's rows. All threads of the block must call it.
//
//   shared       the tiles, see Tiles; Q is already loaded
//   key, value   the tile's first row, global; row r of the tile is r * row_step rows after it, and there are
//                rows_left of them (any value above B_c acts like B_c)
//   hidden       of the lane's key, see hidden_rows
template <typename T>
__device__ __forceinline__ void attend_to_tile(RowState<T>& state, float* shared, const float* key, const float* value,
                                               int64_t rows_left, int64_t row_step, int head_dim, int first_row,
                                               unsigned hidden) {
    float* k_tile = shared + T::K_AT;  // [B_c][K_STRIDE]
    float* v_tile = shared + T::V_AT;  // [B_c][D]
    float* p_tile = shared + T::P_AT;  // [B_r][B_c]
    load_tile<T, T::B_c, T::K_STRIDE>(k_tile, key, rows_left, row_step, head_dim, 1.0f);
    load_tile<T, T::B_c, T::D>(v_tile, value, rows_left, row_step, head_dim, 1.0f);
    __syncthreads();
    float s[T::ROWS];
    compute_scores<T>(s, shared + T::Q_AT, k_tile, first_row);
#pragma unroll
    for (int r = 0; r < T::ROWS; ++r) {
        if (hidden >> r & 1) s[r] = -INFINITY;
    }
    online_softmax<T>(s, state, p_tile, first_row);
    __syncwarp();
    accumulate_output<T>(state, p_tile, v_tile, first_row);
    __syncthreads();
}

// Loads Q * factor into shared memory and initializes the rows' state. The barrier that follows is in attend_to_tile.
//
//   query   the block's first row, global
template <typename T>
__device__ __forceinline__ void start_rows(RowState<T>& state, float* shared, const float* query, int64_t rows_left,
                                           int head_dim, float factor) {
    load_tile<T, T::B_r, T::D>(shared + T::Q_AT, query, rows_left, 1, head_dim, factor);
#pragma unroll
    for (int r = 0; r < T::ROWS; ++r) {
        state.m[r] = -INFINITY;
        state.l[r] = 0.0f;
#pragma unroll
        for (int c = 0; c < T::COLS; ++c) state.o[r][c] = 0.0f;
    }
}

// out[row][col] = o / l. A row that saw no key (l = 0) gives zeros.
//
//   out   the block's first row, [rows_left][head_dim], global
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
