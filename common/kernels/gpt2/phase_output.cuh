// phase_output.cuh - what becomes of a product's sums: bias, activation, and on to where the next phase looks for them.
//
//   1. Words      put_pair          two neighbouring numbers as tagged words
//   2. Best       FoundLogits, hand_on_best     the block's largest logits
//   3. Output     UnitOutput        two numbers of one sequence: asked for before the product, finished behind it
//
// Warp r finishes sequence r: lane 4 i + p has numbers 2 p and 2 p + 1 of the batch's unit i. What it needs besides the
// sums (bias, the residual stream) it asks for before the product.
#pragma once
#include "common/cuda/float_conversion.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/gpt2/best.cuh"
#include "common/kernels/gpt2/gelu.cuh"
#include "common/kernels/gpt2/phase_block.cuh"

// ---------------------------------------------------------------------------------------------------- 1. Words

// Elements `at` (even) and at + 1 of words that hold T.
template <typename T>
__device__ __forceinline__ void put_pair(tagged::Word* words, int at, float first, float second, unsigned tag) {
    if constexpr (sizeof(T) == 2)
        tagged::put(words + at / 2, mma::pack<T>(first, second), tag);
    else
        tagged::put_pair(words + at, __float_as_uint(first), __float_as_uint(second), tag);
}

// ----------------------------------------------------------------------------------------------------- 2. Best

// Of the logits that a lane has seen. DRAWS: tokens may be drawn, for which the smallest is wanted, too.
template <bool DRAWS>
struct FoundLogits {
    Best best = {-INFINITY, 0};
    float smallest = INFINITY;

    __device__ __forceinline__ void add(const Best& one) {
        if (is_better(one, best)) best = one;
        if (DRAWS) smallest = fminf(smallest, one.value);
    }
};

constexpr unsigned CANCELLED = 0x80000000u;  // beside a token: the run ends here

// What the lanes of warp r found, as the block's words for sequence r.
template <bool DRAWS>
__device__ __forceinline__ void hand_on_best(const Steps& a, const FoundLogits<DRAWS>& found, bool cancel,
                                             unsigned tag) {
    const int row = static_cast<int>(threadIdx.x) / 32, place = row * a.plan.blocks + static_cast<int>(blockIdx.x);
    if (row >= a.model.rows) return;
    const Best best = best_of_lanes(found.best);
    tagged::Word* const words = a.words + a.plan.exchange.best + a.plan.exchange.best_words * place;
    if (threadIdx.x % 32 == 0)
        tagged::put_pair(words, __float_as_uint(best.value),
                        static_cast<unsigned>(best.token) | (cancel ? CANCELLED : 0), tag);
    if (!DRAWS || !a.model.sampled) return;
    const float smallest = -warp_max(-found.smallest);
    if (threadIdx.x % 32 == 0) tagged::put_pair(words + 2, __float_as_uint(smallest), 0, tag);
}

// --------------------------------------------------------------------------------------------------- 3. Output

// The lane's numbers of a batch of units, first ... first + count - 1.
template <typename T>
struct UnitOutput {
    int row, col;
    bool exists, has_second;  // of the logits the last one may stand alone
    float2 plus;              // bias, and what the residual stream was

    __device__ __forceinline__ UnitOutput(const Steps& a, const BlockMemory& m, PhaseKind kind, const Phase& phase,
                                          int layer, int first, int count)
        : row(static_cast<int>(threadIdx.x) / 32) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        col = first * UNIT_ROWS + lane * 2;
        exists = row < a.model.rows && lane / 4 < count && col < phase.n;
        has_second = exists && col + 1 < phase.n;
        plus = make_float2(0.0f, 0.0f);
        if (!exists) return;
        if (phase.bias >= 0)
            plus = __ldg(reinterpret_cast<const float2*>(a.vectors + layer * a.plan.layer_vectors + phase.bias + col));
        if (kind == PhaseKind::PROJECTION || kind == PhaseKind::CONTRACT) {
            const float2 before = *reinterpret_cast<const float2*>(m.residual + row * a.model.width + col);
            plus.x += before.x, plus.y += before.y;
        }
    }

    // The sums of all warps, and what is added to them.
    __device__ __forceinline__ float2 value(const float* partial, int rows) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        float2 sum = plus;
        UNROLL
        for (int w = 0; w < BLOCK_WARPS; ++w) {
            const int at = ((w * UNIT_BATCH + lane / 4) * rows + row) * UNIT_ROWS + lane % 4 * 2;
            const float2 one = *reinterpret_cast<const float2*>(partial + at);
            sum.x += one.x, sum.y += one.y;
        }
        return sum;
    }

    template <bool DRAWS>
    __device__ __forceinline__ void store(const Steps& a, PhaseKind kind, const Phase& phase, int layer, int position,
                                          float2 value, unsigned tag, FoundLogits<DRAWS>& found) const {
        if (!exists) return;
        const Exchange& at = a.plan.exchange;
        const int index = row * phase.n + col;
        if (kind == PhaseKind::PROJECTION || kind == PhaseKind::CONTRACT) {
            put_pair<float>(a.words + (kind == PhaseKind::PROJECTION ? at.attended : at.residual), index, value.x,
                            value.y, tag);
        } else if (kind == PhaseKind::EXPAND) {
            put_pair<T>(a.words + at.activated, index, gelu(value.x), gelu(value.y), tag);
        } else if (kind == PhaseKind::QKV) {
            put_pair<T>(a.words + at.qkv, index, value.x, value.y, tag);
            const int width = a.model.width, head_dim = a.model.head_dim(), part = col / width, inside = col % width;
            if (part == 0 || position < 0 || position >= a.model.max_seq_len) return;
            T* const to = cache_row<T>(a, layer, part - 1, row, inside / head_dim, position) + inside % head_dim;
            if constexpr (sizeof(T) == 2)
                *reinterpret_cast<unsigned*>(to) = mma::pack<T>(value.x, value.y);
            else
                *reinterpret_cast<float2*>(to) = value;
        } else {
            for (int i = 0; i < 1 + has_second; ++i) {
                const Best one = {i ? value.y : value.x, col + i};
                if (a.logits) a.logits[int64_t{row} * phase.n + one.token] = one.value;
                found.add(one);
            }
        }
    }
};
