// flash_tiles.cuh - tiles of 16-bit rows in shared memory: filled by asynchronous copies, read as mma fragments.
//
//   TileLoader                 copies rows of a matrix from global memory to a tile, using all threads of the block
//   lane_start, lane_start_b   where a lane starts reading with ldmatrix
//   block_at                   the same for the 16 x 16 block at row 16 r, column 16 k of a tile
//
// A tile is [ROWS][D] elements of T = __half or __nv_bfloat16 and starts at a multiple of 128 bytes. A row consists of
// 16-byte chunks of 8 elements, placed by swizzle() of common/cuda/ldmatrix.cuh: rows are written and columns read
// without bank conflicts and without padding.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/cp_async.cuh"
#include "common/cuda/ldmatrix.cuh"
#include "common/cuda/unroll.cuh"

namespace flash {

using namespace mma;

// The number of neighboring chunks of a row that the swizzle permutes: 4 or 8.
template <int D>
constexpr int SWIZZLED_CHUNKS = D / 8 % 8 == 0 ? 8 : 4;

// Copies consecutive tiles [ROWS][D] of a matrix to shared memory. tile[r][d] = 0 if the matrix has no such row or
// d >= head_dim, so that no other code has to handle short tiles or head_dim < D. All THREADS threads of the block
// call.
//
// LANES neighboring threads copy a row: as many as the swizzle permutes chunks, or fewer if there are fewer threads, so
// that at least 8 rows are copied at once. A thread's rows are then a multiple of 8 apart and have their chunks in the
// same positions, so a single addition leads from one to the next.
//
//   ALIGNED   the matrix and its row_stride are multiples of 16 bytes, head_dim a multiple of 8: one cp.async per
//             chunk, in the group that the caller commits. Otherwise elements are loaded one by one, synchronously.
template <typename T, int D, int THREADS, bool ALIGNED>
class TileLoader {
    static constexpr int PERIOD = SWIZZLED_CHUNKS<D>, LANES = THREADS < 8 * PERIOD ? THREADS / 8 : PERIOD;
    static constexpr int ROWS_AT_ONCE = THREADS / LANES;
    static_assert(D % 32 == 0 && ROWS_AT_ONCE % 8 == 0);
    const int row_ = static_cast<int>(threadIdx.x) / LANES, chunk_ = static_cast<int>(threadIdx.x) % LANES;
    const int to_ = row_ * D + swizzle<D * sizeof(T)>(row_, chunk_) * 8;  // this thread's first chunk in a tile
    const int columns_;                                                   // columns left from that chunk on
    const T* source_;                                                     // address of that chunk in the matrix
    const int64_t row_step_;                                              // from one of this thread's rows to the next

   public:
    // matrix [...][head_dim], row_stride in elements
    __device__ __forceinline__ TileLoader(const T* matrix, int64_t row_stride, int head_dim)
        : columns_(head_dim - chunk_ * 8),
          source_(matrix + row_ * row_stride + chunk_ * 8),
          row_step_(ROWS_AT_ONCE * row_stride) {}

    // Skips rows, or goes back if negative: a multiple of ROWS_AT_ONCE, which divides 32.
    __device__ __forceinline__ void skip(int rows) { source_ += rows / ROWS_AT_ONCE * row_step_; }

    // The next ROWS rows. `rows`: how many the matrix has left; 0 or less gives a tile of zeros.
    //   tile [ROWS][D], shared
    template <int ROWS>
    __device__ __forceinline__ void load(T* tile, int rows) {
        static_assert(ROWS % ROWS_AT_ONCE == 0);
        UNROLL
        for (int i = 0; i < ROWS; i += ROWS_AT_ONCE) {
            UNROLL
            for (int j = 0; j < D / 8; j += LANES) {
                T* to = tile + (to_ ^ j % PERIOD * 8) + i * D + j / PERIOD * PERIOD * 8;
                if constexpr (ALIGNED) {
                    cp_async_zfill<16>(to, source_ + j * 8, row_ + i < rows && j * 8 < columns_);
                } else {
                    UNROLL
                    for (int d = 0; d < 8; ++d)
                        to[d] = row_ + i < rows && j * 8 + d < columns_ ? source_[j * 8 + d] : T(0.0f);
                }
            }
            source_ += row_step_;
        }
    }
};

// Offset in elements of the row that a lane addresses for ldmatrix x4, in a block of 16 x 16 elements.
//
//   lane_start     for A, and with _trans for two B operands whose rows are rows of the tile: V in O = P V
//   lane_start_b   for two B operands whose columns are rows of the tile: K in S = Q K^T
template <int D>
__device__ __forceinline__ unsigned lane_start() {
    const int lane = threadIdx.x % 32, row = lane % 16;
    return row * D + swizzle<D * 2>(row, lane / 16) * 8;
}
template <int D>
__device__ __forceinline__ unsigned lane_start_b() {
    const int lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8;
    return row * D + swizzle<D * 2>(row, lane / 8 % 2) * 8;
}

// The same for the block at row 16 r and column 16 k of a tile; start = offset of the tile + lane_start. The swizzle
// XORs the chunk's index with bits of its row, so moving right by 2 k chunks is an XOR, too.
template <int D>
__device__ __forceinline__ unsigned block_at(unsigned start, int r, int k) {
    constexpr int PERIOD = SWIZZLED_CHUNKS<D> / 2;  // in blocks
    return (start ^ static_cast<unsigned>(k % PERIOD * 16)) + r * 16 * D + k / PERIOD * PERIOD * 16;
}

}  // namespace flash
