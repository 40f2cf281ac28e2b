// flash_products.cuh - matmuls whose operands and results are tiles in shared memory, laid out as in flash_tiles.cuh.
//
//   multiply              accumulators += A B, each operand as stored or transposed
//   first_pair, pair_at   where accumulators are stored, rounded to T, in pairs of neighboring columns
//
// d [M][N][4] are a warp's accumulators, M x N tiles of 16 x 8. `shared` is the start of the block's shared memory;
// positions in it are offsets in elements.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "common/cuda/flash_tiles.cuh"
#include "common/cuda/ldmatrix.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"

namespace flash {

using namespace mma;

// d [16 M][8 N] += A [16 M][K] B [K][8 N]
//
// a_at, b_at: where the lane starts reading in `shared`, for block_at
//
//                     the operand is stored       begins at
//   A                 A [16 M ...][A_COLS]          lane_start
//     A_TURNED        A^T [K ...][A_COLS]           lane_start_b
//   B                 B^T [8 N ...][B_COLS]         lane_start_b
//     B_TURNED        B [K ...][B_COLS]             lane_start
template <bool A_TURNED, bool B_TURNED, int A_COLS, int B_COLS, int K, typename T, int M, int N>
__device__ __forceinline__ void multiply(float (&d)[M][N][4], const T* shared, unsigned a_at, unsigned b_at) {
    UNROLL
    for (int k = 0; k < K / 16; ++k) {
        unsigned a[M][4], b[N / 2][2][2];
        UNROLL
        for (int i = 0; i < M; ++i) {
            if constexpr (A_TURNED)
                ldmatrix_x4_trans(a[i][0], a[i][1], a[i][2], a[i][3], shared + block_at<A_COLS>(a_at, k, i));
            else
                ldmatrix_x4(a[i][0], a[i][1], a[i][2], a[i][3], shared + block_at<A_COLS>(a_at, i, k));
        }
        UNROLL
        for (int j = 0; j < N / 2; ++j) {
            unsigned(&left)[2] = b[j][0], (&right)[2] = b[j][1];
            if constexpr (B_TURNED)
                ldmatrix_x4_trans(left[0], left[1], right[0], right[1], shared + block_at<B_COLS>(b_at, k, j));
            else
                ldmatrix_x4(left[0], left[1], right[0], right[1], shared + block_at<B_COLS>(b_at, j, k));
        }
        UNROLL
        for (int i = 0; i < M; ++i) {
            UNROLL
            for (int j = 0; j < N; ++j) mma_m16n8k16<T>(d[i][j], a[i], b[j / 2][j % 2]);
        }
    }
}

// first_pair: this lane's first pair in a tile [..][COLS], for accumulators that start at row `row` and column `col`.
// pair_at: from there, the pair of mma tile (i, j), rows 0 ... 7 or 8 ... 15 (half). Rows of a tile start at multiples
// of 128 bytes, so that moving to another chunk is an XOR.
template <int COLS>
__device__ __forceinline__ unsigned first_pair(int row, int col) {
    static_assert(COLS % 64 == 0);
    const int lane = threadIdx.x % 32;
    return (row + lane / 4) * COLS + swizzle<COLS * 2>(lane / 4, col / 8) * 8 + lane % 4 * 2;
}
template <int COLS, typename T>
__device__ __forceinline__ unsigned& pair_at(T* shared, unsigned first, int i, int j, int half) {
    return *reinterpret_cast<unsigned*>(shared + (first ^ static_cast<unsigned>(8 * j)) + (16 * i + 8 * half) * COLS);
}

}  // namespace flash
