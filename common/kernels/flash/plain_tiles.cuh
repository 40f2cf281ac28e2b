// plain_tiles.cuh - tiles in shared memory and their GEMMs, written once for float, __half and __nv_bfloat16.
//
//   Tile             the layout of a tile [rows][COLS]
//   load_tile        rows of a tensor -> a tile
//   store_pair       two neighboring columns of a warp's accumulators -> a tile
//   multiply         accumulators += A B, each operand a tile as stored or transposed
//   multiply_taken   the same, but an element of A that is 0 ignores B, even NaN
//   store_row        two neighboring columns of a row -> a tensor
//
// 16 bits: the tiles and GEMMs of flash_tiles.cuh and flash_products.cuh, on tensor cores. float: rows are 4 longer
// than COLS, so that 8 rows are read in the same columns without bank conflicts, and FMAs. Either way a warp's
// accumulators have the layout of mma.cuh: a lane has rows lane / 4 and lane / 4 + 8 of 16, and two of every 8 columns.
// So the code between the GEMMs does not depend on the type.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/cp_async.cuh"
#include "common/cuda/flash_products.cuh"
#include "common/cuda/flash_tiles.cuh"
#include "common/cuda/float_conversion.cuh"
#include "common/cuda/ldmatrix.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/row_pieces.cuh"
#include "common/cuda/unroll.cuh"

template <typename T, int COLS>
struct Tile {
    static constexpr int PIECE = 16 / sizeof(T);                      // elements in 16 bytes
    static constexpr int STRIDE = sizeof(T) == 2 ? COLS : COLS + 4;  // from one row to the next
    static constexpr int elements(int rows) { return rows * STRIDE; }

    // The address of piece `piece` of a row.
    static __device__ __forceinline__ T* at(T* tile, int row, int piece) {
        if constexpr (sizeof(T) == 2)
            return mma::swizzled<COLS>(tile, row, piece);
        else
            return tile + row * STRIDE + piece * PIECE;
    }
    static __device__ __forceinline__ float element(T* tile, int row, int col) {
        return to_float(at(tile, row, col / PIECE)[col % PIECE]);
    }
};

// The first `rows` rows of `source` as a tile of ROWS; zeros past the last row, and from head_dim on.
//   pieces: rows start at multiples of 16 bytes and consist of whole 16-byte pieces; the copy is then asynchronous,
//   until cp_async_wait_all().
template <typename T, int ROWS, int COLS, int THREADS>
__device__ __forceinline__ void load_tile(T* tile, const T* source, int64_t row_stride, int rows, int head_dim,
                                          bool pieces) {
    using To = Tile<T, COLS>;
    constexpr int PIECES = COLS / To::PIECE;
    for (int i = threadIdx.x; i < ROWS * PIECES; i += THREADS) {
        const int row = i / PIECES, col = i % PIECES * To::PIECE;
        const bool exists = row < rows && col < head_dim;
        const T* from = exists ? source + row * row_stride + col : source;
        T* to = To::at(tile, row, i % PIECES);
        if (pieces) {
            cp_async_zfill<16>(to, from, exists);
        } else {
            for (int d = 0; d < To::PIECE; ++d) to[d] = exists && col + d < head_dim ? from[d] : T(0.0f);
        }
    }
}

// tile[row][col], tile[row][col + 1] = x, y; col is even.
template <int COLS, typename T>
__device__ __forceinline__ void store_pair(T* tile, int row, int col, float x, float y) {
    using To = Tile<T, COLS>;
    T* to = To::at(tile, row, col / To::PIECE) + col % To::PIECE;
    if constexpr (sizeof(T) == 2)
        *reinterpret_cast<unsigned*>(to) = mma::pack<T>(x, y);
    else
        *reinterpret_cast<float2*>(to) = make_float2(x, y);
}

// d [16][8 N] += A [16][K] B [K][8 N], by one warp.
//
//   a_at, b_at        offsets of the tiles in `shared`, in elements
//   a_first, b_first  the first row of A, the first column of B: multiples of 16 and of the number of columns of d
//
//   A is stored as [rows of A ...][A_COLS], with A_TURNED as [K ...][A_COLS]; B as [columns of B ...][B_COLS], with
//   B_TURNED as [K ...][B_COLS]
template <bool A_TURNED, bool B_TURNED, int A_COLS, int B_COLS, int K, typename T, int N>
__device__ __forceinline__ void flash::multiply(float (&d)[1][N][4], const T* shared, int a_at, int a_first, int b_at,
                                         int b_first) {
    if constexpr (sizeof(T) == 2) {
        const unsigned a = A_TURNED ? block_at<A_COLS>(a_at + lane_start_b<A_COLS>(), 0, a_first / 16)
                                    : block_at<A_COLS>(a_at + lane_start<A_COLS>(), a_first / 16, 0);
        const unsigned b = B_TURNED ? block_at<B_COLS>(b_at + lane_start<B_COLS>(), 0, b_first / 16)
                                    : block_at<B_COLS>(b_at + lane_start_b<B_COLS>(), b_first / 16, 0);
        flash::multiply<A_TURNED, B_TURNED, A_COLS, B_COLS, K>(d, shared, a, b);
    } else {
        constexpr int A_STRIDE = Tile<T, A_COLS>::STRIDE, B_STRIDE = Tile<T, B_COLS>::STRIDE;
        const int lane = threadIdx.x % 32, row = a_first + lane / 4, col = b_first + lane % 4 * 2;
        const float* a = shared + a_at + (A_TURNED ? row : row * A_STRIDE);
        const float* b = shared + b_at + (B_TURNED ? col : col * B_STRIDE);
#pragma unroll 1
        for (int k = 0; k < K; k += 4) {
            float x[2][4];  // rows `row` and `row` + 8, four k
            UNROLL
            for (int r = 0; r < 2; ++r) {
                if constexpr (A_TURNED) {
                    UNROLL
                    for (int i = 0; i < 4; ++i) x[r][i] = a[(k + i) * A_STRIDE + 8 * r];
                } else {
                    const float4 four = four_at(a + 8 * r * A_STRIDE + k);
                    x[r][0] = four.x, x[r][1] = four.y, x[r][2] = four.z, x[r][3] = four.w;
                }
            }
            UNROLL
            for (int j = 0; j < N; ++j) {
                float y[2][4];  // columns `col` and `col` + 1 of the j-th eight, four k
                UNROLL
                for (int i = 0; i < 4; ++i) {
                    if constexpr (B_TURNED) {
                        const float2 two = *reinterpret_cast<const float2*>(b + (k + i) * B_STRIDE + 8 * j);
                        y[0][i] = two.x, y[1][i] = two.y;
                    } else if (i < 2) {
                        const float4 four = four_at(b + (8 * j + i) * B_STRIDE + k);
                        y[i][0] = four.x, y[i][1] = four.y, y[i][2] = four.z, y[i][3] = four.w;
                    }
                }
                UNROLL
                for (int n = 0; n < 16; ++n) d[0][j][n / 4] += x[n / 8][n % 4] * y[n / 4 % 2][n % 4];
            }
        }
    }
}

// multiply<A_TURNED, true, ...> for a B that may hold NaN and infinity: an element of A that is 0 ignores B. Slow.
template <bool A_TURNED, int A_COLS, int B_COLS, int K, typename T, int N>
__device__ __forceinline__ void multiply_taken(float (&d)[1][N][4], T* shared, int a_at, int a_first, int b_at,
                                               int b_first) {
    const int lane = threadIdx.x % 32, col = b_first + mma::col(lane, 0);
#pragma unroll 1
    for (int k = 0; k < K; ++k) {
        float x[2];
        UNROLL
        for (int r = 0; r < 2; ++r) {
            const int row = a_first + mma::row(lane, r);
            x[r] = Tile<T, A_COLS>::element(shared + a_at, A_TURNED ? k : row, A_TURNED ? row : k);
        }
        UNROLL
        for (int n = 0; n < 4 * N; ++n) {
            const float y = Tile<T, B_COLS>::element(shared + b_at, k, col + n / 4 * 8 + n % 2);
            if (x[n % 4 / 2] != 0) d[0][n / 4][n % 4] += x[n % 4 / 2] * y;
        }
    }
}

// row[col], row[col + 1] = x, y as far as these columns exist.
template <typename T>
__device__ __forceinline__ void store_row(T* row, int col, int head_dim, float x, float y) {
    if (col < head_dim) row[col] = from_float<T>(x);
    if (col + 1 < head_dim) row[col + 1] = from_float<T>(y);
}
