// compress_block_mask.cu - converts a block mask to one list per row, the schedule of block-sparse attention. On the
// GPU, so that a mask computed by a kernel need not go to the CPU and back.
//
// A warp handles a row, 32 blocks at a time. A ballot tells every lane which of the 32 are true; the position of a true
// block in the list is the number of true ones before it:
//
//     blocks of keys       0   1   2   3   4   5   6   7
//     block_mask           0   1   1   0   0   1   0   1
//     true ones before         0   1           2       3          popcount of the ballot below the lane's bit
//     columns              1   2   5   7  -1  -1  -1  -1          counts: 4
//
// Duplicates the kernel taught in task 5, on purpose: there it is a gap for students to fill, and this folder must work
// regardless. It need not be faster: one mask entry covers a thousand scores or more.
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/warp.cuh"
#include "common/kernels/sparse/sparse.h"

constexpr int WARPS = 4;

// block_mask [rows][k_blocks], counts [rows], columns [rows][k_blocks]
__global__ void compress_kernel(const bool* block_mask, int* counts, int* columns, int64_t rows, int k_blocks) {
    const int lane = threadIdx.x % 32;
    const int64_t row = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    block_mask += row * k_blocks;
    columns += row * k_blocks;
    int count = 0;
    for (int first = 0; first < k_blocks; first += 32) {
        const int k_block = first + lane;
        const bool is_true = k_block < k_blocks && block_mask[k_block];
        const unsigned all = __ballot_sync(FULL_WARP, is_true), before = all & ((1u << lane) - 1);
        if (is_true) columns[count + __popc(before)] = k_block;
        count += __popc(all);
    }
    for (int n = count + lane; n < k_blocks; n += 32) columns[n] = -1;
    if (lane == 0) counts[row] = count;
}

void compress_block_mask(const bool* block_mask, int* counts, int* columns, int64_t rows, int64_t k_blocks,
                         cudaStream_t stream) {
    const unsigned blocks = grid_blocks(ceil_div(rows, int64_t{WARPS}), "block_mask", "heads");
    compress_kernel<<<blocks, 32 * WARPS, 0, stream>>>(block_mask, counts, columns, rows, static_cast<int>(k_blocks));
    CUDA_CHECK_LAUNCH();
}
