// hopper_work.cuh - what the blocks of sparse_attention_wgmma.cu have to do, and in which order.
//
//   Problem          the kernel's parameter
//   span_of          which positions a query sees
//   hide             scores of keys that a row does not see = -infinity
//   for_each_seen    the keys that a row sees, one by one
//   Item             one piece of work: rows of a head, and the tiles of keys that they see
//   for_each_item    the items of a block, one after the other
//   divide           host: how a problem is cut into items
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/hopper_rows.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/sparse/sparse.h"

// SparseArguments as the kernel wants them; names as there.
struct Problem {
    CUtensorMap query, key, value;
    void* out;
    float* lse;
    float factor;  // scale * log2(e)
    int S_q, heads, group;  // group: query heads per key head
    int key_step, key_offset, key_end;  // key_end: where the key behind the last would stand
    int window;
    bool causal;
    const int *counts, *columns;
    int key_tiles;
    bool folded;
    int q_blocks, units_per_head, units;  // see for_each_item
    hopper::Sources sources;
};

// The positions that a query sees: first ... end - 1; block-sparse: as far as they are in its list.
struct Span {
    int first, end;
};

__device__ __forceinline__ Span span_of(const Problem& a, int row) {
    const int end = a.causal ? row + 1 : a.window > 0 ? row + a.window : a.key_end;
    return {a.window > 0 ? row - a.window + 1 : 0, min(end, a.key_end)};
}

// The scores of a warp, in the registers of wgmma. first_row: of the warp.   position: of the tile's first key
template <int N8>
__device__ __forceinline__ void hide(float (&s)[1][N8][4], const Problem& a, int first_row, int position) {
    const int lane = threadIdx.x % 32;
    const Span seen[2] = {span_of(a, first_row + mma::d_row(lane, 0)), span_of(a, first_row + mma::d_row(lane, 2))};
    position += mma::d_col(lane, 0) * a.key_step;
    UNROLL
    for (int i = 0; i < 4 * N8; ++i) {
        const int key = position + (i / 4 * 8 + i % 2) * a.key_step, half = i % 4 / 2;
        if (key < seen[half].first || key >= seen[half].end) s[0][i / 4][i % 4] = -INFINITY;
    }
}

// The tiles of a causal mask, a window or all keys are neighbours, from the first key of the first row to the last key
// of the last row; those of a block-sparse mask are in a list. Rows that see no key get one tile, too: that behind the
// last key, of which the copy engine makes zeros, and the mask hides it.
template <int B_r, int B_c>
struct Item {
    static constexpr int NOWHERE = -1;
    int batch_head, q_start, tiles;
    int from;  // number of the first tile; block-sparse: of the list

    __device__ __forceinline__ void set(const Problem& a, int batch_head_, int q_block) {
        batch_head = batch_head_, q_start = q_block * B_r;
        const int tile_span = B_c * a.key_step;
        const int end = ceil_div(span_of(a, min(q_start + B_r, a.S_q) - 1).end - a.key_offset, tile_span);
        if (a.columns == nullptr) {
            from = max(span_of(a, q_start).first - a.key_offset, 0) / tile_span;
            tiles = end - from;
        } else {
            from = batch_head % a.heads * a.q_blocks + q_block;
            tiles = min(a.counts[from], a.key_tiles);
            while (tiles > 0 && column(a, tiles - 1) >= end) --tiles;  // behind the diagonal
        }
        if (tiles <= 0) tiles = 1, from = NOWHERE;
    }

    // The number of the item's tile t. A number in the list that is no tile (a caller's mistake) becomes the one behind
    // the last key.
    __device__ __forceinline__ int tile(const Problem& a, int t) const {
        if (from == NOWHERE) return a.key_tiles;
        if (a.columns == nullptr) return from + t;
        return static_cast<int>(min(static_cast<unsigned>(column(a, t)), static_cast<unsigned>(a.key_tiles)));
    }

  private:
    __device__ __forceinline__ int column(const Problem& a, int t) const {
        return a.columns[int64_t{from} * a.key_tiles + t];
    }
};

// f(key) for the keys that a row of the item sees, counted as they lie in memory.
template <int B_c, typename WorkItem, typename F>
__device__ __forceinline__ void for_each_seen(const Problem& a, const WorkItem& item, int row, F f) {
    const Span seen = span_of(a, row);
    for (int t = 0; t < item.tiles; ++t) {
        const int64_t tile = item.tile(a, t);
        for (int64_t key = tile * B_c; key < (tile + 1) * B_c; ++key) {
            const int64_t position = a.key_offset + key * a.key_step;
            if (position >= seen.first && position < seen.end) f(key);
        }
    }
}

// There are as many blocks as multiprocessors, and each takes one unit of work after the other, gridDim.x apart. The
// units of a head are neighbours, so that blocks that run at the same time find its K and V in the L2 cache.
//
// A unit is an item; under a causal mask, where late rows see more keys than early ones, it is two ("folded"): the
// last rows and the first, the last but one and the second, ... and so all units take the same time, without a counter
// in memory from which blocks would draw.
//
// The loops are plain ones so that the compiler sees that all threads of a warp do the same: only then are slots, and
// with them the operands of wgmma, in registers that a warp shares, where the instruction wants them.
template <int B_r, int B_c, typename Work>
__device__ __forceinline__ void for_each_item(const Problem& a, const Work& work) {
    for (int unit = blockIdx.x; unit < a.units; unit += gridDim.x) {
        const int batch_head = unit / a.units_per_head, i = unit % a.units_per_head, counterpart = a.q_blocks - 1 - i;
        for (int half = 0; half <= a.folded; ++half) {
            if (half == 1 && i == counterpart) break;
            Item<B_r, B_c> item;
            item.set(a, batch_head, half == 0 ? counterpart : i);
            work(item);
        }
    }
}

// False if there are more units, or positions, than an int can count.
template <int B_r, int B_c>
bool divide(Problem& p, const SparseArguments& a) {
    constexpr int64_t MANY = int64_t{1} << 29;
    const int64_t end = a.key_offset + a.S_k * a.key_step, q_blocks = ceil_div(a.S_q, int64_t{B_r});
    p.folded = a.causal && a.window == 0;
    const int64_t units_per_head = p.folded ? ceil_div(q_blocks, int64_t{2}) : q_blocks;
    const int64_t units = a.batch * a.heads * units_per_head;
    if (std::max({a.S_q, a.S_k, a.key_step}) > MANY || end + B_c * a.key_step > MANY || units > MANY) return false;
    p.S_q = static_cast<int>(a.S_q);
    p.heads = static_cast<int>(a.heads), p.group = static_cast<int>(a.heads / a.kv_heads);
    p.key_step = static_cast<int>(a.key_step), p.key_offset = static_cast<int>(a.key_offset);
    p.key_end = static_cast<int>(end);
    p.causal = a.causal;
    p.window = static_cast<int>(std::min(a.window, MANY));
    p.counts = a.counts, p.columns = a.columns;
    p.key_tiles = static_cast<int>(ceil_div(a.S_k, int64_t{B_c}));
    p.q_blocks = static_cast<int>(q_blocks);
    p.units_per_head = static_cast<int>(units_per_head), p.units = static_cast<int>(units);
    return true;
}
