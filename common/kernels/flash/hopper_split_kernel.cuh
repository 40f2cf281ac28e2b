// hopper_split_kernel.cuh - splits float32 query, key and value into halves in global memory, for
// flash_attention_wgmma_3xfp16.cu.
//
//   split_kernel    splits each row once, for all CTAs of the kernel that follows
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "common/cuda/row_pieces.cuh"
#include "common/cuda/row_strides.h"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash/flash_split.cuh"

namespace hopper_fp32 {

struct SplitTensor {
    const float* from;  // [batch][heads][S][head_dim]
    RowStrides strides;
    int64_t heads, S, rows, all_heads;  // rows: including padding, a multiple of 16; all_heads: batch * heads
    __half* to;                         // [2][all_heads][rows][D]
    float* scales;                      // [all_heads][rows]
    float factor, scale_factor;         // applied to the numbers, and to their scales
};

struct SplitArguments {
    SplitTensor tensors[3];
    int head_dim;
};

constexpr int SPLIT_ROWS = 16, SPLIT_THREADS = 8 * SPLIT_ROWS;

// A row of D floats -> its parts; row = scale * (big + small); returns scale. Eight neighboring lanes handle a row, all
// lanes of a warp call. The same as split_rows() of flash_split.cuh for each row, infinities included; that one is not
// built on this one, since it would then compile to different code.
//
//   fetch(col)               columns col ... col + 3 of the row, a float4
//   store(col, big, small)   the same columns of the parts, four halves each
template <int D, typename Fetch, typename Store>
__device__ __forceinline__ float split_row(Fetch fetch, Store store) {
    const int lane = threadIdx.x % 8;
    float4 x[D / 32];
    float largest = 0;
    for (int i = 0; i < D / 32; ++i) {
        x[i] = fetch(32 * i + 4 * lane);
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
        store(32 * i + 4 * lane, big, small);
    }
    return scale.inverse;
}

// grid (3 * all_heads * rows / SPLIT_ROWS of the largest tensor), block (SPLIT_THREADS). The first heads come last,
// since the next kernel starts with them: what was written last is still in the L2 cache.
template <int D>
__global__ void __launch_bounds__(SPLIT_THREADS) split_kernel(const __grid_constant__ SplitArguments a) {
    const unsigned place = gridDim.x - 1 - blockIdx.x;
    const SplitTensor& t = a.tensors[place % 3];
    const int64_t first = int64_t{place / 3} * SPLIT_ROWS, head = first / t.rows;
    if (head >= t.all_heads) return;
    const int64_t row = first % t.rows + threadIdx.x / 8, at = head * t.rows + row;
    const float* from =
        t.from + head / t.heads * t.strides.batch + head % t.heads * t.strides.head + row * t.strides.row;
    const auto fetch = [&](int col) {
        const float4 x = read_four<true>(from + col, row < t.S ? a.head_dim - col : 0);
        return make_float4(x.x * t.factor, x.y * t.factor, x.z * t.factor, x.w * t.factor);
    };
    const auto store = [&](int col, uint2 big, uint2 small) {
        __half* to = t.to + at * D + col;
        *reinterpret_cast<uint2*>(to) = big;
        *reinterpret_cast<uint2*>(to + t.all_heads * t.rows * D) = small;
    };
    const float scale = split_row<D>(fetch, store);
    if (threadIdx.x % 8 == 0) t.scales[at] = scale * t.scale_factor;
}

}  // namespace hopper_fp32
