// flash_seen_gradients.cuh - gradients once more, from what a row or a key sees and nothing else.
//
//   SeenGradients                   a row of dQ, or a key's rows of dK and dV, pair by pair; all lanes of a warp together
//   flash_seen_gradients_kernel     looks for NaN, and computes again what has it
//   launch_seen_gradients           the last launch of every backward pass that hides something
//
// The kernels multiply whole tiles, and the 0 of a hidden pair times NaN or infinity is NaN: what lies at a hidden key
// would reach the gradients of the rows that share a tile with it, and such a row the gradients of keys that it does
// not see. As in seen_row.cuh, what is NaN is computed once more, slowly, with hidden pairs left out; a NaN that is seen
// comes out again.
//
// The 16-bit kernels have launch_convert_sum, which reads every number of dQ, set nan_flag where one is NaN. A NaN at a
// hidden key, and one in a row that sees a key, shows there: its block's dQ has it, whatever dK and dV have. A row that
// sees no key shows nothing, since its P and dS are 0 and its dQ is made of other rows; so where there may be such rows,
// and for float32, the kernel looks at all gradients itself. Without the flag it leaves at once.
//
// Left open, as for flash_options: what comes of a weight that is 0 for another reason, say of a row whose own
// infinities make all its scores -infinity.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/check.h"
#include "common/cuda/exp2.cuh"
#include "common/cuda/float_conversion.cuh"
#include "common/cuda/flash_launch.h"
#include "common/cuda/logarithms.h"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_backward.cuh"
#include "common/kernels/flash/flash_host.h"
#include "common/kernels/flash/flash_keys.cuh"

constexpr int SEEN_WARPS = 8, SEEN_PIECES = MAX_HEAD_DIM / 32;

// Lane l has the columns l, l + 32, ... of every row. numbers: delta [batch, heads, rows]
template <typename T>
struct SeenGradients {
    const FlashGradients& g;
    const FlashArguments& f = g.forward;
    const RowNumbers numbers;
    const int lane = threadIdx.x % 32;

    using Row = float[SEEN_PIECES];

    __device__ __forceinline__ void read(Row& x, const void* tensor, int64_t at) const {
        const T* row = static_cast<const T*>(tensor) + at;
        UNROLL
        for (int i = 0; i < SEEN_PIECES; ++i) x[i] = lane + 32 * i < f.head_dim ? to_float(row[lane + 32 * i]) : 0.0f;
    }
    __device__ __forceinline__ void read(Row& x, const void* tensor, const RowStrides& strides, int64_t batch,
                                         int64_t head, int64_t row) const {
        read(x, tensor, batch * strides.batch + head * strides.head + row * strides.row);
    }
    __device__ __forceinline__ void write(void* tensor, int64_t at, const Row& x, float factor) const {
        T* row = static_cast<T*>(tensor) + at;
        UNROLL
        for (int i = 0; i < SEEN_PIECES; ++i)
            if (lane + 32 * i < f.head_dim) row[lane + 32 * i] = from_float<T>(x[i] * factor);
    }
    static __device__ __forceinline__ float dot(const Row& x, const Row& y) {
        float sum = 0;
        UNROLL
        for (int i = 0; i < SEEN_PIECES; ++i) sum += x[i] * y[i];
        return warp_sum(sum);
    }
    static __device__ __forceinline__ void add(Row& sum, float factor, const Row& x) {
        UNROLL
        for (int i = 0; i < SEEN_PIECES; ++i) sum[i] += factor * x[i];
    }
    // Whether the row of head_dim numbers there has a NaN.
    __device__ __forceinline__ bool spoilt(const void* tensor, int64_t at) const {
        Row x;
        read(x, tensor, at);
        bool nan = false;
        UNROLL
        for (int i = 0; i < SEEN_PIECES; ++i) nan |= x[i] != x[i];
        return __any_sync(FULL_WARP, nan);
    }

    // What is added to a score, -infinity if the mask hides the pair.
    __device__ __forceinline__ float bias(int64_t batch, int64_t head, int64_t row, int64_t key) const {
        return masked_score(0.0f, mask_from(f.mask, batch, head, row, key), 0, 0, 0);
    }
    // P and dS of a pair that is seen.   number: of the row in [batch, heads, S_q]
    __device__ __forceinline__ void pair(float& p, float& ds, const Row& q, const Row& k, const Row& v, const Row& d_out,
                                         float bias, float lse, float delta) const {
        p = lse == -INFINITY ? 0.0f : exp2_approx((dot(q, k) * f.scale + bias - lse) * LOG2_E);
        ds = p * (dot(d_out, v) - delta);
    }

    // dQ of a row of [batch, heads, S_q].
    __device__ __forceinline__ void compute_row(int64_t number) const {
        const int64_t row = number % f.S_q, head = number / f.S_q % f.heads, batch = number / f.S_q / f.heads;
        const int64_t kv_head = head / (f.heads / f.kv_heads);
        const float lse = f.lse[number], delta = numbers.delta[number / f.S_q * numbers.rows + row];
        const int end = keys_seen<false>(f, position_of(f, row));
        Row q, d_out, k, v, dq = {};
        read(q, f.query, f.query_strides, batch, head, row);
        read(d_out, g.grad_out, g.grad_out_strides, batch, head, row);
        NO_UNROLL
        for (int key = 0; key < end; ++key) {
            const float more = bias(batch, head, row, key);
            if (more == -INFINITY) continue;
            read(k, f.key, f.key_strides, batch, kv_head, key);
            read(v, f.value, f.value_strides, batch, kv_head, key);
            float p, ds;
            pair(p, ds, q, k, v, d_out, more, lse, delta);
            add(dq, ds, k);
            if (ds != ds) break;  // all columns are NaN, whatever comes
        }
        write(g.grad_query, number * f.head_dim, dq, f.scale);
    }

    // dK and dV of a key of [batch, kv_heads, S_k].
    __device__ __forceinline__ void compute_key(int64_t number) const {
        const int64_t key = number % f.S_k, kv_head = number / f.S_k % f.kv_heads, batch = number / f.S_k / f.kv_heads;
        const int64_t group = f.heads / f.kv_heads;
        Row k, v, q, d_out, dk = {}, dv = {};
        read(k, f.key, f.key_strides, batch, kv_head, key);
        read(v, f.value, f.value_strides, batch, kv_head, key);
        bool lost = false;
        NO_UNROLL
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group && !lost; ++head) {
            NO_UNROLL
            for (int64_t row = first_row_of(f, key); row < f.S_q && !lost; ++row) {
                const float more = bias(batch, head, row, key);
                if (more == -INFINITY) continue;
                read(q, f.query, f.query_strides, batch, head, row);
                read(d_out, g.grad_out, g.grad_out_strides, batch, head, row);
                const int64_t of_head = batch * f.heads + head;
                float p, ds;
                pair(p, ds, q, k, v, d_out, more, f.lse[of_head * f.S_q + row],
                     numbers.delta[of_head * numbers.rows + row]);
                add(dv, p, d_out);
                add(dk, ds, q);
                lost = p != p;  // then dS is, too
            }
        }
        write(g.grad_value, number * f.head_dim, dv, 1.0f);
        write(g.grad_key, number * f.head_dim, dk, f.scale);
    }
};

// A warp for every row and every key, as many as there are warps at a time. flag: nullptr to look at all
template <typename T>
__global__ void __launch_bounds__(32 * SEEN_WARPS)
    flash_seen_gradients_kernel(const FlashGradients g, const RowNumbers numbers, const int* flag) {
    if (flag != nullptr && *flag == 0) return;
    const FlashArguments& f = g.forward;
    const SeenGradients<T> seen = {g, f, numbers};
    const int64_t rows = f.batch * f.heads * f.S_q, keys = f.batch * f.kv_heads * f.S_k;
    const int64_t warps = int64_t{SEEN_WARPS} * gridDim.x;
    NO_UNROLL
    for (int64_t i = blockIdx.x * int64_t{SEEN_WARPS} + threadIdx.x / 32; i < rows + keys; i += warps) {
        if (i < rows) {
            if (seen.spoilt(g.grad_query, i * f.head_dim)) seen.compute_row(i);
        } else {
            const int64_t at = (i - rows) * f.head_dim;
            if (seen.spoilt(g.grad_key, at) || seen.spoilt(g.grad_value, at)) seen.compute_key(i - rows);
        }
    }
}

// ---- host

// flag: nan_flag, or nullptr where nobody has set it
template <typename T>
void launch_seen_gradients(const FlashGradients& g, RowNumbers numbers, const int* flag) {
    constexpr int64_t BLOCKS_EACH = 4;  // of a multiprocessor
    const FlashArguments& f = g.forward;
    if (!hides_keys(f)) return;
    const bool rows_without_keys = f.mask.kind != MaskKind::NONE || f.diagonal < 0;
    const int64_t rows = f.batch * f.heads * f.S_q + f.batch * f.kv_heads * f.S_k;
    const int64_t blocks = std::min(ceil_div(rows, int64_t{SEEN_WARPS}),
                                    BLOCKS_EACH * device_attribute(cudaDevAttrMultiProcessorCount));
    flash_seen_gradients_kernel<T><<<static_cast<unsigned>(blocks), 32 * SEEN_WARPS, 0, f.stream>>>(
        g, numbers, rows_without_keys ? nullptr : flag);
    CUDA_CHECK_LAUNCH();
}
