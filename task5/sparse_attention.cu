// sparse_attention.cu - sliding window and block-sparse attention, forward, float32.
//
// Contents
//   (attention_tiles.cuh               the tiles, the online softmax; hidden_rows: gap 1)
//   window_keys                        the range of keys that the rows of a block see         (gap 3)
//   rows_outside_window                which rows may not see the lane's key                  (gap 4)
//   sliding_window_kernel              the loop over the tiles of keys in that range
//   launch_sliding_window              shared memory, grid and launch
//   compress_block_mask_kernel         a row of the block mask -> the list of its true blocks (gap 5)
//   block_sparse_kernel                the loop over the blocks of such a list                (gap 6)
//   launch_block_sparse                shared memory, grid and launch
//   custom_sliding_window_attention, custom_compress_block_mask, custom_block_sparse_attention: the host functions
//
// Sliding window: query i sees the keys i - window < j <= i, or without `causal` i - window < j < i + window. A block
// of rows loops over the tiles of keys from the first that its first row sees to the last that its last row sees.
//
// Block-sparse: the score matrix is cut into squares of block x block, and a bool mask [heads, S_q / block,
// S_k / block] selects those that are computed. A separate kernel first lists the true blocks of each mask row, so that
// no thread block has to search for them; the lists serve all batch entries and every call with the same mask:
//
//       mask of one head        counts    columns
//       1 0 0 0                 1         0 -1 -1 -1
//       0 0 0 0                 0        -1 -1 -1 -1       its queries see no key: their output is 0
//       1 0 1 1                 3         0  2  3 -1

#include "task5/given/sparse_attention.h"

#include "attention_tiles.cuh"

constexpr int WINDOW_ROWS = 48;    // rows of Q per block of sliding_window_kernel
constexpr int SPARSE_ROWS = 32;    // of block_sparse_kernel: they must be in one row of the block mask
constexpr int COMPRESS_WARPS = 4;  // rows of the mask per block of compress_block_mask_kernel

// Minimum blocks per SM for __launch_bounds__; without it, the compiler aims for higher occupancy and spills.
template <int D>
constexpr int WINDOW_BLOCKS = D > 64 ? 3 : 4;
template <int D>
constexpr int SPARSE_BLOCKS = D > 64 ? 4 : 5;

// The keys begin .. end - 1; none if begin >= end.
struct KeyRange {
    int64_t begin, end;
};

// The range of keys that rows q_start .. q_start + rows - 1 see; begin is rounded down to a multiple of tile_keys.
__device__ __forceinline__ KeyRange window_keys(int64_t q_start, int rows, int tile_keys, int64_t S_k, int64_t window,
                                                bool causal) {
    KeyRange keys = {};
    // TODO 3 (about 5 lines): the first key that the first row sees, at least 0, rounded down; and one more than
    //     the last key that the last row sees, at most S_k.
    NOT_IMPLEMENTED();
    // END TODO
    return keys;
}

// hidden_rows for a window: bit r is set if the query at query_position + r may not see the key at key_position.
template <typename T>
__device__ __forceinline__ unsigned rows_outside_window(int64_t key_position, int64_t query_position, int64_t S_k,
                                                        int64_t window, bool causal) {
    unsigned hidden = 0;
    // TODO 4 (about 7 lines): as in hidden_rows, but the band has two edges. How far is the key ahead of the
    //     row's query? For a key before the query, that distance is negative.
    NOT_IMPLEMENTED();
    // END TODO
    return hidden;
}

// One block: B_r rows of one head and the tiles of keys that they see. Grid: grid_size blocks along x.
//
//   query, out [batch_heads, S_q, head_dim]      key, value [batch_heads, S_k, head_dim]
template <int D>
__global__ void __launch_bounds__(Tiles<D, WINDOW_ROWS>::THREADS, WINDOW_BLOCKS<D>)
    sliding_window_kernel(const float* __restrict__ query, const float* __restrict__ key,
                          const float* __restrict__ value, float* __restrict__ out, int64_t S_q, int64_t S_k,
                          int head_dim, int64_t window, bool causal, float scale_log2) {
    using T = Tiles<D, WINDOW_ROWS>;
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
    const KeyRange keys = window_keys(q_start, T::B_r, T::B_c, S_k, window, causal);
    for (int64_t k_start = keys.begin; k_start < keys.end; k_start += T::B_c) {
        const unsigned hidden = rows_outside_window<T>(k_start + lane, q_start + first_row, S_k, window, causal);
        attend_to_tile<T>(state, shared, key + k_start * head_dim, value + k_start * head_dim, keys.end - k_start, 1,
                          head_dim, first_row, hidden);
    }
    store_output<T>(out, state, first_row, S_q - q_start, head_dim);
}

template <int D>
void launch_sliding_window(const float* query, const float* key, const float* value, float* out, int64_t batch_heads,
                           int64_t S_q, int64_t S_k, int head_dim, int64_t window, bool causal, float scale_log2,
                           cudaStream_t stream) {
    using T = Tiles<D, WINDOW_ROWS>;
    const unsigned blocks = grid_size<T>(batch_heads, S_q);
    CUDA_CHECK(cudaFuncSetAttribute(sliding_window_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, T::BYTES));
    sliding_window_kernel<D><<<blocks, T::THREADS, T::BYTES, stream>>>(query, key, value, out, S_q, S_k, head_dim,
                                                                       window, causal, scale_log2);
    CUDA_CHECK_LAUNCH();
}

// One warp per row of the mask, 32 mask blocks at a time. Grid: ceil_div(rows, COMPRESS_WARPS) blocks along x.
//
//   mask, columns [rows, k_blocks]      counts [rows]
__global__ void __launch_bounds__(32 * COMPRESS_WARPS)
    compress_block_mask_kernel(const bool* __restrict__ mask, int* __restrict__ counts, int* __restrict__ columns,
                               int64_t rows, int k_blocks) {
    const int lane = threadIdx.x % 32;
    const int64_t row = int64_t{blockIdx.x} * COMPRESS_WARPS + threadIdx.x / 32;
    if (row >= rows) return;  // the whole warp returns
    mask += row * k_blocks;
    columns += row * k_blocks;
    // TODO 5 (about 10 lines): go through the columns 32 at a time, one per lane: which lanes have a true entry
    //     (__ballot_sync over the whole warp; a lane past the row's end takes part, with false)? Such a lane writes
    //     its column's number after the earlier ones: its position is the count so far plus the number of lower lanes
    //     with true (__popc of the ballot's lower bits). Then -1 for the rest of the row; one lane writes the count.
    NOT_IMPLEMENTED();
    // END TODO
}

// One block: SPARSE_ROWS rows of one head and the key blocks on their list. Grid: grid_size blocks along x.
//
//   query, out [batch_heads, S_q, head_dim]      key, value [batch_heads, S_k, head_dim]
//   counts [heads, S_q / block]                  columns [heads, S_q / block, S_k / block]
template <int D>
__global__ void __launch_bounds__(Tiles<D, SPARSE_ROWS>::THREADS, SPARSE_BLOCKS<D>)
    block_sparse_kernel(const float* __restrict__ query, const float* __restrict__ key,
                        const float* __restrict__ value, float* __restrict__ out, const int* __restrict__ counts,
                        const int* __restrict__ columns, int heads, int64_t S_q, int64_t S_k, int head_dim,
                        int block, bool causal, float scale_log2) {
    using T = Tiles<D, SPARSE_ROWS>;
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
    // TODO 6 (about 13 lines): which row of the block mask is it? `head` counts the heads of all batch entries, the
    //     mask has those of one. For each listed block in turn (at most S_k / block of them, whatever the count says;
    //     skip an invalid block number), and for each tile of B_c keys in it: hidden_rows and attend_to_tile. With
    //     causal, skip the tiles that no row of this block sees.
    NOT_IMPLEMENTED();
    // END TODO
    store_output<T>(out, state, first_row, S_q - q_start, head_dim);
}

template <int D>
void launch_block_sparse(const float* query, const float* key, const float* value, float* out, const int* counts,
                         const int* columns, int64_t batch_heads, int heads, int64_t S_q, int64_t S_k,
                         int head_dim, int block, bool causal, float scale_log2, cudaStream_t stream) {
    using T = Tiles<D, SPARSE_ROWS>;
    const unsigned blocks = grid_size<T>(batch_heads, S_q);
    CUDA_CHECK(cudaFuncSetAttribute(block_sparse_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, T::BYTES));
    block_sparse_kernel<D><<<blocks, T::THREADS, T::BYTES, stream>>>(query, key, value, out, counts, columns, heads,
                                                                     S_q, S_k, head_dim, block, causal, scale_log2);
    CUDA_CHECK_LAUNCH();
}

void custom_sliding_window_attention(const float* query, const float* key, const float* value, float* out,
                                     int64_t batch_heads, int64_t S_q, int64_t S_k, int head_dim, int64_t window,
                                     bool causal, float scale, cudaStream_t stream) {
    const auto launch = head_dim > 64 ? launch_sliding_window<128> : launch_sliding_window<64>;
    launch(query, key, value, out, batch_heads, S_q, S_k, head_dim, window, causal, scale * LOG2_E, stream);
}

void custom_compress_block_mask(const bool* mask, int* counts, int* columns, int64_t rows, int k_blocks,
                                cudaStream_t stream) {
    const unsigned blocks = grid_blocks(ceil_div(rows, int64_t{COMPRESS_WARPS}), "block_mask", "heads");
    compress_block_mask_kernel<<<blocks, 32 * COMPRESS_WARPS, 0, stream>>>(mask, counts, columns, rows, k_blocks);
    CUDA_CHECK_LAUNCH();
}

void custom_block_sparse_attention(const float* query, const float* key, const float* value, float* out,
                                   const int* counts, const int* columns, int64_t batch_heads, int heads,
                                   int64_t S_q, int64_t S_k, int head_dim, int block, bool causal, float scale,
                                   cudaStream_t stream) {
    const auto launch = head_dim > 64 ? launch_block_sparse<128> : launch_block_sparse<64>;
    launch(query, key, value, out, counts, columns, batch_heads, heads, S_q, S_k, head_dim, block, causal,
           scale * LOG2_E, stream);
}
