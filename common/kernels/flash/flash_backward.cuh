// flash_backward.cuh - shared by the backward kernels: everything except the arithmetic.
//
//   1. Blocks     KeyBlock             which keys of which head a block has, and the tiles of queries that see them
//                 launch_key_blocks    launches a kernel whose blocks are KeyBlocks
//   2. Rows       RowNumbers           lse and delta of every row
//                 launch_row_numbers   computes them in a separate kernel, then the gradient of the sinks
//                 in_pieces            whether rows may be read and written in 16-byte accesses
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/check.h"
#include "common/cuda/flash_launch.h"
#include "common/cuda/float_conversion.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash/attention_policies.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_host.h"
#include "common/kernels/flash/flash_sequences.cuh"

// ------------------------------------------------------------------------------------------------- 1. Blocks
//
// A block has B_c keys of one K/V head. It loops over the rows of all query heads that use this K/V head, in tiles of
// B_r rows, head by head; under a causal mask only over those that see any of its keys:
//
//            keys   0 .. B_c .. ..                  the blocks' tiles, B_r = B_c, S_q = S_k:
//        rows 0  [ x              ]
//                [ x  x           ]                 block 0 has all, the last block one tile
//                [ x  x  x        ]
//                [ x  x  x  x     ]
//
// Positions are int (check_row_count), offsets in memory int64_t.

// Keys begin ... end - 1, counted from the block's first.
struct KeyRange {
    int begin, end;
};

template <int B_r, int B_c>
struct KeyBlock {
    const FlashArguments& a;
    const Place place;        // head: of key and value
    const Sequence sequence;
    const int group, keys;    // query heads per K/V head; how many of the B_c keys exist
    int first_row, end_row;   // in every head: start of the first tile, end of the last
    int tiles;                // total over all heads

    struct Tile {
        int head;     // within the group
        int q_start;  // its first row
    };

    // The block has nothing to do if number is -1, or it has no keys. key_tile: non-negative in a launch of one block
    // per K/V head, whose keys start at key_tile * B_c. The first keys come first: under a causal mask they take
    // longest.
    static __device__ __forceinline__ Place place_of(const FlashArguments& a, int key_tile) {
        if (key_tile < 0) return place_of_block(a.cu_seqlens_k, a.S_k, a.batch, a.kv_heads, B_c, false);
        const int kv_heads = static_cast<int>(a.kv_heads), matrix = static_cast<int>(blockIdx.x);
        return {matrix % kv_heads, matrix / kv_heads, key_tile * B_c};
    }

    __device__ __forceinline__ KeyBlock(const FlashArguments& arguments, const Place& at)
        : a(arguments),
          place(at),
          sequence(a, place.number),
          group(static_cast<int>(a.heads) / static_cast<int>(a.kv_heads)),
          keys(min(sequence.keys - place.start, B_c)) {
        const int begin = sequence.first_row_of(place.start), end = sequence.end_of_rows(place.start + max(keys, 1) - 1);
        first_row = begin / B_r * B_r, end_row = ceil_div(end, B_r) * B_r;
        tiles = keys > 0 && begin < end ? (end_row - first_row) / B_r * group : 0;
    }

    __device__ __forceinline__ Tile first() const { return {0, first_row}; }
    __device__ __forceinline__ Tile after(Tile t) const {
        const bool last = t.q_start + B_r == end_row;
        return {t.head + last, last ? first_row : t.q_start + B_r};
    }
    __device__ __forceinline__ Tile before(Tile t) const {
        const bool is_first = t.q_start == first_row;
        return {t.head - is_first, (is_first ? end_row : t.q_start) - B_r};
    }

    // How many of the tile's rows exist; its query head.
    __device__ __forceinline__ int rows(Tile t) const { return min(sequence.rows - t.q_start, B_r); }
    __device__ __forceinline__ int head(Tile t) const { return place.head * group + t.head; }

    // The first key in a tensor shaped like key, and the first row in one shaped like query.
    template <typename T>
    __device__ __forceinline__ T* keys_of(T* tensor, const RowStrides& strides) const {
        return row_at(tensor, strides, place.number, place.head, sequence.first_key + place.start);
    }
    template <typename T>
    __device__ __forceinline__ T* rows_of(T* tensor, const RowStrides& strides, Tile t) const {
        return row_at(tensor, strides, place.number, head(t), sequence.first_row + t.q_start);
    }

    // Which of the block's keys row `row` of the tile sees, apart from the mask tensor.
    __device__ __forceinline__ KeyRange seen(Tile t, int row) const {
        const int at = t.q_start + row;
        return {sequence.first_key_of(at) - place.start, sequence.end_of_keys(at) - place.start};
    }
    // Whether some row of the tile may not see some key of the block, apart from the mask tensor, or not all of them
    // exist.
    __device__ __forceinline__ bool hides(Tile t) const {
        return seen(t, 0).end < B_c || seen(t, B_r - 1).begin > 0 || rows(t) < B_r;
    }

    // The mask with its origin at row `row` of the tile and key `key` of the block.
    __device__ __forceinline__ AttentionMask mask(Tile t, int row, int key) const {
        return mask_from(a.mask, place.number, head(t), t.q_start + row, place.start + key);
    }
};

// ---- host

// Launches kernel(g, numbers, key_tile). To accumulate dQ in a fixed order there is one launch after another, in each
// of which at most one block contributes to any row of dQ.
template <int B_c, typename Kernel, typename Numbers>
void launch_key_blocks(Kernel* kernel, unsigned threads, size_t shared_bytes, const FlashGradients& g,
                       const Numbers& numbers) {
    const FlashArguments& a = g.forward;
    const int bytes = static_cast<int>(shared_bytes);
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    if (!g.deterministic) {
        const int64_t blocks = a.kv_heads * tiles_of(a.batch, a.S_k, a.packed(), B_c);
        kernel<<<grid_blocks(blocks, "key"), threads, shared_bytes, a.stream>>>(g, numbers, -1);
        return CUDA_CHECK_LAUNCH();
    }
    for (int64_t tile = 0; tile < ceil_div(a.S_k, int64_t{B_c}); ++tile) {
        const unsigned blocks = grid_blocks(a.batch * a.kv_heads, "key");
        kernel<<<blocks, threads, shared_bytes, a.stream>>>(g, numbers, static_cast<int>(tile));
        CUDA_CHECK_LAUNCH();
    }
}

// --------------------------------------------------------------------------------------------------- 2. Rows
//
// delta[row] = sum over head_dim of grad_out * out. This equals the sum over the keys of P * m * dP, with m the dropout
// factor of a weight (a sink has no value). dS = P (m dP - delta) is a difference, and `out` has been rounded: if a row
// sees few keys, that error dominates all others. So rows that see at most FEW_KEYS use the sum over the keys itself.
// Not under a mask tensor; and not if out and lse cover more keys than are given here, as in ring attention: then the
// weights of these keys do not add up to what the sink leaves.

constexpr int FEW_KEYS = 16, ROW_THREADS = 256;
constexpr float WEIGHTS_TOLERANCE = 1e-5f, CAPPED_TOLERANCE = 4e-3f;  // forward and backward may use different tanhs

struct RowNumbers {
    float *lse, *delta;   // [count]; lse times `unit`, infinity for rows that see no key and for padding
    unsigned rows, count;  // per head; in total
    float unit;
    PaddedRows padded;

    RowNumbers(const FlashGradients& g, const BackwardSpace& space, float unit)
        : lse(space.lse(g)),
          delta(space.delta(g)),
          rows(static_cast<unsigned>(space.rows)),
          count(static_cast<unsigned>(space.count)),
          unit(unit),
          padded{g.forward.cu_seqlens_q, static_cast<int>(g.forward.batch), static_cast<int>(g.forward.S_q), space.tile} {
    }
    __device__ __forceinline__ int* nan() const { return reinterpret_cast<int*>(delta + count) + 1; }
    // The index of row `row` of a sequence.
    __device__ __forceinline__ int64_t at(const FlashArguments& a, const Sequence& s, int head, int row) const {
        return matrix_of(a, s.number, head) * rows + padded.start(s.number, static_cast<int>(s.first_row)) + row;
    }
};

// 2^lanes_log2 neighboring threads read a row, 16 bytes each at a time. Also zeroes dQ's sum, counter and turns, and
// the gradients of rows and keys that belong to no sequence.
template <typename T>
__global__ void __launch_bounds__(ROW_THREADS)
    flash_row_numbers_kernel(const FlashGradients g, const RowNumbers numbers, float4* sum, int64_t vectors, int* turns,
                             int64_t ints, int lanes_log2, bool pieces) {
    constexpr int PIECE = 16 / sizeof(T), PIECES = sizeof(T) / 2;  // PIECES: per lane, for the widest rows
    const FlashArguments& a = g.forward;
    const int64_t thread = blockIdx.x * int64_t{ROW_THREADS} + threadIdx.x;
    const int64_t threads = gridDim.x * int64_t{ROW_THREADS};
    for (int64_t i = thread; i < vectors; i += threads) sum[i] = make_float4(0, 0, 0, 0);
    for (int64_t i = thread; i < ints; i += threads) turns[i] = 0;
    if (a.sinks == nullptr)
        for (int64_t i = thread; i < a.heads; i += threads) g.grad_sinks[i] = 0;
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

    // 32 bits, for fast division
    const unsigned number = static_cast<unsigned>(thread >> lanes_log2), matrix = number / numbers.rows;
    const int lanes = 1 << lanes_log2, col = threadIdx.x % lanes * PIECE;
    const bool packed = a.cu_seqlens_q != nullptr, stored = number < numbers.count;
    const int head = static_cast<int>(matrix % static_cast<unsigned>(a.heads));
    int sequence = static_cast<int>(matrix / static_cast<unsigned>(a.heads));  // packed: set by row_at
    const int batch = packed ? 0 : sequence;
    const int row = stored ? numbers.padded.row_at(static_cast<int>(number % numbers.rows), sequence) : -1;
    using Row = uint4[PIECES];
    const auto read = [&](Row& x, const void* tensor, const RowStrides& strides, int of_head, int64_t i) {
        const T* from = row_at(static_cast<const T*>(tensor), strides, batch, of_head, i);
        UNROLL
        for (int p = 0; p < PIECES; ++p) {
            const int at = col + p * lanes * PIECE;
            if (at >= a.head_dim) continue;
            if (pieces) {
                x[p] = *reinterpret_cast<const uint4*>(from + at);
            } else {
                T* elements = reinterpret_cast<T*>(&x[p]);
                for (int d = 0; d < PIECE; ++d) elements[d] = at + d < a.head_dim ? from[at + d] : T(0.0f);
            }
        }
    };
    const auto dot = [&](const Row& left, const Row& right) {  // same result in all of the row's lanes
        float total = 0;
        UNROLL
        for (int p = 0; p < PIECES; ++p) {
            const T *x = reinterpret_cast<const T*>(&left[p]), *y = reinterpret_cast<const T*>(&right[p]);
            UNROLL
            for (int i = 0; i < PIECE; ++i) total += to_float(x[i]) * to_float(y[i]);
        }
        for (int distance = lanes / 2; distance > 0; distance /= 2)
            total += __shfl_xor_sync(FULL_WARP, total, distance);
        return total;
    };
    // Issues all loads that most rows need at once: the kernel is bound by memory latency.
    Row out = {}, grad_out = {};
    const float natural = row >= 0 ? a.lse[matrix * a.S_q + row] : -INFINITY;
    if (row >= 0) read(out, a.out, a.out_strides, head, row), read(grad_out, g.grad_out, g.grad_out_strides, head, row);
    const float lse = natural == -INFINITY ? INFINITY : natural * LOG2_E;
    int few = 0, position = row, first_key = 0;
    int64_t keys_at = 0;
    if (row >= 0 && a.mask.kind == MaskKind::NONE) {
        const Sequence s(a, sequence);
        position = row - static_cast<int>(s.first_row), keys_at = s.first_key;
        first_key = s.first_key_of(position);
        few = s.end_of_keys(position) - first_key;
        if (few > FEW_KEYS) few = 0;
    }
    float delta = dot(out, grad_out), weights = 0, of_keys = 0;
    const int kv_head = head / static_cast<int>(a.heads / a.kv_heads);
    const int64_t seed = seed_of(a.dropout), dropout_head = sequence * a.heads + head;
    for (int i = 0; i < FEW_KEYS && __any_sync(FULL_WARP, i < few); ++i) {
        Row query = {}, key = {}, value = {};
        if (i < few) {
            read(query, a.query, a.query_strides, head, row);
            read(key, a.key, a.key_strides, kv_head, keys_at + first_key + i);
            read(value, a.value, a.value_strides, kv_head, keys_at + first_key + i);
        }
        float score = a.scale * dot(query, key);
        const float dp = dot(grad_out, value);
        if (i >= few || lse == INFINITY) continue;
        if (a.softcap > 0) score = a.softcap * tanh_of(score / a.softcap);
        const float weight = exp2_approx(score * LOG2_E - lse);
        const bool kept =
            a.dropout.seed == nullptr || keep_weight(a.dropout, seed, dropout_head, position, first_key + i);
        weights += weight;
        if (kept) of_keys += weight * a.dropout.factor * dp;
    }
    // An error of lse affects all weights alike; in delta it would be an error of its own. If a sink leaves little
    // weight, `all` has lost digits, but the weights have not.
    const float all = a.sinks == nullptr ? 1.0f : 1 - exp2_approx(a.sinks[head] * LOG2_E - lse);
    const float tolerance = a.softcap > 0 ? CAPPED_TOLERANCE : WEIGHTS_TOLERANCE;
    if (few > 0 && fabsf(weights - all) < tolerance) delta = all > 0.5f ? of_keys * all / weights : of_keys;
    if (!stored || col != 0) return;
    numbers.lse[number] = natural == -INFINITY ? INFINITY : natural * numbers.unit;
    numbers.delta[number] = row >= 0 ? delta : 0;
}

void launch_sinks(const FlashGradients& g, const RowNumbers& numbers);  // flash_sinks.cu

template <typename T>
void launch_row_numbers(const FlashGradients& g, const RowNumbers& numbers, const BackwardSpace& space, bool pieces) {
    const FlashArguments& a = g.forward;
    int lanes_log2 = 0;
    while (lanes_log2 < 5 && (16 << lanes_log2) < a.head_dim * static_cast<int>(sizeof(T))) ++lanes_log2;
    const unsigned blocks = grid_blocks(ceil_div(space.count << lanes_log2, int64_t{ROW_THREADS}), "query");
    flash_row_numbers_kernel<T><<<blocks, ROW_THREADS, 0, a.stream>>>(
        g, numbers, reinterpret_cast<float4*>(g.workspace), space.sum / 4, space.counter(g), space.turns, lanes_log2,
        pieces);
    CUDA_CHECK_LAUNCH();
    if (a.sinks != nullptr) launch_sinks(g, numbers);
}

// T: the element type of the tensors.
template <typename T>
bool in_pieces(const FlashGradients& g) {
    return in_pieces<T>(g.forward) && in_pieces<T>(g.grad_out, g.grad_out_strides) && in_pieces<T>(g.grad_query) &&
           in_pieces<T>(g.grad_key) && in_pieces<T>(g.grad_value);
}
