// flash_seen_gradients.cuh - recomputes gradients from visible pairs only.
//
//   SeenGradients                   a row of dQ, or a key's rows of dK and dV, pair by pair, by all lanes of a warp
//   flash_seen_gradients_kernel     finds NaN and recomputes the rows that have it
//   launch_seen_gradients           the final launch of a backward pass that hides something
//
// The kernels multiply whole tiles, and the 0 of a hidden pair times NaN or infinity is NaN: the contents of a hidden
// key would reach the gradients of rows that share a tile with it, and such a row the gradients of keys that it does
// not see. As in seen_row.cuh, anything that is NaN is recomputed on a slow path that skips hidden pairs; a NaN that is
// seen comes out again.
//
// For the 16-bit kernels, launch_convert reads every number of dQ and sets a flag if one is NaN; kernels with options
// also set it for dK and dV. Without the flag this kernel exits at once. The dense kernel for Hopper GPUs does not
// check dK and dV, and need not: a NaN at a hidden key, and one in a row that sees a key, shows in dQ. Where there may
// be rows that see no key, which do not show, and for float32, this kernel checks all gradients itself.
//
// Unspecified: the result of a weight that is 0 for another reason, say in a row whose own infinities make all its
// scores -infinity.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/check.h"
#include "common/cuda/exp2.cuh"
#include "common/cuda/float_conversion.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash/attention_policies.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_backward.cuh"
#include "common/kernels/flash/flash_sequences.cuh"

constexpr int SEEN_WARPS = 8, SEEN_PIECES = MAX_HEAD_DIM / 32;

// Lane l holds columns l, l + 32, ... of every row.
template <typename T>
struct SeenGradients {
    const FlashGradients& g;
    const FlashArguments& a;
    const RowNumbers& numbers;
    const int64_t seed;
    const int lane = threadIdx.x % 32;

    using Row = float[SEEN_PIECES];

    __device__ __forceinline__ void read(Row& x, const void* tensor, const RowStrides& strides, int batch, int head,
                                         int64_t row) const {
        const T* from = row_at(static_cast<const T*>(tensor), strides, batch, head, row);
        UNROLL
        for (int i = 0; i < SEEN_PIECES; ++i) x[i] = lane + 32 * i < a.head_dim ? to_float(from[lane + 32 * i]) : 0.0f;
    }
    __device__ __forceinline__ void write(void* tensor, const RowStrides& strides, int batch, int head, int64_t row,
                                          const Row& x, float factor) const {
        T* to = row_at(static_cast<T*>(tensor), strides, batch, head, row);
        UNROLL
        for (int i = 0; i < SEEN_PIECES; ++i)
            if (lane + 32 * i < a.head_dim) to[lane + 32 * i] = from_float<T>(x[i] * factor);
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
    // Whether this row of head_dim numbers has a NaN.
    __device__ __forceinline__ bool contaminated(const void* tensor, const RowStrides& strides, int batch, int head,
                                           int64_t row) const {
        Row x;
        read(x, tensor, strides, batch, head, row);
        bool nan = false;
        UNROLL
        for (int i = 0; i < SEEN_PIECES; ++i) nan |= x[i] != x[i];
        return __any_sync(FULL_WARP, nan);
    }

    // Whether the mask leaves the pair visible; if so, m * P and dS.   row, key: in the sequence
    __device__ __forceinline__ bool pair(float& p, float& ds, const Sequence& s, int head, int row, int key, const Row& q,
                                         const Row& k, const Row& v, const Row& d_out) const {
        const float bias = masked_score(0.0f, mask_from(a.mask, s.number, head, row, key), 0, 0, 0);
        if (bias == -INFINITY) return false;
        const int64_t at = numbers.at(a, s, head, row);
        const float lse = numbers.lse[at] * (LOG2_E / numbers.unit);
        float score = dot(q, k) * a.scale, slope = 1;
        if (a.softcap > 0) {
            const float t = tanh_of(score / a.softcap);
            score = a.softcap * t, slope = 1 - t * t;
        }
        const float weight = lse == INFINITY ? 0.0f : exp2_approx((score + bias) * LOG2_E - lse);
        const bool kept = a.dropout.seed == nullptr ||
                          keep_weight(a.dropout, seed, matrix_of_dropout(s.number, head), row, key);
        const float m = kept ? a.dropout.factor : 0.0f;
        p = m * weight;
        ds = weight * (m * dot(d_out, v) - numbers.delta[at]) * slope;
        return true;
    }
    __device__ __forceinline__ int64_t matrix_of_dropout(int number, int head) const { return number * a.heads + head; }

    // Recomputes dQ of a row of the tensors.
    __device__ __forceinline__ void compute_row(const Sequence& s, int batch, int head, int row) const {
        const int kv_head = head / static_cast<int>(a.heads / a.kv_heads);
        Row q, d_out, k, v, dq = {};
        read(q, a.query, a.query_strides, batch, head, s.first_row + row);
        read(d_out, g.grad_out, g.grad_out_strides, batch, head, s.first_row + row);
        const int end = s.end_of_keys(row);
        NO_UNROLL
        for (int key = s.first_key_of(row); key < end; ++key) {
            read(k, a.key, a.key_strides, batch, kv_head, s.first_key + key);
            read(v, a.value, a.value_strides, batch, kv_head, s.first_key + key);
            float p, ds;
            if (!pair(p, ds, s, head, row, key, q, k, v, d_out)) continue;
            add(dq, ds, k);
            if (ds != ds) break;  // all columns are NaN, whatever follows
        }
        write(g.grad_query, a.out_strides, batch, head, s.first_row + row, dq, a.scale);
    }

    // Recomputes dK and dV of a key.
    __device__ __forceinline__ void compute_key(const Sequence& s, int batch, int kv_head, int key) const {
        const int group = static_cast<int>(a.heads / a.kv_heads), end = s.end_of_rows(key);
        Row k, v, q, d_out, dk = {}, dv = {};
        read(k, a.key, a.key_strides, batch, kv_head, s.first_key + key);
        read(v, a.value, a.value_strides, batch, kv_head, s.first_key + key);
        bool lost = false;
        NO_UNROLL
        for (int head = kv_head * group; head < (kv_head + 1) * group && !lost; ++head) {
            NO_UNROLL
            for (int row = s.first_row_of(key); row < end && !lost; ++row) {
                read(q, a.query, a.query_strides, batch, head, s.first_row + row);
                read(d_out, g.grad_out, g.grad_out_strides, batch, head, s.first_row + row);
                float p, ds;
                if (!pair(p, ds, s, head, row, key, q, k, v, d_out)) continue;
                add(dv, p, d_out);
                add(dk, ds, q);
                lost = p != p;  // then dS is, too
            }
        }
        write(g.grad_value, g.grad_key_strides, batch, kv_head, s.first_key + key, dv, 1.0f);
        write(g.grad_key, g.grad_key_strides, batch, kv_head, s.first_key + key, dk, a.scale);
    }
};

// A warp for every row and every key, in a grid-stride loop. flag: nullptr to check all
//   matrices, kv_matrices: of query and of key in the tensors
template <typename T>
__global__ void __launch_bounds__(32 * SEEN_WARPS)
    flash_seen_gradients_kernel(const FlashGradients g, const RowNumbers numbers, const int* flag, int64_t matrices,
                                int64_t kv_matrices) {
    if (flag != nullptr && *flag == 0) return;
    const FlashArguments& a = g.forward;
    const SeenGradients<T> seen = {g, a, numbers, seed_of(a.dropout)};
    const int64_t rows = matrices * a.S_q, keys = kv_matrices * a.S_k, warps = int64_t{SEEN_WARPS} * gridDim.x;
    const bool packed = a.cu_seqlens_q != nullptr;
    // Calls f(sequence, batch, head, index in the sequence) for element i of [batch, heads, length] if it exists
    const auto locate = [&](int64_t i, int64_t heads, int64_t length, const int* cu_seqlens, auto f) {
        const int at = static_cast<int>(i % length), head = static_cast<int>(i / length % heads);
        const int batch = static_cast<int>(i / length / heads);
        if (!packed) return f(Sequence(a, batch), batch, head, at);
        const Sequence s(a, sequence_of(static_cast<int>(a.batch), at, [&](int b) { return cu_seqlens[b]; }));
        const bool of_rows = cu_seqlens == a.cu_seqlens_q;
        const int place = at - static_cast<int>(of_rows ? s.first_row : s.first_key);
        if (place >= 0 && place < (of_rows ? s.rows : s.keys)) f(s, 0, head, place);
    };
    NO_UNROLL
    for (int64_t i = blockIdx.x * int64_t{SEEN_WARPS} + threadIdx.x / 32; i < rows + keys; i += warps) {
        if (i < rows) {
            locate(i, a.heads, a.S_q, a.cu_seqlens_q, [&](const Sequence& s, int batch, int head, int row) {
                if (seen.contaminated(g.grad_query, a.out_strides, batch, head, s.first_row + row))
                    seen.compute_row(s, batch, head, row);
            });
        } else {
            locate(i - rows, a.kv_heads, a.S_k, a.cu_seqlens_k, [&](const Sequence& s, int batch, int head, int key) {
                const int64_t at = s.first_key + key;
                if (seen.contaminated(g.grad_key, g.grad_key_strides, batch, head, at) ||
                    seen.contaminated(g.grad_value, g.grad_key_strides, batch, head, at))
                    seen.compute_key(s, batch, head, key);
            });
        }
    }
}

// ---- host

// flag: points to 0 if no gradient has a NaN, or nullptr if unknown
template <typename T>
void launch_seen_gradients(const FlashGradients& g, const RowNumbers& numbers, const int* flag) {
    constexpr int64_t BLOCKS_EACH = 4;  // per SM
    const FlashArguments& a = g.forward;
    if (!a.hides_keys()) return;
    const int64_t kv_matrices = (a.packed() ? 1 : a.batch) * a.kv_heads;
    const int64_t rows = a.matrices() * a.S_q + kv_matrices * a.S_k;
    const int64_t blocks = std::min(ceil_div(rows, int64_t{SEEN_WARPS}),
                                    BLOCKS_EACH * device_attribute(cudaDevAttrMultiProcessorCount));
    flash_seen_gradients_kernel<T><<<static_cast<unsigned>(blocks), 32 * SEEN_WARPS, 0, a.stream>>>(
        g, numbers, flag, a.matrices(), kv_matrices);
    CUDA_CHECK_LAUNCH();
}
