// flash_backward_wgmma.cu - the gradients of attention, float16 and bfloat16, for Hopper GPUs (sm_90a).
//
//   1. Shapes       Shape, Barriers             what a block has in shared memory
//   2. Work         Problem, Item, Walk         which keys a block has, which rows see them, and in which order
//   3. Producer     produce                     draws items and asks for tiles
//   4. Adders       add_up                      have dQ added up in global memory
//   5. Consumers    consume                     compute
//   6. Kernel       flash_backward_wgmma_kernel
//   7. Launcher     hopper_backward_takes, hopper_backward
//
//   flash_backward.cuh    launch_row_numbers: delta and lse, a kernel that runs before
//   flash_query_sum.cuh   launch_convert_sum: dQ in 16 bits, a kernel that runs after
//   common/cuda/          hopper_tiles.cuh: tiles, products, slots, roles; hopper_rows.cuh: gradients -> global memory;
//                         below them wgmma.cuh, tma.cuh, mbarrier.cuh
//
// The algorithm is that of flash_backward_mma.cu, which takes what this kernel does not; who does what comes from
// FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608). A block has 128 keys, each of two groups of four warps 64 of
// them, with their rows of dK and dV in registers to the end. They walk over the rows that see the keys:
//
//   S^T = K Q^T             P^T = 2^(factor S^T - lse)              dV += P^T dO
//   dP^T = V dO^T           dS^T = P^T * (dP^T - delta)             dK += dS^T Q               dQ += dS K
//
//   1. Everything is transposed, so that P^T and dS^T are left in registers just where the products with dO and Q want
//      their first operand. Only dS^T is needed a second time: dQ = dS K goes over the keys of both groups, so that
//      both write their part to shared memory, and each computes a half of dQ: 64 x 64 numbers, a piece.
//   2. A step is 64 rows. With D = 128 it is a tile; with D = 64 a tile is two steps, and dQ is computed after the
//      second, the rows of a step by one group, so that a piece is 64 x 64 there, too.
//   3. The next step's S^T is started before this one's dS^T is computed, and its powers are computed while dK is being
//      worked on: the tensor cores have something to do at all times, also across the end of an item.
//   4. dQ is added up in global memory, in float32, since every block of keys has a part of it. A group leaves its
//      piece in shared memory; a thread of a warp that does nothing else has the copy engine add it.
//   5. Slots as in the forward kernel. An item travels with its K: the producer draws it from a counter, and
//      everybody reads it where it stands beside the slot.
//
//   time ->       tensor cores  S1 dV0 | dK0 |  dQ0  dP1 | S2 dV1 | dK1 |  dQ1  dP2 |     of one group; the other one
//                 warps          dS0   |  powers 1  | dQ0 -> |  dS1  |  powers 2 | ...    fills the gaps
//
// Why sm_90a, and what becomes of other targets and the simulator: flash_attention_wgmma.cu. What was measured, and
// what was tried: README.md.
#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
#include "common/kernels/flash/flash.h"

bool hopper_backward_takes(const FlashGradients&, bool) { return false; }  // not built for it
bool hopper_backward(const FlashGradients&, bool) { return false; }
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "common/cuda/check.h"
#include "common/cuda/exp2.cuh"
#include "common/cuda/flash_launch.h"
#include "common/cuda/hopper_rows.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/mma.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_backward.cuh"
#include "common/kernels/flash/flash_host.h"
#include "common/kernels/flash/flash_query_sum.cuh"

// ------------------------------------------------------------------------------------------------- 1. Shapes
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
        mbarrier_init_done();
    }
};

// --------------------------------------------------------------------------------------------------- 2. Work

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

// ----------------------------------------------------------------------------------------------- 3. Producer

// One thread asks for everything, in the order in which it is used, as far ahead as there are slots.
template <class S>
__device__ __forceinline__ void produce(const Problem& a, Barriers<S>& barriers, Beside<S>& beside,
                                        unsigned char* shared) {
    using namespace hopper;
    using Q = typename S::Q;
    using K = typename S::K;
    Ring<S::K_SLOTS> k;
    Ring<1> v;
    Ring<S::Q_SLOTS> q;
    Ring<S::DO_SLOTS> grad_out;
    for (int number = blockIdx.x;; number = gridDim.x + atomicAdd(a.counter, 1)) {
        const Item item = item_of<S>(a, number);
        wait_until_empty(barriers.k, k);
        beside.items[k.slot()] = item;
        if (item.tiles == 0) {
            mbarrier_arrive(barriers.k.full[k.slot()]);
            return;
        }
        const int batch = item.batch_kv / a.kv_heads, kv_head = item.batch_kv % a.kv_heads;
        Walk walk(item, a.group);
        const auto fill_rows = [&](auto& slots, auto& ring, int at, const CUtensorMap& map, auto& numbers,
                                   const float* from) {
            const int row = walk.tile * S::B_r;
            wait_until_empty(slots, ring);
            fill<Q>(slots, ring, shared + at, map, row, kv_head * a.group + walk.head, batch, numbers,
                    from + walk.head_number(item, a.group) * a.rows + row);
            ring.advance();
        };
        const auto fill_q = [&] { fill_rows(barriers.q, q, S::Q_AT, a.query, beside.lse, a.lse); };
        const auto fill_do = [&] {
            fill_rows(barriers.grad_out, grad_out, S::DO_AT, a.grad_out, beside.delta, a.delta);
        };
        fill<K>(barriers.k, k, shared, a.key, item.k_start, kv_head, batch);
        fill_q();
        wait_until_empty(barriers.v, v);
        fill<K>(barriers.v, v, shared + S::V_AT, a.value, item.k_start, kv_head, batch);
        fill_do();
        k.advance(), v.advance();
#pragma unroll 1
        while (walk.advance(item)) fill_q(), fill_do();
    }
}

// ------------------------------------------------------------------------------------------------- 4. Adders
//
// One thread for each group. With `turns` the additions to a piece take place in the order of the keys, so that dQ has
// the same bits every time: a turn is the first key of the item whose it is. Nobody waits for ever, since items that
// come before have been drawn before, and a block does its items in the order in which it has drawn them.

__device__ __forceinline__ void wait_for_turn(const int* turn, int mine) {
    int now;
    do asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
    while (now != mine);
    asm volatile("fence.proxy.async.global;" ::: "memory");
}
__device__ __forceinline__ void give_turn(int* turn, int next) {
    asm volatile("fence.proxy.async.global;\nst.release.gpu.global.b32 [%0], %1;" ::"l"(turn), "r"(next) : "memory");
}

template <class S>
__device__ __forceinline__ void add_up(const Problem& a, Barriers<S>& barriers, const Beside<S>& beside,
                                       const unsigned char* shared, int group) {
    using namespace hopper;
    const unsigned char* piece = shared + S::DQ_AT + group * S::PIECE_BYTES;
    Ring<S::K_SLOTS> k;
    Ring<1> dq;
    for (;; k.advance()) {
        wait_for(barriers.k, k);
        const Item item = beside.items[k.slot()];
        mbarrier_arrive(barriers.k.empty[k.slot()]);
        if (item.tiles == 0) break;
        Walk walk(item, a.group);
#pragma unroll 1
        do {
            const int tile = walk.head_number(item, a.group) * (a.rows / S::B_r) + walk.tile;
            const int number = tile * S::GROUPS + group;
            wait_for(barriers.dq[group], dq);
            if (a.turns != nullptr) wait_for_turn(a.turns + number, item.k_start);
            bulk_add(a.grad_query_sum + int64_t{number} * QuerySum<S::D>::PIECE, piece, S::PIECE_BYTES);
            if (a.turns != nullptr) {
                bulk_done();
                give_turn(a.turns + number, item.k_start + S::B_c);
            }
            bulk_read_done();
            mbarrier_arrive(barriers.dq[group].empty[0]);
            dq.advance();
        } while (walk.advance(item));
    }
    bulk_done();
}

// ---------------------------------------------------------------------------------------------- 5. Consumers

template <class S>
__device__ __forceinline__ void consume(const Problem& a, Barriers<S>& barriers, const Beside<S>& beside,
                                        unsigned char* shared, int group) {
    using namespace hopper;
    using T = typename S::T;
    using Q = typename S::Q;
    using K = typename S::K;
    using dS = typename S::dS;
    constexpr int D = S::D, STEP = S::STEP, STEPS = S::STEPS;
    constexpr bool KV_IN_REGISTERS = S::KV_IN_REGISTERS;
    const int lane = threadIdx.x % 32, group_key = GROUP_ROWS * group, column = mma_d_col(lane, 0);
    const int warp_key = group_key + threadIdx.x / 32 % 4 * 16;
    const KMajor k_at = k_major<K>(shared, group_key), v_at = k_major<K>(shared + S::V_AT, group_key);
    const KMajor q_at = k_major<Q>(shared + S::Q_AT), do_at = k_major<Q>(shared + S::DO_AT);
    const MnMajor q_rows_at = mn_major<Q>(shared + S::Q_AT), do_rows_at = mn_major<Q>(shared + S::DO_AT);
    // The group's piece of dQ: its columns, or, with two steps to a tile, the rows of one step.
    const MnMajor ds_at = mn_major<dS>(shared + S::DS_AT);
    const MnMajor k_columns_at = mn_major<K>(shared + (STEPS == 1 ? group * K::BOX_BYTES : 0));
    float4* piece = reinterpret_cast<float4*>(shared + S::DQ_AT + group * S::PIECE_BYTES) + threadIdx.x % GROUP_THREADS;

    // next_...: of the step whose scores are started ahead
    Ring<S::K_SLOTS> k, next_k;
    Ring<S::Q_SLOTS> q, next_q;
    Ring<S::DO_SLOTS> grad_out, next_do;
    Ring<S::DS_SLOTS> ds_ring, my_ds;  // my_ds: of the step that dQ is computed from
    Ring<1> v, dq_ring;
    unsigned k_rows[KV_IN_REGISTERS ? D / 16 : 1][4], v_rows[KV_IN_REGISTERS ? D / 16 : 1][4];  // [64][D]
    float dk[D / 8][4], dv[D / 8][4];                                                          // [64][D]
    float s[STEP / 8][4], dp[STEP / 8][4];        // S^T, then its powers; dP^T [64][STEP]
    unsigned p[STEP / 16][4], ds[STEP / 16][4];   // P^T, dS^T [64][STEP]
    float(&dq)[8][4] = s;                         // [64][64]; the powers have been rounded by then

    wait_for(barriers.k, next_k);
    Item next = beside.items[0];
    Walk ahead(next, a.group);
    bool more = true, piece_written = false;

    // A slot with numbers that the lanes have read themselves: all of them are done.
    const auto release = [](auto& slots, int slot) {
        __syncwarp();
        give_back(slots, slot);
    };
    const auto load_k = [&] {
        if constexpr (KV_IN_REGISTERS) load_rows<K>(k_rows, shared + next_k.slot() * K::BYTES, warp_key);
    };
    const auto wait_for_v = [&] {
        wait_for(barriers.v, v);
        v.advance();
        if constexpr (KV_IN_REGISTERS) {
            load_rows<K>(v_rows, shared + S::V_AT, warp_key);
            release(barriers.v, 0);
        }
    };
    const auto start_scores = [&](int slot, int step) {
        const KMajor rows = q_at.plus(slot * Q::BYTES + step * STEP * Q::ROW_BYTES);
        if constexpr (KV_IN_REGISTERS)
            start_rows_by_rows<T, Q>(s, k_rows, rows);
        else
            start_rows_by_rows<T, K, Q>(s, k_at.plus(next_k.slot() * K::BYTES), rows);
        wgmma_commit();
    };
    const auto start_dp = [&](int slot, int step) {
        const KMajor rows = do_at.plus(slot * Q::BYTES + step * STEP * Q::ROW_BYTES);
        if constexpr (KV_IN_REGISTERS)
            start_rows_by_rows<T, Q>(dp, v_rows, rows);
        else
            start_rows_by_rows<T, K, Q>(dp, v_at, rows);
        wgmma_commit();
    };
    // Scores of a step of the tile `ahead` -> powers, where they are
    const auto weigh = [&](int slot, int step) {
        const int row = ahead.tile * S::B_r + step * STEP, end = next.k_start + group_key + GROUP_ROWS;
        if (end > a.S_k || (a.causal && end - 1 > row + a.diagonal)) {
            int begin[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int key = next.k_start + warp_key + mma_d_row(lane, 2 * i);
                begin[i] = key >= a.S_k ? STEP : a.causal ? key - a.diagonal - row : 0;
            }
            hide_before(s, begin);
        }
#pragma unroll
        for (int n = 0; n < STEP / 8; ++n) {
            const float2 lse = *reinterpret_cast<const float2*>(&beside.lse[slot][step * STEP + 8 * n + column]);
#pragma unroll
            for (int e = 0; e < 4; ++e) s[n][e] = exp2_approx(s[n][e] * a.factor - (e % 2 ? lse.y : lse.x));
        }
    };
    // True if a power has a sign. None has, see do_step.
    const auto round_powers = [&] {
        unsigned all = 0;
#pragma unroll
        for (int i = 0; i < STEP / 16; ++i) {
            accumulators_as_a<T>(p[i], s[2 * i], s[2 * i + 1]);
            all |= p[i][0] | p[i][1] | p[i][2] | p[i][3];
        }
        return (all & 0x80008000u) != 0;
    };
    // dS = P * (dP - delta), rounded, and to shared memory
    const auto grade = [&](int slot, int step) {
#pragma unroll
        for (int i = 0; i < STEP / 16; ++i) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {  // as in accumulators_as_a
                const int n = 2 * i + r / 2, e = r % 2 * 2;
                const float2 w = unpack<T>(p[i][r]);
                const float2 d = *reinterpret_cast<const float2*>(&beside.delta[slot][step * STEP + 8 * n + column]);
                ds[i][r] = pack<T>(w.x * (dp[n][e] - d.x), w.y * (dp[n][e + 1] - d.y));
            }
            store_rows<dS>(shared + S::DS_AT + ds_ring.slot() * dS::BYTES, warp_key, i, ds[i]);
        }
    };

    // A step whose powers are there, whose dP is under way. first, last: tile of its item
    const auto do_step = [&](auto number, bool first, bool last) {
        constexpr int step = decltype(number)::value, next_step = (step + 1) % STEPS;
        constexpr bool ENDS_TILE = next_step == 0;
        const int rows_at = step * STEP * Q::ROW_BYTES, next_slot = ENDS_TILE ? next_q.slot() : q.slot();
        wgmma_wait<0>();
        keep_order(dp);
        if constexpr (ENDS_TILE) {
            if (last) {
                if constexpr (!KV_IN_REGISTERS) give_back(barriers.v, 0);
                next_k.advance();
                wait_for(barriers.k, next_k);
                next = beside.items[next_k.slot()];
                ahead = Walk(next, a.group);
                more = next.tiles > 0;
                if (more) load_k();
            } else {
                ahead.advance(next);
            }
            if (more) wait_for(barriers.q, next_q);
        }
        // The compiler follows what is under way through straight code only: after the last item this is started all
        // the same, with what is left in the slots, and nobody looks at it.
        start_scores(next_slot, next_step);
        start_weights_by_rows<T, Q>(dv, p, do_rows_at.plus(grad_out.slot() * Q::BYTES + rows_at), !first);
        wgmma_commit();
        // Only now, since the fence in it waits until the piece has been written, and that takes its time.
        if (step == 0 && piece_written) hand_over(barriers.dq[group], 0);
        if constexpr (step == 0) wait_until_empty(barriers.ds, ds_ring);
        grade(grad_out.slot(), step);
        hand_over(barriers.ds, ds_ring.slot());
        if (STEPS == 1 || step == group) my_ds = ds_ring;
        ds_ring.advance();
        start_weights_by_rows<T, Q>(dk, ds, q_rows_at.plus(q.slot() * Q::BYTES + rows_at), !first);
        wgmma_commit();

        wgmma_wait<2>();
        keep_order(s);
        weigh(next_slot, next_step);
        wgmma_wait<1>();
        if constexpr (ENDS_TILE) release(barriers.grad_out, grad_out.slot());
        // The compiler would put most powers off until dP is done, since it may move arithmetic across wgmma_wait, but
        // not across a wait that they decide about.
        const bool never = round_powers();
        if constexpr (!ENDS_TILE) {
            start_dp(grad_out.slot(), next_step);
            mbarrier_wait(barriers.ds.empty[ds_ring.slot()], ds_ring.parity() ^ 1 ^ never);
        } else {
            mbarrier_wait(barriers.ds.full[my_ds.slot()], my_ds.parity() ^ never);
            start_columns_by_rows<T, S::B_c>(dq, ds_at.plus(my_ds.slot() * dS::BYTES),
                                             k_columns_at.plus(k.slot() * K::BYTES));
            wgmma_commit();
            wgmma_wait<1>();
            release(barriers.q, q.slot());
            if (more && last) wait_for_v();
            if (more) wait_for(barriers.grad_out, next_do);
            start_dp(next_do.slot(), 0);
            wgmma_wait<1>();
            keep_order(dq);
            give_back(barriers.ds, my_ds.slot());
            if (last) release(barriers.k, k.slot());
            wait_until_empty(barriers.dq[group], dq_ring);
#pragma unroll
            for (int n = 0; n < 8; ++n)
                piece[n * GROUP_THREADS] = make_float4(dq[n][0], dq[n][1], dq[n][2], dq[n][3]);
            piece_written = true;
            dq_ring.advance(), q.advance(), next_q.advance(), grad_out.advance(), next_do.advance();
        }
    };

    load_k();
    wait_for(barriers.q, next_q);
    start_scores(0, 0);
    wait_for_v();
    wait_for(barriers.grad_out, next_do);
    wgmma_wait<0>();
    keep_order(s);
    weigh(0, 0);
    round_powers();
    start_dp(0, 0);
    next_q.advance(), next_do.advance();
    while (more) {
        const int first_key = next.k_start + warp_key, tiles = ahead.left;
        const int64_t at = (int64_t{next.batch_kv} * a.S_k + first_key) * a.head_dim;
#pragma unroll 1
        for (int t = 0; t < tiles; ++t) {
            do_step(std::integral_constant<int, 0>(), t == 0, t == tiles - 1);
            if constexpr (STEPS == 2) do_step(std::integral_constant<int, 1>(), false, t == tiles - 1);
        }
        k.advance();
        keep_order(dk);
        keep_order(dv);
        write_rows<T>(static_cast<T*>(a.grad_value) + at, dv, {1, 1}, a.S_k - first_key, a.head_dim);
        write_rows<T>(static_cast<T*>(a.grad_key) + at, dk, {a.scale, a.scale}, a.S_k - first_key, a.head_dim);
    }
    hand_over(barriers.dq[group], 0);
    wgmma_wait<0>();
    keep_order(dp);
}

// ------------------------------------------------------------------------------------------------- 6. Kernel

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1) flash_backward_wgmma_kernel(const __grid_constant__ Problem a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char bytes[];
    __shared__ Barriers<S> barriers;
    __shared__ Beside<S> beside;
    unsigned char* shared = hopper::aligned(bytes);
    if (threadIdx.x == 0) barriers.init();
    __syncthreads();
    const int group = hopper::role_of_warpgroup(), warp = threadIdx.x / 32;
    if (group == hopper::PRODUCER) {
        fewer_registers<S::Registers::OF_PRODUCER>();
        if (threadIdx.x % 32 != 0) return;
        if (warp < S::GROUPS)
            add_up<S>(a, barriers, beside, shared, warp);
        else if (warp == S::GROUPS)
            produce<S>(a, barriers, beside, shared);
    } else {
        more_registers<S::Registers::OF_CONSUMER>();
        consume<S>(a, barriers, beside, shared, group);
    }
#endif
}

// ----------------------------------------------------------------------------------------------- 7. Launcher

// How many heads' rows of Q, dO and the sum of dQ the L2 cache holds: 8 bytes for every element.
template <class S>
static int section_of(const FlashArguments& a) {
    constexpr int64_t BYTES = int64_t{32} << 20;
    const int64_t head = a.heads / a.kv_heads * a.S_q * S::D * 8;
    return a.causal ? static_cast<int>(std::max(BYTES / head, int64_t{1})) : 1;
}

// False, with nothing done, if the kernel does not take the problem or is not built for this GPU.
template <class S>
static bool launch(const FlashGradients& g, bool dry) {
    using T = typename S::T;
    const FlashArguments& a = g.forward;
    Problem p = {};
    const RowShape rows = {a.batch, a.heads, a.S_q, a.head_dim}, keys = {a.batch, a.kv_heads, a.S_k, a.head_dim};
    if (!hopper::is_built(flash_backward_wgmma_kernel<S>) ||
        !make_tensor_map<T>(p.query, a.query, rows, a.query_strides, S::B_r) ||
        !make_tensor_map<T>(p.grad_out, g.grad_out, rows, g.grad_out_strides, S::B_r) ||
        !make_tensor_map<T>(p.key, a.key, keys, a.key_strides, S::B_c) ||
        !make_tensor_map<T>(p.value, a.value, keys, a.value_strides, S::B_c))
        return false;
    if (dry) return true;
    const RowNumbers numbers = row_numbers(g);
    p.lse = numbers.lse, p.delta = numbers.delta, p.rows = static_cast<int>(numbers.rows);
    p.grad_query_sum = g.grad_query_sum;
    p.grad_key = g.grad_key, p.grad_value = g.grad_value;
    p.counter = g.turns, p.turns = g.deterministic ? g.turns + 1 : nullptr;
    p.factor = a.scale * LOG2_E, p.scale = a.scale;
    p.S_q = static_cast<int>(a.S_q), p.S_k = static_cast<int>(a.S_k), p.head_dim = a.head_dim;
    p.kv_heads = static_cast<int>(a.kv_heads), p.group = static_cast<int>(a.heads / a.kv_heads);
    p.causal = a.causal, p.diagonal = static_cast<int>(a.diagonal);
    p.batch_kv = static_cast<int>(a.batch * a.kv_heads);
    p.k_blocks = static_cast<int>(ceil_div(a.S_k, int64_t{S::B_c}));
    p.section = section_of<S>(a);

    const Zeros zeros = {reinterpret_cast<float4*>(g.grad_query_sum), query_sum_elements(a, true) / 4, g.turns,
                         turn_elements(a, g.deterministic)};
    launch_row_numbers<T>(g, numbers, zeros, true);
    const auto kernel = flash_backward_wgmma_kernel<S>;
    const int blocks = std::min(p.batch_kv * p.k_blocks, device_attribute(cudaDevAttrMultiProcessorCount));
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
    kernel<<<blocks, S::THREADS, S::BYTES, a.stream>>>(p);
    CUDA_CHECK_LAUNCH();
    launch_convert_sum<T, S::D, SumOrder::PIECES>(g, true);
    return true;
}

template <typename T>
static bool backward(const FlashGradients& g, bool dry) {
    constexpr int64_t MANY = int64_t{1} << 28;
    const FlashArguments& a = g.forward;
    if (a.mask.kind != MaskKind::NONE || a.key_step != 1 || !(a.scale > 0) || !in_pieces<T>(g)) return false;
    if (std::max({a.S_k, std::abs(a.diagonal), a.batch * a.heads * sum_rows(a),
                  a.batch * a.kv_heads * ceil_div(a.S_k, int64_t{128})}) > MANY)
        return false;
    if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
    return a.head_dim <= 64 ? launch<D64<T>>(g, dry) : launch<D128<T>>(g, dry);
}

bool hopper_backward_takes(const FlashGradients& g, bool bfloat16) {
    return bfloat16 ? backward<__nv_bfloat16>(g, true) : backward<__half>(g, true);
}

bool hopper_backward(const FlashGradients& g, bool bfloat16) {
    return bfloat16 ? backward<__nv_bfloat16>(g, false) : backward<__half>(g, false);
}
#endif
