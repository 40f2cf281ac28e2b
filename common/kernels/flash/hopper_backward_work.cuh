// hopper_backward_work.cuh - what the roles of flash_backward_wgmma.cu share: which keys a block has, which rows see
// them.
//
//   1. Shapes       Shape, Barriers             what a block has in shared memory
//   2. Work         Problem, Item, Walk         in which order items are drawn, and their tiles
//                   Beside                      what comes with the tiles
//
// Needs sm_90a.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/hopper_tiles.cuh"
#include "common/kernels/flash/flash_host.h"
#include "common/kernels/flash/flash_query_sum.cuh"

// ------------------------------------------------------------------------------------------------------- 1. Shapes
//
// A tile is B_r rows of Q or dO. Q needs one slot more than dO, since the next tile's S is started before this one's
// dK. K has two, so that an item's K is there before the last item's dQ is done. KV_IN_REGISTERS: a group keeps its
// rows of K and V there, too, as operands of S and dP; the tensor cores then read half as much from shared memory.

template <typename T_, int D_, bool KV_IN_REGISTERS_, int DS_SLOTS_>
struct Shape {
    using T = T_;
    static constexpr int D = D_, GROUPS = 2, STEP = 64, STEPS = 128 / D;  // STEPS: of a tile
    static constexpr int B_r = STEP * STEPS, B_c = hopper::GROUP_ROWS * GROUPS;
    static constexpr int K_SLOTS = 2, Q_SLOTS = 3, DO_SLOTS = 2, DS_SLOTS = DS_SLOTS_;
    static constexpr bool KV_IN_REGISTERS = KV_IN_REGISTERS_;
    static constexpr int THREADS = hopper::GROUP_THREADS * (1 + GROUPS), CONSUMER_WARPS = 4 * GROUPS;
    using Registers = hopper::RegisterShares<GROUPS>;
    using Q = hopper::Tile<B_r, D>;     // or dO
    using K = hopper::Tile<B_c, D>;     // or V
    using dS = hopper::Tile<B_c, STEP>;  // dS^T of a step
    static constexpr int PIECE_BYTES = QuerySum<D>::PIECE * sizeof(float);
    static_assert(B_r * D == GROUPS * QuerySum<D>::PIECE);
    // Shared memory, in bytes: K [K_SLOTS], V, Q [Q_SLOTS], dO [DO_SLOTS], dS [DS_SLOTS], pieces of dQ [GROUPS]
    static constexpr int V_AT = K_SLOTS * K::BYTES, Q_AT = V_AT + K::BYTES, DO_AT = Q_AT + Q_SLOTS * Q::BYTES;
    static constexpr int DS_AT = DO_AT + DO_SLOTS * Q::BYTES, DQ_AT = DS_AT + DS_SLOTS * dS::BYTES;
    static constexpr int BYTES = DQ_AT + GROUPS * PIECE_BYTES + hopper::ALIGNMENT;
    static_assert(BYTES <= hopper::MAX_SHARED);
};

template <typename T>
using D64 = Shape<T, 64, true, 3>;
template <typename T>
using D128 = Shape<T, 128, false, 1>;

template <class S>
struct Barriers {
    hopper::Slots<S::K_SLOTS> k;
    hopper::Slots<1> v;
    hopper::Slots<S::Q_SLOTS> q;
    hopper::Slots<S::DO_SLOTS> grad_out;
    hopper::Slots<S::DS_SLOTS> ds;
    hopper::Slots<1> dq[S::GROUPS];

    __device__ void init() {
        k.init(S::CONSUMER_WARPS + S::GROUPS);  // the adders read the item, too
        v.init(S::CONSUMER_WARPS), q.init(S::CONSUMER_WARPS), grad_out.init(S::CONSUMER_WARPS);
        ds.init(S::CONSUMER_WARPS / S::STEPS, S::CONSUMER_WARPS);  // read by both groups, or by one of them
        for (auto& piece : dq) piece.init(1, 4);
        hopper::mbarrier_init_done();
    }
};

// --------------------------------------------------------------------------------------------------------- 2. Work

// FlashArguments and FlashGradients as the kernel wants them; names as there.
struct Problem {
    CUtensorMap query, key, value, grad_out;
    const float *lse, *delta;  // [batch, heads, rows], see launch_row_numbers
    float* grad_query_sum;
    void *grad_key, *grad_value;
    int* counter;  // items drawn beyond the first ones
    int* turns;    // [batch, heads, rows / 64, D / 64] or nullptr, see add_up
    float factor, scale;  // factor: scale * log2(e)
    int S_q, S_k, rows, head_dim, kv_heads, group;  // group: query heads per key head
    bool causal;
    int diagonal;
    int batch_kv, k_blocks, section;
};

// B_c keys of a K/V head, and the tiles of rows that see one of them, in each of the query heads that use it. Keys that
// no row sees get the last tile, where they are hidden: their gradients are 0. No tiles: there is no more work.
struct Item {
    int batch_kv, k_start, first, tiles;
};

// Items are drawn in this order: sections of a few heads, so small that what their blocks read and add to at a time
// stays in the L2 cache; in a section the first keys of all heads, then the second, ... Under a causal mask the first
// keys have most tiles, so that short items fill up what is uneven in the end. Without a mask a section is one head.
template <class S>
__device__ __forceinline__ Item item_of(const Problem& a, int number) {
    if (number >= a.batch_kv * a.k_blocks) return {};
    const int first = number / (a.section * a.k_blocks) * a.section;
    const int heads = min(a.section, a.batch_kv - first), rest = number - first * a.k_blocks;
    const int k_start = rest / heads * S::B_c, end = ceil_div(a.S_q, S::B_r);
    const int tile = min(a.causal ? max(k_start - a.diagonal, 0) / S::B_r : 0, end - 1);
    return {first + rest % heads, k_start, tile, end - tile};
}

// The tiles of an item: those of the first of its query heads, then the second's, ...
struct Walk {
    int head = 0, tile, left;

    __device__ __forceinline__ Walk(const Item& item, int group) : tile(item.first), left(item.tiles * group) {}
    __device__ __forceinline__ bool advance(const Item& item) {
        if (++tile == item.first + item.tiles) tile = item.first, ++head;
        return --left > 0;
    }
    // Where the tile's head stands in [batch, heads].
    __device__ __forceinline__ int head_number(const Item& item, int group) const {
        return item.batch_kv * group + head;
    }
};

// What comes with the tiles: an item with K, numbers of rows with Q and dO.
template <class S>
struct Beside {
    Item items[S::K_SLOTS];
    alignas(16) float lse[S::Q_SLOTS][S::B_r], delta[S::DO_SLOTS][S::B_r];
};
