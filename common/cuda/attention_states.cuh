// attention_states.cuh - partial results of attention: what a warp or block has accumulated over some of the keys, and
// how to merge them.
//
//   State           m, l, o of one query and four columns of the output
//   add             merges another state into this one
//   sum_of_lanes    merges the states of neighboring lanes
//   store_output    o / l -> the output
//   StateArray      an array of states of several warps or blocks
//
// A state is relative to its own running max m (scores are in base 2, that is, multiplied by log2(e)):
//
//     l = sum of 2^(score - m)        o = sum of 2^(score - m) * V           over the keys seen
//
// Merging rescales both to the larger m (task 3's merge_states does this with lse in place of m and l). A state that
// has seen no key has m = -infinity, l = 0, o = 0; merging it changes nothing.
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "common/cuda/empty_rows.cuh"
#include "common/cuda/exp2.cuh"
#include "common/cuda/float_conversion.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"

namespace attention {

struct State {
    float m = -INFINITY, l = 0.0f;
    float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    __device__ __forceinline__ void add(const State& other) {
        const float m_new = fmaxf(m, other.m), shift = shift_of(m_new);
        const float mine = exp2_approx(m - shift), its = exp2_approx(other.m - shift);
        m = m_new;
        l = mine * l + its * other.l;
        o.x = mine * o.x + its * other.o.x;
        o.y = mine * o.y + its * other.o.y;
        o.z = mine * o.z + its * other.o.z;
        o.w = mine * o.w + its * other.o.w;
    }
};

// Merges the states of `lanes` consecutive lanes, a power of two.
__device__ __forceinline__ State sum_of_lanes(State state, int lanes) {
    for (int distance = 1; distance < lanes; distance *= 2) {
        State other;
        other.m = __shfl_xor_sync(FULL_WARP, state.m, distance);
        other.l = __shfl_xor_sync(FULL_WARP, state.l, distance);
        other.o.x = __shfl_xor_sync(FULL_WARP, state.o.x, distance);
        other.o.y = __shfl_xor_sync(FULL_WARP, state.o.y, distance);
        other.o.z = __shfl_xor_sync(FULL_WARP, state.o.z, distance);
        other.o.w = __shfl_xor_sync(FULL_WARP, state.o.w, distance);
        state.add(other);
    }
    return state;
}

// Columns col ... col + 3 of out [head_dim], as far as they exist; zeros if every weight was 0.
template <typename T>
__device__ __forceinline__ void store_output(T* out, int col, int head_dim, const State& state) {
    const float inverse = inverse_of(state.l);
    const float values[4] = {state.o.x, state.o.y, state.o.z, state.o.w};
    UNROLL
    for (int i = 0; i < 4; ++i)
        if (col + i < head_dim) out[col + i] = from_float<T>(values[i] * inverse);
}

// States in memory, for `heads` queries each: o [.][heads][STRIDE] and, separately, (m, l) [.][heads].
template <int STRIDE>
struct StateArray {
    float* o;
    float2* ml;
    int heads;

    __device__ __forceinline__ State load(int64_t index, int head, int col) const {
        const int64_t row = index * heads + head;
        const float2 both = ml[row];
        return {both.x, both.y, *reinterpret_cast<const float4*>(o + row * STRIDE + col)};
    }
    __device__ __forceinline__ void store(int64_t index, int head, int col, const State& state) const {
        const int64_t row = index * heads + head;
        if (col == 0) ml[row] = make_float2(state.m, state.l);
        *reinterpret_cast<float4*>(o + row * STRIDE + col) = state.o;
    }
    // Merges the first `count`.
    __device__ __forceinline__ State sum(int count, int head, int col) const {
        State all;
        for (int i = 0; i < count; ++i) all.add(load(i, head, col));
        return all;
    }
};

}  // namespace attention
