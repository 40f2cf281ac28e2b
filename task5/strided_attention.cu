// strided_attention.cu - attention to every stride-th key, forward, float32: one kernel, without copying K and V.
//
// Contents
//   (attention_tiles.cuh          the tiles, the online softmax; hidden_rows: gap 1)
//   strided_attention_kernel      the loop over the tiles of strided keys                            (gap 2)
//   launch_strided_attention      shared memory, grid and launch
//   custom_strided_attention      the host function: picks the tile width for a head_dim
//
// Every query attends to the keys at the positions offset, offset + stride, offset + 2 * stride, ... < S_k. They are
// numbered n = 0, 1, 2, ...; strided key n is at position offset + n * stride. For stride 4 and offset 1:
//
//        position    0   1   2   3   4   5   6   7   8   9  10
//        n               0               1               2
//
// The algorithm is task 4's, with n in place of the position. load_tile packs the strided keys contiguously in shared
// memory, so a tile looks like one of task 4. The mask and the end of the loop compare positions: with `causal`,
// query i sees strided key n when offset + n * stride <= i.

#include "task5/given/strided_attention.h"

#include "attention_tiles.cuh"

constexpr int STRIDED_ROWS = 48;  // rows of Q per block

// One block: B_r rows of one head and all strided keys that they see. Grid: grid_size blocks along x.
//
//   query, out [batch_heads, S_q, head_dim]      key, value [batch_heads, S_k, head_dim]
template <int D>
__global__ void __launch_bounds__(Tiles<D, STRIDED_ROWS>::THREADS)
    strided_attention_kernel(const float* __restrict__ query, const float* __restrict__ key,
                             const float* __restrict__ value, float* __restrict__ out, int64_t S_q, int64_t S_k,
                             int head_dim, int64_t stride, int64_t offset, bool causal, float scale_log2) {
    using T = Tiles<D, STRIDED_ROWS>;
    extern __shared__ __align__(16) float shared[];  // the tiles, T::BYTES
    const auto [head, q_start] = block_rows<T>(S_q);
    const int lane = threadIdx.x % 32;
    const int first_row = threadIdx.x / 32 * T::ROWS;  // this warp's first row of the tile
    query += (head * S_q + q_start) * head_dim;
    out += (head * S_q + q_start) * head_dim;
    key += head * S_k * head_dim;
    value += head * S_k * head_dim;

    RowState<T> state;
    start_rows<T>(state, shared, query, S_q - q_start, head_dim, scale_log2);
    // TODO 2 (about 8 lines): how many strided keys does the last row of this block, q_start + B_r - 1, see? They
    //     are those at positions before S_k and, with causal, before q_start + B_r; there may be none. Then loop over
    //     n = 0, B_c, 2 * B_c, ... below that number: the position of strided key n; hidden_rows, which takes the
    //     positions of the lane's key and of the warp's first row; attend_to_tile with K and V from that position on
    //     (rows_left: how many of the strided keys are left).
    NOT_IMPLEMENTED();
    // END TODO
    store_output<T>(out, state, first_row, S_q - q_start, head_dim);
}

template <int D>
void launch_strided_attention(const float* query, const float* key, const float* value, float* out,
                              int64_t batch_heads, int64_t S_q, int64_t S_k, int head_dim, int64_t stride,
                              int64_t offset, bool causal, float scale_log2, cudaStream_t stream) {
    using T = Tiles<D, STRIDED_ROWS>;
    const unsigned blocks = grid_size<T>(batch_heads, S_q);
    CUDA_CHECK(cudaFuncSetAttribute(strided_attention_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    T::BYTES));
    strided_attention_kernel<D><<<blocks, T::THREADS, T::BYTES, stream>>>(query, key, value, out, S_q, S_k, head_dim,
                                                                          stride, offset, causal, scale_log2);
    CUDA_CHECK_LAUNCH();
}

void custom_strided_attention(const float* query, const float* key, const float* value, float* out,
                              int64_t batch_heads, int64_t S_q, int64_t S_k, int head_dim, int64_t stride,
                              int64_t offset, bool causal, float scale, cudaStream_t stream) {
    const auto launch = head_dim > 64 ? launch_strided_attention<128> : launch_strided_attention<64>;
    // softmax in base e of x is softmax in base 2 of log2(e) * x
    launch(query, key, value, out, batch_heads, S_q, S_k, head_dim, stride, offset, causal, scale * LOG2_E, stream);
}
