// seen_row.cuh - recomputes a row of attention from its visible keys only.
//
//   SeenRow<T>            one row of the output, accumulated key by key by all lanes of a warp
//   has_nan(x)            whether any of the numbers is NaN
//   for_each_marked_row   visits the rows of a warp that need it
//
// A hidden key has weight 0. But kernels multiply whole tiles, and 0 times NaN or infinity is NaN: V at a hidden key
// (batch padding, uninitialized memory) would contaminate rows that do not see it. Zeroing V does not help, since other
// rows of the same tile may see that key. So a kernel that hides keys checks its rows before it exits; if one has a
// NaN, its warp recomputes it here, skipping hidden keys. That is slow, but without a NaN only the check costs time. A
// NaN that the row does see comes out again.
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/empty_rows.cuh"
#include "common/cuda/exp2.cuh"
#include "common/cuda/float_conversion.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"

namespace attention {

// Lane l holds columns l, l + 32, ... of the row; head_dim <= D.
//
//   query, key, value, out   [head_dim]
template <typename T, int D = 128>
class SeenRow {
  public:
    __device__ __forceinline__ SeenRow(const T* query, int head_dim) : lane(threadIdx.x % 32), head_dim(head_dim) {
        for (int i = 0; i < PIECES; ++i) q[i] = at(query, i), o[i] = 0;
    }

    __device__ __forceinline__ float product(const T* key) const {
        float sum = 0;
        for (int i = 0; i < PIECES; ++i) sum += q[i] * at(key, i);
        return warp_sum(sum);
    }

    // score: -infinity for a hidden key, whose value is not read; value: nullptr for a weight applied to no value
    __device__ __forceinline__ void add(float score, const T* value) {
        if (score == -INFINITY) return;
        const float top_now = fmaxf(top, score), weight = exp2_approx((score - top_now) * LOG2_E);
        const float ratio = top == top_now ? 1.0f : exp2_approx((top - top_now) * LOG2_E);
        for (int i = 0; i < PIECES; ++i) o[i] = o[i] * ratio + (value == nullptr ? 0.0f : weight * at(value, i));
        sum = sum * ratio + weight;
        top = top_now;
    }

    // Whether a score was NaN: then all columns are NaN, whatever follows, and the loop can stop (a diverged model,
    // say).
    __device__ __forceinline__ bool lost() const { return sum != sum; }

    __device__ __forceinline__ void write(T* out, float factor = 1.0f) const {
        for (int i = 0; i < PIECES; ++i)
            if (lane + 32 * i < head_dim) out[lane + 32 * i] = from_float<T>(o[i] * (factor * inverse_of(sum)));
    }

  private:
    static constexpr int PIECES = ceil_div(D, 32);
    __device__ __forceinline__ float at(const T* row, int i) const {
        return lane + 32 * i < head_dim ? to_float(row[lane + 32 * i]) : 0.0f;
    }

    int lane, head_dim;
    float q[PIECES], o[PIECES], top = -INFINITY, sum = 0;
};

// Infinities of both signs count, too: their sum is NaN.
template <int N>
__device__ __forceinline__ bool has_nan(const float (&x)[N]) {
    float sum = 0;
    UNROLL
    for (int i = 0; i < N; ++i) sum += x[i];
    return sum != sum;
}
template <int M, int N>
__device__ __forceinline__ bool has_nan(const float (&x)[M][N]) {
    float sum = 0;
    UNROLL
    for (int i = 0; i < M * N; ++i) sum += x[i / N][i % N];
    return sum != sum;
}

// Calls f(row), with all lanes together, for the marked rows among a warp's ROWS rows. mine: bit i marks row
// 8 i + lane / 4 for this lane's columns, in the fragment layout of mma.cuh. All lanes have written their parts of the
// rows before f is called.
template <int ROWS, typename F>
__device__ __forceinline__ void for_each_marked_row(unsigned mine, F f) {
    if (!__any_sync(FULL_WARP, mine != 0)) return;
    mine |= __shfl_xor_sync(FULL_WARP, mine, 1);
    mine |= __shfl_xor_sync(FULL_WARP, mine, 2);
    __syncwarp();
    NO_UNROLL
    for (int row = 0; row < ROWS; ++row)
        if (__shfl_sync(FULL_WARP, mine, row % 8 * 4) >> row / 8 & 1) f(row);
}

}  // namespace attention
