// flash_backward.cuh - what the backward kernels have in common: everything but the arithmetic.
//
//   KeyBlock            which keys of which head a block has, and the tiles of queries that see one of them
//   launch_delta        delta[row] = sum over head_dim of grad_out * out, a kernel of its own
//   in_pieces           whether rows may be read and written 16 bytes at a time
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/check.h"
#include "common/cuda/flash_launch.h"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash/flash.h"
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
    // dO in the L2 cache; the first keys come first: under a causal mask theirs is the longest way.
    __device__ __forceinline__ explicit KeyBlock(const FlashArguments& arguments) : a(arguments) {
        const unsigned k_tiles = static_cast<unsigned>(ceil_div(a.S_k, int64_t{B_c}));
        const unsigned batch_kv = blockIdx.x / k_tiles, kv_heads = static_cast<unsigned>(a.kv_heads);
        batch = batch_kv / kv_heads;
        kv_head = batch_kv % kv_heads;
        group = static_cast<int>(a.heads) / static_cast<int>(a.kv_heads);
        k_start = blockIdx.x % k_tiles * B_c;
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

// ---- delta
//
// A row is read by `lanes` neighbouring threads, a power of two, 16 bytes by each.

constexpr int DELTA_THREADS = 256;

template <typename T>
__global__ void __launch_bounds__(DELTA_THREADS) flash_delta_kernel(const FlashGradients g, int lanes, bool vectors) {
    constexpr int PIECE = 16 / sizeof(T);
    const FlashArguments& f = g.forward;
    const int64_t row = (blockIdx.x * int64_t{DELTA_THREADS} + threadIdx.x) / lanes;
    const int col = threadIdx.x % lanes * PIECE;
    const bool exists = row < f.batch * f.heads * f.S_q;
    float sum = 0;
    if (exists && col < f.head_dim) {
        const int64_t q = row % f.S_q, head = row / f.S_q % f.heads, batch = row / f.S_q / f.heads;
        const RowStrides& strides = g.grad_out_strides;
        const T* x = static_cast<const T*>(f.out) + row * f.head_dim + col;
        const T* y = static_cast<const T*>(g.grad_out) + batch * strides.batch + head * strides.head +
                     q * strides.row + col;
        if (vectors) {
            const uint4 x_piece = *reinterpret_cast<const uint4*>(x), y_piece = *reinterpret_cast<const uint4*>(y);
            const T *xs = reinterpret_cast<const T*>(&x_piece), *ys = reinterpret_cast<const T*>(&y_piece);
            UNROLL
            for (int i = 0; i < PIECE; ++i) sum += static_cast<float>(xs[i]) * static_cast<float>(ys[i]);
        } else {
            UNROLL
            for (int i = 0; i < PIECE; ++i)
                if (col + i < f.head_dim) sum += static_cast<float>(x[i]) * static_cast<float>(y[i]);
        }
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, distance);
    if (exists && col == 0) g.delta[row] = sum;
}

template <typename T>
void launch_delta(const FlashGradients& g, bool vectors) {
    const FlashArguments& f = g.forward;
    int lanes = 1;
    while (lanes * 16 < f.head_dim * static_cast<int>(sizeof(T))) lanes *= 2;
    const int64_t threads = f.batch * f.heads * f.S_q * lanes;
    const unsigned blocks = grid_blocks(ceil_div(threads, int64_t{DELTA_THREADS}), "query");
    flash_delta_kernel<T><<<blocks, DELTA_THREADS, 0, f.stream>>>(g, lanes, vectors);
    CUDA_CHECK_LAUNCH();
}
