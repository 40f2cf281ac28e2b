// flash_split.cuh - float32 matrices on tensor cores: every number as the sum of two halves, three mma instead of one.
//
//   split               (x, y) -> two registers of halves: big and small
//   PowerOfTwo          a factor that brings a row to the range of halves, and its inverse
//   split_rows          rows of float -> a split tile in shared memory, and their scales
//   SplitA, SplitB      fragments of split operands
//   load, load_trans    filled from shared memory by ldmatrix
//   add_products        the three products
//   scale_by_key        multiplies scores or weights by one number per key; row_maxima: a row's maximum, for wgmma
//
// Tensor cores do not support float32. But up to an error of 2^-23, a float32 number is the sum of two 11-bit numbers:
// big = x rounded to 11 bits, small = x - big rounded to 11 bits. Then
//
//   a b = a_big b_big + a_big b_small + a_small b_big      (+ a_small b_small, at most 2^-22 of it: left out)
//
// and a tensor core multiplies 11-bit numbers exactly. (Markidis et al. 2018, "NVIDIA Tensor Core Programmability,
// Performance & Precision"; Ootomo and Yokota 2022, arXiv:2203.03341.) Two things determine the accuracy:
//
//   The format. tf32 and fp16 both have 11 bits. tf32 has the exponent range of float32 ("3xTF32"), fp16 only 2^-24 to
//     2^15; but its mma is twice as fast, and the two parts take no more space than x. So here every row is multiplied
//     by a power of two that brings its largest element to [2^14, 2^15), and the results are divided by it. Elements
//     down to 2^-17 of their row's largest then keep all bits, smaller ones get an error of at most 2^-39 of it: errors
//     are relative to the row, not to the single element. No finite number over- or underflows; rows whose largest
//     element is below 2^-97 (6e-30) count as being of that size.
//   The sums. A tensor core truncates the bits that float arithmetic would round, always toward zero, so the errors add
//     up. Therefore no sum stays there for long: 32 products, the small ones first, then an ordinary addition.
//
// Split tiles are [2][rows][STRIDE] halves: big, then small. If STRIDE is an odd number of 16-byte chunks, ldmatrix has
// no bank conflicts.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>

#include "common/cuda/ldmatrix.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"

// (x, y) = big + small, each a register of two halves.
__device__ __forceinline__ void split(float x, float y, unsigned& big, unsigned& small) {
    const __half2 rounded = __floats2half2_rn(x, y);
    const float2 back = __half22float2(rounded);
    big = *reinterpret_cast<const unsigned*>(&rounded);
    small = mma::pack<__half>(x - back.x, y - back.y);
}

// The power of two that brings `largest` to [2^14, 2^15), and its inverse.
struct PowerOfTwo {
    float factor, inverse;
    __device__ __forceinline__ explicit PowerOfTwo(float largest) {
        const unsigned exponent = max(__float_as_uint(largest) >> 23, 30u);  // 127 is the exponent of 2^0
        factor = __uint_as_float((127 + 14 + 127 - exponent) << 23);
        inverse = __uint_as_float((exponent - 14) << 23);
    }
};

// ROWS rows of D floats -> a split tile and their scales: row = scale * (big + small). All THREADS threads call; eight
// neighboring lanes handle a row.
//
// A row with infinities is replaced by their signs, and zeros elsewhere, and gets the scale infinity: a product with it
// is what it would be in float32, infinity of the right sign or NaN, and other rows are not affected.
//
//   fetch(row, col)   columns col ... col + 3 of the row, a float4
template <int ROWS, int D, int STRIDE, int THREADS, typename Fetch>
__device__ __forceinline__ void split_rows(__half* tile, float* scales, Fetch fetch) {
    const int lane = threadIdx.x % 8;
    UNROLL_BY(2)
    for (int row = threadIdx.x / 8; row < ROWS; row += THREADS / 8) {
        float4 x[D / 32];
        float largest = 0;
        for (int i = 0; i < D / 32; ++i) {
            x[i] = fetch(row, 32 * i + 4 * lane);
            largest = fmaxf(largest, fmaxf(fmaxf(fabsf(x[i].x), fabsf(x[i].y)), fmaxf(fabsf(x[i].z), fabsf(x[i].w))));
        }
        for (int distance = 1; distance < 8; distance *= 2)
            largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, distance));
        PowerOfTwo scale(largest);
        if (largest == INFINITY) {
            const auto sign = [](float y) { return isinf(y) ? copysignf(1, y) : 0 * y; };
            for (float4& y : x) y = make_float4(sign(y.x), sign(y.y), sign(y.z), sign(y.w));
            scale.factor = 1, scale.inverse = INFINITY;
        }
        for (int i = 0; i < D / 32; ++i) {
            uint2 big, small;
            split(x[i].x * scale.factor, x[i].y * scale.factor, big.x, small.x);
            split(x[i].z * scale.factor, x[i].w * scale.factor, big.y, small.y);
            __half* to = tile + row * STRIDE + 32 * i + 4 * lane;
            *reinterpret_cast<uint2*>(to) = big;
            *reinterpret_cast<uint2*>(to + ROWS * STRIDE) = small;
        }
        if (lane == 0) scales[row] = scale.inverse;
    }
}

// Fragments of a split operand with K = 32: two k steps of mma_m16n8k16. A: 2 x 16 rows; B: N groups of 8 columns.
struct SplitA {
    unsigned big[2][2][4], small[2][2][4];  // [16 rows][k step]
};
template <int N>
struct SplitB {
    unsigned big[N][2][2], small[N][2][2];  // [8 columns][k step]
};

// sum[n][m] = the product of A's rows 16 m ... and B's columns 8 n ..., the small parts first. Consecutive mma are
// independent.
template <int N>
__device__ __forceinline__ void add_products(float (&sum)[N][2][4], const SplitA& a, const SplitB<N>& b) {
    mma::clear(sum);
    UNROLL
    for (int i = 0; i < 2 * N * 2; ++i) {
        const int k = i / (2 * N), n = i / 2 % N, m = i % 2;
        mma::mma_m16n8k16<__half>(sum[n][m], a.small[m][k], b.big[n][k]);
    }
    UNROLL
    for (int i = 0; i < 2 * N * 2; ++i) {
        const int k = i / (2 * N), n = i / 2 % N, m = i % 2;
        mma::mma_m16n8k16<__half>(sum[n][m], a.big[m][k], b.small[n][k]);
    }
    UNROLL
    for (int i = 0; i < 2 * N * 2; ++i) {
        const int k = i / (2 * N), n = i / 2 % N, m = i % 2;
        mma::mma_m16n8k16<__half>(sum[n][m], a.big[m][k], b.big[n][k]);
    }
}

__device__ __forceinline__ void load(unsigned (&a)[4], const __half* from) {
    mma::ldmatrix_x4(a[0], a[1], a[2], a[3], from);
}
__device__ __forceinline__ void load(unsigned (&b)[2][2], const __half* from) {
    mma::ldmatrix_x4(b[0][0], b[0][1], b[1][0], b[1][1], from);
}
__device__ __forceinline__ void load_trans(unsigned (&b)[2][2], const __half* from) {
    mma::ldmatrix_x4_trans(b[0][0], b[0][1], b[1][0], b[1][1], from);
}

// x[row][key] *= the scale of the tile's key
template <int N8>
__device__ __forceinline__ void scale_by_key(float (&x)[N8][4], const float* scales) {
    UNROLL
    for (int n = 0; n < N8; ++n) {
        const float2 scale = *reinterpret_cast<const float2*>(scales + 8 * n + mma::d_col(threadIdx.x % 32, 0));
        UNROLL
        for (int e = 0; e < 4; ++e) x[n][e] *= e % 2 == 0 ? scale.x : scale.y;
    }
}

// The maximum of each row in this lane's columns.
template <int N8>
__device__ __forceinline__ void row_maxima(float (&top)[2], const float (&x)[N8][4]) {
    UNROLL
    for (int half = 0; half < 2; ++half) {
        top[half] = fmaxf(x[0][2 * half], x[0][2 * half + 1]);
        UNROLL
        for (int n = 1; n < N8; ++n) top[half] = fmaxf(top[half], fmaxf(x[n][2 * half], x[n][2 * half + 1]));
    }
}
