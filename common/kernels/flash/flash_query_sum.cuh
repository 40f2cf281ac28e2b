// flash_query_sum.cuh - dQ, accumulated in float32 by many blocks at once in the backward pass's workspace.
//
//   QuerySum::add          adds a 16 x 8 tile of mma accumulators
//   SumOrder               the order of the tiles in memory
//   launch_convert         grad_query = scale * the sum, in T; detects NaN
//
// Every block of keys contributes to every row of dQ, so the contributions are combined in memory by atomic additions.
// They are issued directly from the accumulators, bypassing shared memory, so the sum has the layout of a warp's 32
// lanes:
//
//   the sum [batch, heads, padded rows / 16, D / 8] tiles of 16 x 8, 128 floats each; D = head_dim rounded up to 64,
//   128 or 256, for hopper_backward_wide.cuh also to 192; padded rows: PaddedRows of flash_sequences.cuh
//
//   sm_90 and higher     lane 0: d[0] d[1] d[2] d[3] | lane 1: d[0] ... | ...      one atomic addition of 16 bytes
//   others               d[0] of lanes 0 ... 31 | d[1] of lanes 0 ... 31 | ...     four of 4 bytes
//
// Either way the lanes of a warp write whole cache lines. (Which row and column d[i] of a lane is: mma.cuh.)
//
// The kernels for Hopper GPUs add pieces of 64 rows by TMA; a warp has 16 of these rows. Tiles as on sm_90, in another
// order:
//
//   the sum [batch, heads, padded rows / 64, D / 64] pieces of 8 column blocks, each of them 4 tiles
//
// The order of the additions is not fixed, so dQ may differ from run to run: in the last bits of float32, which
// rounding to T mostly hides. FlashGradients::deterministic fixes the order.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/mma.cuh"
#include "common/cuda/seen_row.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_backward.cuh"
#include "common/kernels/flash/flash_sequences.cuh"

template <int D>
struct QuerySum {
#if defined(CUDA_SIMULATOR_SM90A) || (!defined(CUDA_SIMULATOR) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
    static constexpr bool VECTORS = true;
#else
    static constexpr bool VECTORS = false;
#endif
    static constexpr int TILE = 16 * 8, PIECE = 64 * 64;

    // The offset of lane `lane`'s numbers of the tile at padded row 16 * row_block, over all heads, and column
    // 8 * col_block.
    static __device__ __forceinline__ int64_t at(int64_t row_block, int col_block, int lane) {
        return (row_block * (D / 8) + col_block) * TILE + lane * (VECTORS ? 4 : 1);
    }

    static __device__ __forceinline__ void add(float* target, const float (&d)[4]) {
#if defined(CUDA_SIMULATOR_SM90A) || (!defined(CUDA_SIMULATOR) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
        atomicAdd(reinterpret_cast<float4*>(target), make_float4(d[0], d[1], d[2], d[3]));
#else
        UNROLL
        for (int i = 0; i < 4; ++i) atomicAdd(target + 32 * i, d[i]);
#endif
    }

    // d[j] = the numbers of lane 4 r + j, j < 4: columns 2 j, 2 j + 1 of rows r and r + 8. The 16 floats are in groups
    // of four.   tile: the start of the tile
    static __device__ __forceinline__ void read(float (&d)[4][4], const float* tile, int r) {
        UNROLL
        for (int i = 0; i < 4; ++i) {
            const float4 x = *reinterpret_cast<const float4*>(tile + (VECTORS ? 16 * r + 4 * i : 32 * i + 4 * r));
            const float xs[4] = {x.x, x.y, x.z, x.w};
            UNROLL
            for (int j = 0; j < 4; ++j) (VECTORS ? d[i][j] : d[j][i]) = xs[j];
        }
    }
};

constexpr int CONVERT_THREADS = 256;

enum class SumOrder { TILES, PIECES };

// A thread: rows r and r + 8 of a tile.    nan: set to 1 if there is one
template <typename T, int D, SumOrder ORDER>
__global__ void __launch_bounds__(CONVERT_THREADS)
    flash_convert_sum_kernel(T* grad_query, const float* sum, const RowNumbers numbers, RowStrides strides, int64_t heads,
                             int head_dim, float scale, int* nan) {
    const int64_t index = blockIdx.x * int64_t{CONVERT_THREADS} + threadIdx.x, tile = index / 8;
    const int r = index % 8, col = tile % (D / 8) * 8;
    const unsigned row_blocks = numbers.rows / 16;  // per head
    if (tile >= numbers.count / 16 * int64_t{D / 8} || col >= head_dim) return;
    const unsigned block = static_cast<unsigned>(tile / (D / 8)), row_block = block % row_blocks;
    const unsigned matrix = block / row_blocks;
    int64_t place = tile;
    if constexpr (ORDER == SumOrder::PIECES) {
        const int64_t piece = (int64_t{matrix} * (row_blocks / 4) + row_block / 4) * (D / 64) + col / 64;
        place = piece * 32 + col % 64 / 8 * 4 + row_block % 4;
    }
    float d[4][4];
    QuerySum<D>::read(d, sum + place * QuerySum<D>::TILE, r);
    if (attention::has_nan(d)) atomicOr(nan, 1);
    UNROLL
    for (int half = 0; half < 2; ++half) {
        int sequence;
        const int row = numbers.padded.row_at(static_cast<int>(row_block) * 16 + r + 8 * half, sequence);
        if (row < 0) continue;
        unsigned pairs[4];
        UNROLL
        for (int j = 0; j < 4; ++j) pairs[j] = mma::pack<T>(d[j][2 * half] * scale, d[j][2 * half + 1] * scale);
        T* to = row_at(grad_query, strides, matrix / heads, matrix % heads, row) + col;
        *reinterpret_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
}

template <typename T, int D, SumOrder ORDER>
void launch_convert(const FlashGradients& g, const RowNumbers& numbers, int* nan) {
    const FlashArguments& a = g.forward;
    const unsigned blocks = grid_blocks(ceil_div(int64_t{numbers.count} * D / 16, int64_t{CONVERT_THREADS}), "query");
    flash_convert_sum_kernel<T, D, ORDER><<<blocks, CONVERT_THREADS, 0, a.stream>>>(
        static_cast<T*>(g.grad_query), g.workspace, numbers, a.out_strides, a.heads, a.head_dim, a.scale, nan);
    CUDA_CHECK_LAUNCH();
}
