// flash_backward.cuh - what the backward kernels have in common: everything but the arithmetic.
//
//   KeyBlock            which keys of which head a block has, and the tiles of queries that see one of them
//   launch_key_blocks   the launch of a kernel whose blocks are KeyBlocks
//   RowNumbers          delta, and for Hopper GPUs lse: what the kernels read besides the tensors
//   launch_row_numbers  computes them, a kernel of its own
//   in_pieces           whether rows may be read and written 16 bytes at a time
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/check.h"
#include "common/cuda/flash_launch.h"
#include "common/cuda/logarithms.h"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_host.h"
#include "common/kernels/flash/flash_keys.cuh"

// A block has B_c keys of one K/V head. It walks over the rows of all query heads that use this K/V head, in tiles of
// B_r rows, head by head; under a causal mask only over those that see one of its keys:
//
//            keys   0 .. B_c .. ..                  the blocks' tiles, B_r = B_c, S_q = S_k:
//        rows 0  [ x              ]
//                [ x  x           ]                 block 0 has all, the last block one tile
//                [ x  x  x        ]
//                [ x  x  x  x     ]
//
// Positions are int (check_row_count), offsets in memory int64_t.
template <int B_r, int B_c>
struct KeyBlock {
    const FlashArguments& a;
    int batch, kv_head, group;  // group: how many query heads use the K/V head
    int k_start, keys;          // the first key; how many of the B_c exist
    int first_row, end_row;     // in every head: where the first tile begins, where the last one ends
    int tiles;                  // of all heads together

    struct Tile {
        int head;     // of the group
        int q_start;  // its first row
    };

    // Block x of batch * kv_heads * ceil(S_k / B_c). The blocks of a head are neighbours, so that they find its Q and
    // dO in the L2 cache; the first keys come first: under a causal mask theirs is the longest way. key_tile: not
    // negative in a launch of batch * kv_heads blocks that all have their heads' keys from key_tile * B_c on.
    __device__ __forceinline__ KeyBlock(const FlashArguments& arguments, int key_tile) : a(arguments) {
        const unsigned k_tiles = key_tile < 0 ? static_cast<unsigned>(ceil_div(a.S_k, int64_t{B_c})) : 1;
        const unsigned batch_kv = blockIdx.x / k_tiles, kv_heads = static_cast<unsigned>(a.kv_heads);
        batch = batch_kv / kv_heads;
        kv_head = batch_kv % kv_heads;
        group = static_cast<int>(a.heads) / static_cast<int>(a.kv_heads);
        k_start = (key_tile < 0 ? blockIdx.x % k_tiles : key_tile) * B_c;
        keys = static_cast<int>(min(a.S_k - k_start, int64_t{B_c}));
        const int64_t sees = first_row_of(a, k_start);  // the first row that sees a key
        first_row = static_cast<int>(min(sees, a.S_q)) / B_r * B_r;
        end_row = static_cast<int>(ceil_div(a.S_q, int64_t{B_r})) * B_r;
        tiles = sees < a.S_q ? (end_row - first_row) / B_r * group : 0;
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

    // How many of the tile's rows exist; where its head stands in [batch, heads], its first row in [batch, heads, S_q].
    __device__ __forceinline__ int rows(Tile t) const { return min(static_cast<int>(a.S_q) - t.q_start, B_r); }
    __device__ __forceinline__ int head_number(Tile t) const {
        return batch * static_cast<int>(a.heads) + kv_head * group + t.head;
    }
    __device__ __forceinline__ int64_t row_number(Tile t) const { return head_number(t) * a.S_q + t.q_start; }
    // Where the block's first key stands in [batch, kv_heads, S_k].
    __device__ __forceinline__ int64_t key_number() const {
        return (batch * a.kv_heads + kv_head) * a.S_k + k_start;
    }

    // Where the keys of a tensor like key begin, and the rows of one like query.
    template <typename T>
    __device__ __forceinline__ const T* keys_of(const void* tensor, const RowStrides& strides) const {
        return static_cast<const T*>(tensor) + batch * strides.batch + kv_head * strides.head + k_start * strides.row;
    }
    template <typename T>
    __device__ __forceinline__ const T* rows_of(const void* tensor, const RowStrides& strides, Tile t) const {
        return static_cast<const T*>(tensor) + batch * strides.batch + (kv_head * group + t.head) * strides.head +
               t.q_start * strides.row;
    }

    // The position of the tile's first row, counted from the block's first key; cut off where no row sees a key.
    __device__ __forceinline__ int position(Tile t) const {
        if (!a.causal) return B_c;
        return static_cast<int>(max(position_of(a, t.q_start) - k_start * int64_t{a.key_step}, int64_t{-B_r}));
    }
    // How many of the block's keys are at or before a position, counted likewise: the first ones. NEXT: see keys_seen.
    template <bool NEXT = false>
    __device__ __forceinline__ int seen(int at) const {
        return min(static_cast<int>(keys_up_to(at, NEXT ? 1 : a.key_step)), keys);
    }
    // Whether some row of the tile may not see some key of the block, the mask aside, or these do not all exist.
    __device__ __forceinline__ bool hides(Tile t) const { return seen(position(t)) < B_c; }

    // The mask from row `row` of the tile and key `key` of the block on.
    __device__ __forceinline__ AttentionMask mask(Tile t, int row, int key) const {
        return mask_from(a.mask, batch, kv_head * group + t.head, t.q_start + row, k_start + key);
    }
};

// ---- host

// T: the type of the tensors' elements.
template <typename T>
bool in_pieces(const FlashGradients& g) {
    return in_pieces<T>(g.forward) && in_pieces<T>(g.grad_out, g.grad_out_strides) && in_pieces<T>(g.grad_query) &&
           in_pieces<T>(g.grad_key) && in_pieces<T>(g.grad_value);
}

// kernel(gradients, key_tile). To add up dQ in a fixed order, one launch after the other: in each of them no more than
// one block has a part of a row of dQ.
template <int B_c, typename Kernel>
void launch_key_blocks(Kernel* kernel, unsigned threads, size_t shared_bytes, const FlashGradients& g) {
    const FlashArguments& f = g.forward;
    const int64_t heads = f.batch * f.kv_heads, tiles = ceil_div(f.S_k, int64_t{B_c});
    const int bytes = static_cast<int>(shared_bytes);
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    if (!g.deterministic) {
        kernel<<<grid_blocks(heads * tiles, "key"), threads, shared_bytes, f.stream>>>(g, -1);
        return CUDA_CHECK_LAUNCH();
    }
    for (int64_t tile = 0; tile < tiles; ++tile) {
        kernel<<<grid_blocks(heads, "key"), threads, shared_bytes, f.stream>>>(g, static_cast<int>(tile));
        CUDA_CHECK_LAUNCH();
    }
}

// ---- numbers of rows
//
// delta[row] = sum over head_dim of grad_out * out, which is the sum over the keys of P * dP. dS = P (dP - delta) is a
// difference, and `out` has been rounded: where a row sees few keys, that error is larger than all others. So the rows
// that see at most FEW_KEYS get the sum over the keys itself. Not under a mask tensor; and not where out and lse are
// those of more keys than are given here, as in ring attention: then the weights of these keys do not add up to 1.
//
// A row is read by `lanes` neighbouring threads, a power of two, 16 bytes by each.

struct RowNumbers {
    float* delta;  // [batch, heads, rows]
    float* lse;    // the same, or nullptr: lse * log2(e); infinity for a row that sees no key, and for one past S_q
    int64_t rows;  // S_q, or more
};

// Those of the kernel for Hopper GPUs, in the workspace delta.
inline RowNumbers row_numbers(const FlashGradients& g) {
    const int64_t rows = sum_rows(g.forward);
    return {g.delta, g.delta + g.forward.batch * g.forward.heads * rows, rows};
}

constexpr int ROW_THREADS = 256, FEW_KEYS = 8;
constexpr float WEIGHTS_TOLERANCE = 1e-5f;

// Memory that the kernel fills with zeros on its way.
struct Zeros {
    float4* sum;
    int64_t vectors;
    int* turns;
    int64_t ints;
};

template <typename T>
__global__ void __launch_bounds__(ROW_THREADS)
    flash_row_numbers_kernel(const FlashGradients g, const RowNumbers numbers, const Zeros zeros, int lanes,
                             bool vectors) {
    constexpr int PIECE = 16 / sizeof(T);
    const FlashArguments& f = g.forward;
    const int64_t thread = blockIdx.x * int64_t{ROW_THREADS} + threadIdx.x, threads = gridDim.x * int64_t{ROW_THREADS};
    for (int64_t i = thread; i < zeros.vectors; i += threads) zeros.sum[i] = make_float4(0, 0, 0, 0);
    for (int64_t i = thread; i < zeros.ints; i += threads) zeros.turns[i] = 0;

    const int64_t number = thread / lanes, q = number % numbers.rows, head = number / numbers.rows % f.heads;
    const int64_t batch = number / numbers.rows / f.heads, kv_head = head / (f.heads / f.kv_heads);
    const int col = threadIdx.x % lanes * PIECE;
    const bool stored = number < f.batch * f.heads * numbers.rows, exists = stored && q < f.S_q;
    const int64_t row = (batch * f.heads + head) * f.S_q + q;
    const auto row_of = [&](const void* tensor, const RowStrides& strides, int64_t of_head, int64_t i) {
        return static_cast<const T*>(tensor) + batch * strides.batch + of_head * strides.head + i * strides.row + col;
    };
    const auto add_lanes = [&](float x) {
        for (int distance = lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(FULL_WARP, x, distance);
        return x;
    };
    const auto dot = [&](const T* x, const T* y) {  // this lane's part
        float sum = 0;
        if (vectors && col < f.head_dim) {
            const uint4 x_piece = *reinterpret_cast<const uint4*>(x), y_piece = *reinterpret_cast<const uint4*>(y);
            const T *xs = reinterpret_cast<const T*>(&x_piece), *ys = reinterpret_cast<const T*>(&y_piece);
            UNROLL
            for (int i = 0; i < PIECE; ++i) sum += static_cast<float>(xs[i]) * static_cast<float>(ys[i]);
        } else {
            for (int i = 0; i < PIECE && col + i < f.head_dim; ++i)
                sum += static_cast<float>(x[i]) * static_cast<float>(y[i]);
        }
        return sum;
    };
    const T* grad_out = exists ? row_of(g.grad_out, g.grad_out_strides, head, q) : nullptr;
    const float lse = exists ? f.lse[row] : -INFINITY;
    const int seen = exists && f.mask.kind == MaskKind::NONE ? keys_seen<false>(f, position_of(f, q)) : 0;
    const int few = seen <= FEW_KEYS ? seen : 0;
    float delta = exists ? dot(static_cast<const T*>(f.out) + row * f.head_dim + col, grad_out) : 0;
    delta = add_lanes(delta);
    float of_keys = 0, weights = 0;
    for (int key = 0; key < FEW_KEYS && __any_sync(FULL_WARP, key < few); ++key) {
        float score = 0, dp = 0;
        if (key < few) {
            score = dot(row_of(f.query, f.query_strides, head, q), row_of(f.key, f.key_strides, kv_head, key));
            dp = dot(grad_out, row_of(f.value, f.value_strides, kv_head, key));
        }
        score = add_lanes(score), dp = add_lanes(dp);
        if (key < few && lse != -INFINITY) {
            const float weight = expf(score * f.scale - lse);
            weights += weight, of_keys += weight * dp;
        }
    }
    // An error of lse is in all weights alike; in delta it would be one of its own.
    if (few > 0 && fabsf(weights - 1) < WEIGHTS_TOLERANCE) delta = of_keys / weights;
    if (!stored || col != 0) return;
    numbers.delta[number] = delta;
    if (numbers.lse != nullptr) numbers.lse[number] = lse == -INFINITY ? INFINITY : lse * LOG2_E;
}

template <typename T>
void launch_row_numbers(const FlashGradients& g, RowNumbers numbers, Zeros zeros, bool vectors) {
    const FlashArguments& f = g.forward;
    int lanes = 1;
    while (lanes * 16 < f.head_dim * static_cast<int>(sizeof(T))) lanes *= 2;
    const int64_t threads = f.batch * f.heads * numbers.rows * lanes;
    const unsigned blocks = grid_blocks(ceil_div(threads, int64_t{ROW_THREADS}), "query");
    flash_row_numbers_kernel<T><<<blocks, ROW_THREADS, 0, f.stream>>>(g, numbers, zeros, lanes, vectors);
    CUDA_CHECK_LAUNCH();
}

// Those of the other kernels: delta alone.
inline RowNumbers delta_numbers(const FlashGradients& g) { return {g.delta, nullptr, g.forward.S_q}; }

// flag: nan_flag, or nullptr
template <typename T>
void launch_delta(const FlashGradients& g, int* flag, bool vectors) {
    launch_row_numbers<T>(g, delta_numbers(g), {nullptr, 0, flag, flag == nullptr ? 0 : 1}, vectors);
}
