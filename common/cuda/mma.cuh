// mma.cuh - tensor cores: D = A B + D for one small tile, computed by the 32 lanes of a warp. namespace mma.
//
//   mma_m16n8k16<T>(d, a, b)   T = __half or __nv_bfloat16: A 16 x 16, B 16 x 8, D 16 x 8 in float
//   clear(d)                   accumulators = 0
//   by_row(d)(r, c)            a lane's accumulators as the small matrix that they form; row, col: its coordinates
//   pack<T>(low, high)         two floats -> one register of two T, rounded to nearest even
//   unpack<T>(bits)            the inverse
//   accumulators_as_a<T>(a, left, right)    two D tiles -> the A operand of the next mma
//   d_row, d_col, a_row, a_col, b_row, b_col    coordinates of this lane's registers in the tile
//
// A tile is spread over the registers of the warp: every lane holds a few elements of each matrix, its fragment.
// unsigned a[4], b[2] and float d[4] are one lane's fragments. All 32 lanes must call convergently.
//
// The layout (lane numbers L0 ... L31; see "Matrix Fragments for mma" in the PTX manual), with g = lane / 4 and
// t = lane % 4:
//
//   D, 16 x 8, float. A lane holds two neighboring columns of rows g and g + 8.
//
//              columns 0 1    2 3    4 5    6 7
//       row  0       [ L0  |  L1  |  L2  |  L3  ]
//       row  1       [ L4  |  L5  |  L6  |  L7  ]      d[0], d[1]: the even and the odd column
//        ...
//       row  7       [ L28 |  L29 |  L30 |  L31 ]
//       row  8       [ L0  |  L1  |  L2  |  L3  ]
//        ...                                           d[2], d[3]
//       row 15       [ L28 |  L29 |  L30 |  L31 ]
//
//     So a row is spread over the 4 lanes of a quad: quad_max() and quad_sum() of warp.cuh.
//
//   A, 16 x 16, 16-bit, row-major. A register holds two neighboring columns, the first in its low half.
//
//              columns 0 1    2 3    4 5    6 7     8 9   10 11  12 13  14 15
//       row  0       [ L0  |  L1  |  L2  |  L3  ][  L0  |  L1  |  L2  |  L3  ]
//        ...                 a[0]                              a[2]
//       row  7       [ L28 |  L29 |  L30 |  L31 ][  L28 |  L29 |  L30 |  L31 ]
//       row  8       [ L0  |  L1  |  L2  |  L3  ][  L0  |  L1  |  L2  |  L3  ]
//        ...                 a[1]                              a[3]
//       row 15       [ L28 |  L29 |  L30 |  L31 ][  L28 |  L29 |  L30 |  L31 ]
//
//     Each quarter has the layout of half of D: two D tiles side by side, rounded to 16 bits, form an A tile. In
//     attention, S = Q K^T leaves P's accumulators where P V needs them: accumulators_as_a(), no shared memory.
//
//   B, 16 x 8, 16-bit, column-major. A register holds two neighboring rows, the first in its low half.
//
//              column  0     1     2    ...   7
//       rows  0  1   [ L0  | L4  | L8  | ... | L28 ]
//       rows  2  3   [ L1  | L5  | L9  | ... | L29 ]   b[0]
//       rows  4  5   [ L2  | L6  | L10 | ... | L30 ]
//       rows  6  7   [ L3  | L7  | L11 | ... | L31 ]
//       rows  8  9   [ L0  | L4  | L8  | ... | L28 ]
//        ...                                           b[1]
//       rows 14 15   [ L3  | L7  | L11 | ... | L31 ]
//
// ldmatrix.cuh fills fragments of A and B from shared memory, a whole 16 x 16 tile in one instruction.
//
// Precision. Products are exact; sums are accumulated in float, but the hardware truncates low bits where float
// arithmetic would round, and sums in an unspecified order: expect errors of a few ulps of the largest term.
//
// Turing (sm_75) has no bfloat16 tensor core instruction: there it compiles, but the kernel stops with an assertion.
// __half works; its m16n8k16 is done as two m16n8k8.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cassert>
#include <type_traits>

#include "common/cuda/unroll.cuh"
#ifdef CUDA_SIMULATOR
#include "simulator/matrix.h"  // mma_m16n8k16
#endif

namespace mma {

#ifdef CUDA_SIMULATOR
using ::mma_m16n8k16;
#else

// d [16][8] += a [16][16] b [16][8]
template <typename T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
#if __CUDA_ARCH__ >= 800
    if constexpr (std::is_same_v<T, __half>)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    if constexpr (std::is_same_v<T, __half>) {
        UNROLL
        for (int i = 0; i < 2; ++i)  // columns 0 ... 7 of A with rows 0 ... 7 of B, then 8 ... 15
            asm volatile(
                "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(b[i]));
    } else {
        assert(!"mma_m16n8k16<__nv_bfloat16> needs a GPU of compute capability 8.0 or higher");
        __trap();
    }
#endif
}

#endif

// d [M][N]: M x N tiles of D, a warp's accumulators, 16 M x 8 N numbers. A lane holds a matrix of 2 M rows and 2 N
// columns of these, by_row(d)(r, c), at row mma::row(lane, r) and column mma::col(lane, c) of the warp's.
//
//       r             0    1         2    3          c             0    1        2    3
//       row           g    g + 8     g + 16 ...      col           2 t  2 t + 1  2 t + 8 ...
template <typename Float, int M, int N>
struct ByRow {
    static constexpr int ROWS = 2 * M, COLS = 2 * N;
    Float (&d)[M][N][4];
    __device__ __forceinline__ Float& operator()(int r, int c) const { return d[r / 2][c / 2][r % 2 * 2 + c % 2]; }
};
template <typename Float, int M, int N>
__device__ __forceinline__ ByRow<Float, M, N> by_row(Float (&d)[M][N][4]) {
    return {d};
}

template <int M, int N>
__device__ __forceinline__ void clear(float (&d)[M][N][4]) {
    UNROLL
    for (int i = 0; i < 4 * M * N; ++i) d[i / (4 * N)][i / 4 % N][i % 4] = 0.0f;
}

// ---- conversions

// Packs two floats into a register of two T, as in a fragment: `low` is the element with the lower index.
template <typename T>
__device__ __forceinline__ unsigned pack(float low, float high) {
    if constexpr (std::is_same_v<T, __half>) {
        const __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<const unsigned*>(&pair);
    } else {
        static_assert(std::is_same_v<T, __nv_bfloat16>);
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const unsigned*>(&pair);
    }
}

template <typename T>
__device__ __forceinline__ float2 unpack(unsigned bits) {
    if constexpr (std::is_same_v<T, __half>) return __half22float2(*reinterpret_cast<const __half2*>(&bits));
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
}

// The accumulators of D tiles with columns 0 ... 7 (left) and 8 ... 15 (right) as one A tile of 16 x 16.
template <typename T>
__device__ __forceinline__ void accumulators_as_a(unsigned (&a)[4], const float (&left)[4], const float (&right)[4]) {
    a[0] = pack<T>(left[0], left[1]);
    a[1] = pack<T>(left[2], left[3]);
    a[2] = pack<T>(right[0], right[1]);
    a[3] = pack<T>(right[2], right[3]);
}

// ---- coordinates of a lane's register i in its tile

__host__ __device__ constexpr int d_row(int lane, int i) { return lane / 4 + i / 2 * 8; }
__host__ __device__ constexpr int d_col(int lane, int i) { return lane % 4 * 2 + i % 2; }

// The same for by_row's row r and column c.
__host__ __device__ constexpr int row(int lane, int r) { return lane / 4 + r * 8; }
__host__ __device__ constexpr int col(int lane, int c) { return lane % 4 * 2 + c / 2 * 8 + c % 2; }

// A register holds two elements; these are the first's coordinates. The second is in the next column (A) or row (B).
__host__ __device__ constexpr int a_row(int lane, int i) { return lane / 4 + i % 2 * 8; }
__host__ __device__ constexpr int a_col(int lane, int i) { return lane % 4 * 2 + i / 2 * 8; }
__host__ __device__ constexpr int b_row(int lane, int i) { return lane % 4 * 2 + i * 8; }
__host__ __device__ constexpr int b_col(int lane) { return lane / 4; }

}  // namespace mma
