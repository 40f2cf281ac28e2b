// plain_transpose.cuh - which blocks of queries list a block of keys, for the gradients of keys and values.
//
//   transpose_lists    counts and columns of the blocks of keys
//
// One warp per block of keys per head checks 32 blocks of queries at a time, searching each one's ascending list for
// its block. Like compress_block_mask.cu of common/kernels/sparse, with a search instead of a mask.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash/flash.h"

constexpr int TRANSPOSE_WARPS = 4;

//   lists      counts [heads, q_blocks], columns [heads, q_blocks, k_blocks]
//   counts     [heads, k_blocks]
//   columns    [heads, k_blocks, q_blocks], ascending; entries past counts are not written
__global__ void __launch_bounds__(32 * TRANSPOSE_WARPS)
    transpose_lists_kernel(const BlockLists lists, int* counts, int* columns, int64_t heads, int q_blocks, int k_blocks) {
    const int lane = threadIdx.x % 32;
    const int64_t row = int64_t{blockIdx.x} * TRANSPOSE_WARPS + threadIdx.x / 32;
    if (row >= heads * k_blocks) return;
    const int64_t head = row / k_blocks;
    const int k_block = static_cast<int>(row % k_blocks);
    int count = 0;
    for (int first = 0; first < q_blocks; first += 32) {
        const int q_block = first + lane;
        bool listed = false;
        if (q_block < q_blocks) {
            const int64_t at = head * q_blocks + q_block;
            const int* list = lists.columns + at * k_blocks;
            int begin = 0, end = min(max(lists.counts[at], 0), k_blocks);
            while (begin < end) {
                const int middle = (begin + end) / 2;
                if (list[middle] < k_block)
                    begin = middle + 1;
                else
                    end = middle;
            }
            listed = begin < min(max(lists.counts[at], 0), k_blocks) && list[begin] == k_block;
        }
        const unsigned all = __ballot_sync(FULL_WARP, listed);
        if (listed) columns[row * q_blocks + count + __popc(all & ((1u << lane) - 1))] = q_block;
        count += __popc(all);
    }
    if (lane == 0) counts[row] = count;
}

// transposed: heads * k_blocks counts, then the columns
inline BlockLists transpose_lists(const BlockLists& lists, int* transposed, int64_t heads, int q_blocks, int k_blocks,
                                  cudaStream_t stream) {
    const int64_t rows = heads * k_blocks;
    int* columns = transposed + rows;
    const unsigned blocks = grid_blocks(ceil_div(rows, int64_t{TRANSPOSE_WARPS}), "key");
    transpose_lists_kernel<<<blocks, 32 * TRANSPOSE_WARPS, 0, stream>>>(lists, transposed, columns, heads, q_blocks,
                                                                       k_blocks);
    CUDA_CHECK_LAUNCH();
    return {transposed, columns, lists.block};
}
