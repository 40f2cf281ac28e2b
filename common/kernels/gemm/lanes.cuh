// lanes.cuh - which entries of C a thread owns, and what it does for each k.
//
//   SideBySide, Spread    a thread's rows and columns in its warp's piece
//   Fragment              a thread's operands from both tiles for one k
//   write_sums            stores its entries to C
//
// A thread owns TM rows and TN columns of its warp's piece, in groups of four. LANES lanes share the rows (columns) of
// the piece; `lane` is this one's index among them:
//
//     SideBySide    lane 0 | lane 0 | lane 0 | lane 0 | lane 1 | lane 1 | ...     all of a lane's groups together
//     Spread        lane 0 | lane 1 | lane 2 | lane 3 | lane 0 | lane 1 | ...     four each, in turn
//
// How this affects shared-memory banks: step3_no_conflicts.cu.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>

#include "common/cuda/row_pieces.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/gemm/shape.cuh"

namespace gemm_steps {

template <class S>
struct SideBySide {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int lane_row = lane / S::LANE_COLS, lane_col = lane % S::LANE_COLS;
    const int warp_row = warp / S::WARP_COLS * S::WM, warp_col = warp % S::WARP_COLS * S::WN;  // in the block's tile
    const int first_row = blockIdx.x * S::BM, first_col = blockIdx.y * S::BN;                  // of the tile in C

    // Where a group of four starts in the warp's piece
    __device__ __forceinline__ int row(int group) const { return lane_row * S::TM + group * 4; }
    __device__ __forceinline__ int col(int group) const { return lane_col * S::TN + group * 4; }
};

// Lanes 0 and 1 are below one another in the grid of lanes, and so are 2 and 3, and so on: among any four consecutive
// lanes, two read the same four numbers of A, and two the same of B.
template <class S>
struct Spread {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int lane_row = lane % 2 + lane / (2 * S::LANE_COLS) * 2, lane_col = lane / 2 % S::LANE_COLS;
    const int warp_row = warp / S::WARP_COLS * S::WM, warp_col = warp % S::WARP_COLS * S::WN;
    const int first_row = blockIdx.x * S::BM, first_col = blockIdx.y * S::BN;

    __device__ __forceinline__ int row(int group) const { return (group * S::LANE_ROWS + lane_row) * 4; }
    __device__ __forceinline__ int col(int group) const { return (group * S::LANE_COLS + lane_col) * 4; }
};

// A thread's operands for one k.
template <class S>
struct Fragment {
    float a[S::TM];
    float b[S::TN];

    // a_row, b_row: row k of the tiles.   Place: SideBySide or Spread
    template <class Place>
    __device__ __forceinline__ void load(const Place& place, const float* a_row, const float* b_row) {
        a_row += place.warp_row, b_row += place.warp_col;
        UNROLL
        for (int i = 0; i < S::TM; i += 4) *reinterpret_cast<float4*>(a + i) = four_at(a_row + place.row(i / 4));
        UNROLL
        for (int j = 0; j < S::TN; j += 4) *reinterpret_cast<float4*>(b + j) = four_at(b_row + place.col(j / 4));
    }

    __device__ __forceinline__ void multiply_add(float (&sums)[S::TM][S::TN]) const {
        for (int i = 0; i < S::TM; ++i)
            for (int j = 0; j < S::TN; ++j) sums[i][j] += a[i] * b[j];
    }
};

// c [M, N]. VECTOR: see operands.cuh
template <class S, bool VECTOR, class Place>
__device__ __forceinline__ void write_sums(float* c, const float (&sums)[S::TM][S::TN], const Place& place, int M,
                                           int N) {
    UNROLL
    for (int i = 0; i < S::TM; ++i) {
        const int row = place.first_row + place.warp_row + place.row(i / 4) + i % 4;
        UNROLL
        for (int j = 0; j < S::TN; j += 4) {
            const int col = place.first_col + place.warp_col + place.col(j / 4);
            if (row >= M || col >= N) continue;
            float* target = c + static_cast<size_t>(row) * N + col;
            if constexpr (VECTOR) {
                *reinterpret_cast<float4*>(target) =
                    make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
            } else {
                UNROLL
                for (int n = 0; n < 4; ++n)
                    if (col + n < N) target[n] = sums[i][j + n];
            }
        }
    }
}

}  // namespace gemm_steps
