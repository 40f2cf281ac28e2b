// phase_output.cuh - what becomes of a product's sums: bias, activation, and on to where the next phase looks for them.
//
//   1. Best       FoundLogits, hand_on_best     the block's largest logits
//   2. Letters    send_unit                     a unit's numbers to all blocks of the cluster
//   3. Rows       UnitOutput                    QKV, EXPAND, LOGITS: two numbers of one sequence
//   4. Slices     add_slice                     PROJECTION, CONTRACT: onto the residual stream
//
// Of QKV, EXPAND and LOGITS warp r finishes sequence r: lane 4 i + p has numbers 2 p and 2 p + 1 of the batch's unit i.
// The bias it asks for before the input is there. A slice's numbers are finished where they are; one of the clusters that
// add to a number begins with the bias.
#pragma once
#include "common/cuda/float_conversion.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/gpt2/best.cuh"
#include "common/kernels/gpt2/gelu.cuh"
#include "common/kernels/gpt2/phase_input.cuh"
#include "common/kernels/gpt2/phase_product.cuh"
#include "common/kernels/gpt2/phase_residual.cuh"

// ----------------------------------------------------------------------------------------------------- 1. Best

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

// -------------------------------------------------------------------------------------------------- 2. Letters

// By whole warps. The four lanes of a unit have two of its numbers each, in so many words, and send all eight to every
// fourth block each. to: where the unit's words go, one lane's behind the other's; exists: whether it does.
template <int WORDS>
__device__ __forceinline__ void send_unit(unsigned char* to, const unsigned (&mine)[WORDS], bool exists, int cluster,
                                          MailBox& box, unsigned letter) {
    unsigned all[4 * WORDS];
    UNROLL
    for (int i = 0; i < 4 * WORDS; ++i) all[i] = __shfl_sync(FULL_WARP, mine[i % WORDS], i / WORDS, 4);
    if (!exists) return;
    NO_UNROLL
    for (int rank = threadIdx.x % 4; rank < cluster; rank += 4) {
        UNROLL
        for (int v = 0; v < WORDS; ++v)
            send(to + 16 * v, rank, box, letter,
                 make_uint4(all[4 * v], all[4 * v + 1], all[4 * v + 2], all[4 * v + 3]));
    }
}

// ----------------------------------------------------------------------------------------------------- 3. Rows

// The lane's numbers of a batch of units, first ... first + count - 1 of the matrix.
struct UnitOutput {
    int row, unit, col;
    bool exists, has_second;  // of the logits the last one may stand alone
    float2 bias;

    // units: of the block; first: of the batch
    __device__ __forceinline__ UnitOutput(const Steps& a, const Matrix& matrix, int layer, const Range& units,
                                          int first, int rows)
        : row(static_cast<int>(threadIdx.x) / 32), unit(first + static_cast<int>(threadIdx.x) % 32 / 4) {
        col = unit * UNIT_ROWS + threadIdx.x % 4 * 2;
        exists = row < rows && unit < units.end && col < matrix.n;
        has_second = exists && col + 1 < matrix.n;
        bias = make_float2(0.0f, 0.0f);
        if (exists && matrix.bias >= 0)
            bias = __ldg(reinterpret_cast<const float2*>(a.vectors + layer * a.plan.layer_vectors + matrix.bias + col));
    }

    // The sums of all warps, and the bias. first: of the batch
    __device__ __forceinline__ float2 value(const float* partial, int rows) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        float2 sum = bias;
        if (!exists) return sum;
        UNROLL
        for (int w = 0; w < BLOCK_WARPS; ++w) {
            const int at = ((w * UNIT_BATCH + lane / 4) * rows + row) * UNIT_ROWS + lane % 4 * 2;
            const float2 one = *reinterpret_cast<const float2*>(partial + at);
            sum.x += one.x, sum.y += one.y;
        }
        return sum;
    }

    // Queries, keys and values to the cluster; the keys and values to the cache, too.
    template <typename T, class K>
    __device__ __forceinline__ void store_qkv(const Steps& a, const BlockMemory& m, const BlockShare& share,
                                              Boxes& boxes, unsigned letter, int layer, int position,
                                              const float2& value) const {
        // part_units is a power of 2
        const int units = a.plan.head_units, part_units = a.plan.part_units, parts = unit >> (31 - __clz(part_units));
        const int row_units = a.plan.most_heads * units, at = row * row_units + unit - share.heads.begin * units;
        unsigned char* const letters = m.qkv + at * UNIT_ROWS * static_cast<int>(sizeof(T));
        if constexpr (sizeof(T) == 2)
            send_unit(letters, {mma::pack<T>(value.x, value.y)}, exists, K::cluster(a), boxes.qkv, letter);
        else
            send_unit(letters, {__float_as_uint(value.x), __float_as_uint(value.y)}, exists, K::cluster(a), boxes.qkv,
                      letter);
        const int head = parts / 3, part = parts % 3, inside = col & (part_units * UNIT_ROWS - 1);
        if (!exists || part == 0 || position < 0 || position >= a.model.max_seq_len) return;
        T* const to = cache_row<T>(a, layer, part - 1, row, head, position) + inside;
        if constexpr (sizeof(T) == 2)
            *reinterpret_cast<unsigned*>(to) = mma::pack<T>(value.x, value.y);
        else
            *reinterpret_cast<float2*>(to) = value;
    }
    template <typename T, class K>
    __device__ __forceinline__ void store_inner(const Steps& a, const BlockMemory& m, const BlockShare& share,
                                                Boxes& boxes, unsigned letter, const float2& value) const {
        unsigned char* const to =
            m.inner + row * m.inner_stride + (unit - share.expand_begin) * UNIT_ROWS * INPUT_BYTES;
        const float x = gelu(value.x), y = gelu(value.y);
        uint2 words = make_uint2(__float_as_uint(x), __float_as_uint(y));
        if constexpr (sizeof(T) == 2) words = rounded_and_rest<T>(x, y);
        send_unit(to, {words.x, words.y}, exists, K::cluster(a), boxes.inner, letter);
    }
    template <bool DRAWS>
    __device__ __forceinline__ void store_logits(const Steps& a, const float2& value, FoundLogits<DRAWS>& found) const {
        if (!exists) return;
        float* const logits = a.logits ? a.logits + int64_t{row} * a.model.vocab + col : nullptr;
        if (logits) logits[0] = value.x;
        found.add({value.x, col});
        if (!has_second) return;
        if (logits) logits[1] = value.y;
        found.add({value.y, col + 1});
    }
};

// --------------------------------------------------------------------------------------------------- 4. Slices

// What multiply_slice() made. first, units: of the slice
template <typename T, class K>
__device__ __forceinline__ void add_slice(const ResidualStream<K>& residual, int set, int rows, int first, int units,
                                          const UnitSums<T, K::ROWS> (&sums)[WARP_UNITS]) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int row = lane / UNIT_ROWS, col = (first + warp) * UNIT_ROWS + lane % UNIT_ROWS;
    UNROLL
    for (int i = 0; i < WARP_UNITS; ++i) {
        if (warp + i * BLOCK_WARPS >= units) break;
        const float sum = sums[i].mine();
        if (row < rows) residual.add(set, row, col + i * BLOCK_WARPS * UNIT_ROWS, sum);
    }
}
