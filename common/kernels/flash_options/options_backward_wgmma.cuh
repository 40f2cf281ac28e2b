// options_backward_wgmma.cuh - the gradients of attention with options for Hopper GPUs (sm_90a), 16 bits.
//
//   1. Rows        options_row_numbers_kernel    delta, lse and what has to be 0, before the kernel
//   2. Launcher    workspace_of, gradients_by_wgmma
//
//   common/kernels/flash/hopper_backward.cuh    the kernel; options_backward_keys.cuh: windows and packed sequences
//
// A hidden pair has the weight 0, and 0 times NaN is NaN. The kernel and the conversion of dQ note whether a gradient
// has a NaN; if one has, the kernels of options_backward_mma.cuh, launched last, compute the gradients again with care, and
// write the elements that were NaN. Otherwise they leave at once.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/flash_launch.h"
#include "common/cuda/logarithms.h"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash/flash_backward.cuh"
#include "common/kernels/flash/flash_query_sum.cuh"
#include "common/kernels/flash/hopper_backward.cuh"
#include "common/kernels/flash_options/options.h"
#include "common/kernels/flash_options/options_backward_keys.cuh"
#include "common/kernels/flash_options/options_sequences.cuh"

// --------------------------------------------------------------------------------------------------- 1. Rows

// No rows and keys beyond are taken; a window that wide hides nothing.
constexpr int64_t MANY = int64_t{1} << 28;
__host__ __device__ inline int window_of(int64_t window) { return static_cast<int>(window < MANY ? window : MANY); }

// The workspace of OptionsGradients, in words of 4 bytes: dQ's sum, then lse and delta of every padded row, then a
// counter, with `deterministic` the turns, and whether there was a NaN.
struct HopperWorkspace {
    int64_t rows, sum, numbers, turns;  // rows: padded, of a head; the others: words

    HopperWorkspace(const OptionsGradients& g) {
        const OptionsArguments& a = g.forward;
        const bool packed = a.cu_seqlens_q != nullptr;
        rows = PaddedRows::count(a.batch, a.S_q, packed);
        numbers = (packed ? 1 : a.batch) * a.heads * rows;
        sum = numbers * (a.head_dim <= 64 ? 64 : 128);
        turns = 2 + (g.deterministic ? sum / (64 * 64) : 0);
    }
    int64_t words() const { return sum + 2 * numbers + turns; }
};

struct RowNumbersOut {
    float *lse, *delta;  // [count], padded rows; lse * log2(e), infinity for rows that see no key or are no rows
    unsigned rows, count;  // of a head, of all
    float4* sum;  // zeros
    int64_t vectors;
    int* turns;  // zeros
    int64_t ints;
};

constexpr int NUMBERS_THREADS = 256;

// Rows that see at most FEW_KEYS get delta as the sum over their keys of P m dP, m what dropout makes of a weight: see
// flash_backward.cuh. Not where the weights do not add up to what the sink leaves: then lse is of more keys.
constexpr float CAPPED_TOLERANCE = 4e-3f;  // forward pass and this one may take different tanhs

// 2^lanes_log2 neighboring threads read a row, 16 bytes each. Also zeros for the rows of no sequence.
template <typename T>
__global__ void __launch_bounds__(NUMBERS_THREADS)
    options_row_numbers_kernel(const OptionsGradients g, const PaddedRows padded, const RowNumbersOut to,
                               int lanes_log2) {
    constexpr int PIECE = 16 / sizeof(T);
    const OptionsArguments& a = g.forward;
    const int64_t thread = blockIdx.x * int64_t{NUMBERS_THREADS} + threadIdx.x;
    const int64_t threads = gridDim.x * int64_t{NUMBERS_THREADS};
    for (int64_t i = thread; i < to.vectors; i += threads) to.sum[i] = make_float4(0, 0, 0, 0);
    for (int64_t i = thread; i < to.ints; i += threads) to.turns[i] = 0;
    if (a.cu_seqlens_q != nullptr) {
        const auto clear = [&](void* rows, const int* cu_seqlens, int64_t length, int64_t elements) {
            const int64_t begin = min(max(int64_t{cu_seqlens[0]}, int64_t{0}), length) * elements;
            const int64_t end = min(max(int64_t{cu_seqlens[a.batch]}, int64_t{0}), length) * elements;
            for (int64_t i = thread; i < begin; i += threads) static_cast<T*>(rows)[i] = from_float<T>(0.0f);
            for (int64_t i = end + thread; i < length * elements; i += threads)
                static_cast<T*>(rows)[i] = from_float<T>(0.0f);
        };
        clear(g.grad_query, a.cu_seqlens_q, a.S_q, a.heads * a.head_dim);
        clear(g.grad_key, a.cu_seqlens_k, a.S_k, a.kv_heads * a.head_dim);
        clear(g.grad_value, a.cu_seqlens_k, a.S_k, a.kv_heads * a.head_dim);
    }

    // 32 bits, in which a division takes few instructions: there are below 2^28 rows (options_problem)
    const unsigned number = static_cast<unsigned>(thread >> lanes_log2), matrix = number / to.rows;
    const unsigned heads = static_cast<unsigned>(a.heads), lanes = 1u << lanes_log2;
    const int col = threadIdx.x % lanes * PIECE, at = matrix / heads, head = matrix % heads;
    const bool stored = number < to.count;
    int sequence = at;  // packed: row_at sets it
    const int row = stored ? padded.row_at(number % to.rows, sequence) : -1;
    const int64_t unpadded = matrix * a.S_q + row;
    const auto piece_of = [&](const void* tensor, const RowStrides& strides, int of_head, int64_t i) {
        return *reinterpret_cast<const uint4*>(row_at(static_cast<const T*>(tensor), strides, at, of_head, i) + col);
    };
    const auto dot = [&](const uint4& left, const uint4& right) {  // of two rows, the same in all of the row's lanes
        float sum = 0;
        const T *x = reinterpret_cast<const T*>(&left), *y = reinterpret_cast<const T*>(&right);
        UNROLL
        for (int i = 0; i < PIECE; ++i) sum += to_float(x[i]) * to_float(y[i]);
        for (int distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, distance);
        return sum;
    };
    // All that most rows need is requested at once: the kernel is bound by how long memory takes.
    const bool reads = row >= 0 && col < a.head_dim;
    uint4 out = {}, grad_out = {};
    float lse = row >= 0 ? a.lse[unpadded] : -INFINITY;
    if (reads) {
        out = piece_of(a.out, a.out_strides, head, row);
        grad_out = piece_of(g.grad_out, g.grad_out_strides, head, row);
    }
    int few = 0, position = row, first_key = 0, keys_at = 0;
    if (row >= 0) {
        Band<int> band;
        int rows = padded.S_q, keys = static_cast<int>(a.S_k), rows_at = 0;
        if (a.cu_seqlens_q != nullptr) {
            rows = rows_of(a.cu_seqlens_q, sequence, padded.S_q, rows_at);
            keys = rows_of(a.cu_seqlens_k, sequence, keys, keys_at);
        }
        band.set(rows, keys, a.causal, a.lower_right, window_of(a.window_left), window_of(a.window_right));
        position = row - rows_at, first_key = band.first_key_of(position);
        few = band.end_of_keys(position) - first_key;
        if (few > FEW_KEYS) few = 0;
    }
    lse = lse == -INFINITY ? INFINITY : lse * LOG2_E;
    float delta = dot(out, grad_out);
    const int kv_head = head / static_cast<int>(a.heads / a.kv_heads);
    float weights = 0, of_keys = 0;
    for (int i = 0; i < FEW_KEYS && __any_sync(FULL_WARP, i < few); ++i) {
        uint4 query = {}, key = {}, value = {};
        if (reads && i < few) {
            query = piece_of(a.query, a.query_strides, head, row);
            key = piece_of(a.key, a.key_strides, kv_head, keys_at + first_key + i);
            value = piece_of(a.value, a.value_strides, kv_head, keys_at + first_key + i);
        }
        float score = a.scale * dot(query, key);
        const float dp = dot(grad_out, value);
        if (i >= few || lse == INFINITY) continue;
        if (a.softcap > 0) score = a.softcap * tanh_of(score / a.softcap);
        const float weight = exp2_approx(score * LOG2_E - lse);
        const int64_t dropout_head = sequence * a.heads + head;
        const bool kept = a.dropout.seed == nullptr ||
                          keep_weight(a.dropout, seed_of(a.dropout), dropout_head, position, first_key + i);
        weights += weight;
        if (kept) of_keys += weight * a.dropout.factor * dp;
    }
    const float sum = a.sinks == nullptr ? 1.0f : 1 - exp2_approx(a.sinks[head] * LOG2_E - lse);
    const float tolerance = a.softcap > 0 ? CAPPED_TOLERANCE : WEIGHTS_TOLERANCE;
    if (few > 0 && fabsf(weights - sum) < tolerance) delta = of_keys * sum / weights;
    if (!stored || col != 0) return;
    if (row >= 0) g.delta[unpadded] = delta;
    to.lse[number] = lse, to.delta[number] = delta;
}

// Where launch_convert_sum writes a row of dQ.
struct OptionsRows {
    PaddedRows padded;
    RowStrides strides;
    int heads;

    __device__ __forceinline__ int64_t at(int64_t of_all, int64_t row) const {
        const unsigned matrix = static_cast<unsigned>(of_all), every = static_cast<unsigned>(heads);
        const int found = padded.row_at(static_cast<int>(row));
        return found < 0 ? -1 : matrix / every * strides.batch + matrix % every * strides.head + found * strides.row;
    }
};

// ----------------------------------------------------------------------------------------------- 2. Launcher

template <class S>
bool options_problem(typename S::Problem& p, const OptionsGradients& g) {
    const OptionsArguments& a = g.forward;
    const bool packed = a.cu_seqlens_q != nullptr, capped = a.softcap > 0, dropped = a.dropout.seed != nullptr;
    const HopperWorkspace space(g);
    const int64_t blocks = tiles_of(a.batch, a.S_k, packed, S::B_c);
    if (std::max({a.S_k, a.S_q, space.numbers, a.batch * a.heads, a.kv_heads * blocks}) > MANY) return false;
    if (!make_problem<S>(p, a, packed ? 1 : a.batch, g.grad_out, g.grad_out_strides)) return false;
    p.cu_seqlens_q = a.cu_seqlens_q, p.cu_seqlens_k = a.cu_seqlens_k;
    p.batch = static_cast<int>(a.batch), p.heads = static_cast<int>(a.heads);
    p.causal = a.causal, p.lower_right = a.lower_right;
    p.window_left = window_of(a.window_left), p.window_right = window_of(a.window_right);
    if (capped) p.inside = a.scale / a.softcap, p.factor = a.softcap * LOG2_E, p.log2_to_t = 1 / p.factor;
    if (dropped) p.dropout = a.dropout;
    p.key_head = g.grad_key_strides.head, p.key_row = g.grad_key_strides.row;
    if (packed) p.k_blocks = static_cast<int>(blocks);
    const bool rising = a.causal && a.window_left < 0;  // the first keys have most rows
    if (rising || packed) p.section = heads_in_cache(packed ? a.S_q / a.batch : a.S_q, p.group, S::D);
    return true;
}

template <class S>
void options_launch(typename S::Problem& p, const OptionsGradients& g) {
    using T = typename S::T;
    const OptionsArguments& a = g.forward;
    const HopperWorkspace space(g);
    const PaddedRows padded = {a.cu_seqlens_q, static_cast<int>(a.batch), static_cast<int>(a.S_q)};
    float *sum = g.workspace, *lse = sum + space.sum, *delta = lse + space.numbers;
    int* turns = reinterpret_cast<int*>(delta + space.numbers);
    p.lse = lse, p.delta = delta, p.rows = static_cast<int>(space.rows);
    p.grad_query_sum = sum, p.grad_key = g.grad_key, p.grad_value = g.grad_value;
    p.counter = turns, p.nan = turns + 1, p.turns = g.deterministic ? turns + 2 : nullptr;

    int lanes_log2 = 0;
    while ((16 << lanes_log2) < a.head_dim * static_cast<int>(sizeof(T))) ++lanes_log2;
    const int64_t blocks = ceil_div(space.numbers << lanes_log2, int64_t{NUMBERS_THREADS});
    const unsigned every = static_cast<unsigned>(space.rows), all = static_cast<unsigned>(space.numbers);
    const RowNumbersOut to = {lse, delta, every, all, reinterpret_cast<float4*>(sum), space.sum / 4, turns, space.turns};
    options_row_numbers_kernel<T>
        <<<grid_blocks(blocks, "query"), NUMBERS_THREADS, 0, a.stream>>>(g, padded, to, lanes_log2);
    CUDA_CHECK_LAUNCH();
    launch_backward<S>(p, a.stream);
    const OptionsRows rows = {padded, a.out_strides, static_cast<int>(a.heads)};
    launch_convert<T, S::D, SumOrder::PIECES>(static_cast<T*>(g.grad_query), sum, all / every, every, a.head_dim,
                                              a.scale, true, p.nan, rows, a.stream);
}

// f.operator()<S>() of the instance that takes g, or false.
template <typename T, typename F>
bool for_instance(const OptionsGradients& g, F f) {
    const OptionsArguments& a = g.forward;
    const bool capped = a.softcap > 0, dropped = a.dropout.seed != nullptr;
    if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9 || a.head_dim > 128) return false;
    if (a.mask.kind != MaskKind::NONE || (capped && dropped)) return false;
    // P gives tanh back, to as many digits as P has divided by softcap
    if (!(a.scale > 0) || (capped && a.softcap < 1)) return false;
    if (!in_pieces<T>(a) || !in_pieces<T>(g.grad_out, g.grad_out_strides)) return false;
    const auto with_shape = [&]<class Shape, class Capped>() {
        return capped    ? f.template operator()<Instance<Capped, SequenceKeys, Scores::CAPPED>>()
               : dropped ? f.template operator()<Instance<Shape, SequenceKeys, Scores::DROPPED>>()
                         : f.template operator()<Instance<Shape, SequenceKeys, Scores::PLAIN>>();
    };
    return a.head_dim <= 64 ? with_shape.template operator()<D64<T>, D64Capped<T>>()
                            : with_shape.template operator()<D128<T>, D128<T>>();
}

// See options.h: the workspace's words, 0 if the kernel does not take g.
template <typename T>
int64_t workspace_of(const OptionsGradients& g) {
    const bool takes = for_instance<T>(g, [&]<class S>() {
        typename S::Problem p = {};
        return options_problem<S>(p, g);
    });
    return takes ? HopperWorkspace(g).words() : 0;
}

// Whether there was a NaN, for the kernels that do it again.
template <typename T>
const int* gradients_by_wgmma(const OptionsGradients& g) {
    const int* nan = nullptr;
    for_instance<T>(g, [&]<class S>() {
        typename S::Problem p = {};
        options_problem<S>(p, g);
        options_launch<S>(p, g);
        nan = p.nan;
        return true;
    });
    return nan;
}
