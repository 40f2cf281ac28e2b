// hopper_work.cuh - the patterns of sparse attention as work tiles of flash/flash_attention_wgmma.cuh.
//
//   SparseProblem      the kernel's parameter
//   SparseTile         rows of a head, and the tiles of keys that they see: consecutive, or from a list
//   SparseScheduler    iterates over the work tiles of a CTA
//   set_sparse_work    host: fills in a SparseProblem
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "common/cuda/check.h"
#include "common/kernels/flash/hopper_forward_work.cuh"
#include "common/kernels/sparse/sparse.h"

// SparseArguments as the kernel takes them; names as there.
struct SparseProblem : ForwardProblem {
    int key_step, key_offset, key_end;  // key_end: the position that a key after the last would have
    int window;
    bool hides_later;  // SparseArguments::causal
    const int *counts, *columns;
    int key_tiles;
};

// The tiles of a causal mask, a window or all keys are consecutive, from the first key of the first row to the last key
// of the last row; those of a block-sparse mask are in a list. Rows that see no key also get one tile: the one after
// the last key, which TMA fills with zeros and the mask hides.
struct SparseTile : WorkTile {
    static constexpr bool HAS_WINDOW = true;
    int list;  // block-sparse: its index

    __device__ __forceinline__ bool is_listed(const SparseProblem& a) const { return a.columns != nullptr; }
    // An invalid index in the list becomes the tile after the last key.
    __device__ __forceinline__ int key_tile(const SparseProblem& a, int t) const {
        if (a.columns == nullptr || first == a.key_tiles) return first + t;
        return static_cast<int>(min(static_cast<unsigned>(column(a, t)), static_cast<unsigned>(a.key_tiles)));
    }
    __device__ __forceinline__ int column(const SparseProblem& a, int t) const {
        return a.columns[int64_t{list} * a.key_tiles + t];
    }

    // The keys that a row sees, or would if its list held them all, as indices in memory: every key_step-th position.
    __device__ __forceinline__ int first_key_of(const SparseProblem& a, int row) const {
        return a.window > 0 ? keys_before(a, row - a.window + 1) : 0;
    }
    __device__ __forceinline__ int end_of_keys(const SparseProblem& a, int row) const {
        const int end = a.hides_later ? row + 1 : a.window > 0 ? row + a.window : a.key_end;
        return keys_before(a, min(end, a.key_end));
    }

  private:
    static __device__ __forceinline__ int keys_before(const SparseProblem& a, int position) {
        return ceil_div(max(position - a.key_offset, 0), a.key_step);
    }
};

template <class S>
class SparseScheduler : TileOrder<S::ORDER> {
  public:
    __device__ __forceinline__ explicit SparseScheduler(const SparseProblem& problem) : a(problem) {}

    // False if none is left.
    __device__ __forceinline__ bool take(SparseTile& tile) {
        int q_block;
        if (!TileOrder<S::ORDER>::take(a, tile.batch_head, q_block)) return false;
        tile.q_start = q_block * S::B_r;
        const int end = ceil_div(tile.end_of_keys(a, min(tile.q_start + S::B_r, a.S_q) - 1), S::B_c);
        tile.first = tile.list = 0;
        if (a.columns == nullptr) {
            tile.first = tile.first_key_of(a, tile.q_start) / S::B_c;
            tile.tiles = end - tile.first;
        } else {
            tile.list = tile.head(a) * a.q_blocks + q_block;
            tile.tiles = min(a.counts[tile.list], a.key_tiles);
            while (tile.tiles > 0 && tile.column(a, tile.tiles - 1) >= end) --tile.tiles;  // after the diagonal
        }
        if (tile.tiles <= 0) tile.tiles = 1, tile.first = a.key_tiles;
        return true;
    }

  private:
    const SparseProblem& a;
};

// Sets everything except the tensor maps; returns the number of CTAs to launch, or 0 if there are more tiles, or
// positions, than an int can hold.
template <class S>
int set_sparse_work(SparseProblem& p, const SparseArguments& a) {
    constexpr int64_t MANY = int64_t{1} << 29;
    const int64_t end = a.key_offset + a.S_k * a.key_step, tiles = a.batch * a.heads * ceil_div(a.S_q, int64_t{S::B_r});
    if (std::max({a.S_q, a.S_k, a.key_step, end + S::B_c * a.key_step, tiles}) > MANY) return 0;
    p.out = a.out, p.lse = a.lse, p.factor = a.scale * LOG2_E;
    p.S_q = static_cast<int>(a.S_q), p.S_k = static_cast<int>(a.S_k), p.head_dim = a.head_dim;
    p.heads = static_cast<int>(a.heads), p.group = static_cast<int>(a.heads / a.kv_heads);
    p.batch_heads = static_cast<int>(a.batch * a.heads);
    p.q_blocks = static_cast<int>(ceil_div(a.S_q, int64_t{S::B_r}));
    p.causal = p.folded = a.causal && a.window == 0;
    p.key_step = static_cast<int>(a.key_step), p.key_offset = static_cast<int>(a.key_offset);
    p.key_end = static_cast<int>(end);
    p.hides_later = a.causal, p.window = static_cast<int>(std::min(a.window, MANY));
    p.counts = a.counts, p.columns = a.columns;
    p.key_tiles = static_cast<int>(ceil_div(a.S_k, int64_t{S::B_c}));
    p.sources.set(a, a.causal || a.window > 0);
    return std::min(static_cast<int>(tiles), device_attribute(cudaDevAttrMultiProcessorCount));
}
