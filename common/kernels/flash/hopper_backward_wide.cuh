// hopper_backward_wide.cuh - the gradients of attention, float16 and bfloat16, head_dim 129 ... 256, for Hopper GPUs
// (sm_90a): the kernel.
//
//   1. Shapes       WideShape, Barriers             what a CTA has in shared memory
//   2. Exchange     send_ds, QueryPiece             dS to the other CTA; a piece of dQ from the dS of both
//   3. Consumers    consume_values, consume_keys    one group each
//   4. Kernel       flash_backward_wide_kernel
//
// With more than 128 columns the rows of dK and dV of 64 keys fill the registers of two groups of four warps. So a CTA
// has 64 keys, and of its two groups one has dV and what it needs, the other dK. Two CTAs are a cluster: they have 128
// neighboring keys, walk over the same rows, and each computes half of the columns of dQ from the dS of both:
//
//   values   S^T = K Q^T      P^T = 2^(factor S^T - lse)     -> shared memory           dV += P^T dO
//   keys     dP^T = V dO^T    dS^T = P^T * (dP^T - delta)    -> in its place, both CTAs'     dK += dS^T Q
//   both     dQ = dS K over 128 keys, D / 4 columns a group (D = 192: 64 and 32)
//
//   1. P^T and dS^T are left in registers where the products with dO and Q want their first operand. A warp of `keys` reads
//      the P^T of 16 keys, has the same numbers in the same lanes as the warp of `values` had, and leaves dS^T there.
//   2. The next tile's S^T is started before dQ is complete, and its powers are computed meanwhile.
//   3. A sum in the L2 cache is the narrow place: without the cluster every 64 keys would add all of dQ to it. When dV of a
//      tile is done, nothing reads its dO any longer, and `values` leaves its piece of dQ there; `keys` leaves its own
//      where Q was. A slot goes back to the producer when TMA has added the piece.
//
//   time ->   values   dV1 | dQ1 S2 dQ1' | powers 2 | dV2 | dQ2 S3 dQ2' | ...     of one tile after another (' of the other
//             keys     dS1 | dK1 dQ1 dQ1' | dP2 | dS2 | dK2 dQ2 dQ2' | dP3 | ...  CTA's keys); each fills the other's gaps
//
// Producer, adders, the work of a CTA and the policies are those of hopper_backward.cuh. What was measured: README.md.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "common/cuda/exp2.cuh"
#include "common/cuda/hopper_cluster.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/attention_policies.cuh"
#include "common/kernels/flash/hopper_backward_copies.cuh"
#include "common/kernels/flash/hopper_backward_work.cuh"

// ------------------------------------------------------------------------------------------------------- 1. Shapes

template <typename T_, int D_, int DS_SLOTS_>
struct WideShape {
    using T = T_;
    static constexpr bool WIDE = true;
    static constexpr int D = D_, GROUPS = 2, CTAS = 2, STEP = 64, B_r = STEP, B_c = CTAS * hopper::GROUP_ROWS;
    static constexpr int K_SLOTS = 1, Q_SLOTS = 2, DO_SLOTS = 2, DS_SLOTS = DS_SLOTS_, DQ_SLOTS = 2;
    static constexpr int THREADS = hopper::GROUP_THREADS * (1 + GROUPS), GROUP_WARPS = 4;
    using Registers = hopper::RegisterShares<GROUPS>;
    using Q = hopper::Tile<B_r, D>;                      // or dO
    using K = hopper::Tile<hopper::GROUP_ROWS, D>;       // or V: of the CTA's keys
    using dS = hopper::Tile<hopper::GROUP_ROWS, STEP>;  // P^T, then dS^T
    // Of the other CTA's K, the two boxes with the columns of dQ that this one computes.
    static constexpr int OTHER_BOXES = 2, OTHER_BYTES = OTHER_BOXES * K::BOX_BYTES;
    // Shared memory, in bytes: K, K of the other CTA, V, Q [Q_SLOTS], dO [DO_SLOTS], dS [DS_SLOTS], dS of the other CTA
    static constexpr int OTHER_K_AT = K::BYTES, V_AT = OTHER_K_AT + OTHER_BYTES, Q_AT = V_AT + K::BYTES;
    static constexpr int DO_AT = Q_AT + Q_SLOTS * Q::BYTES, DS_AT = DO_AT + DO_SLOTS * Q::BYTES;
    static constexpr int OTHER_DS_AT = DS_AT + DS_SLOTS * dS::BYTES;
    static constexpr int BYTES = OTHER_DS_AT + DS_SLOTS * dS::BYTES + hopper::ALIGNMENT;
    static_assert(BYTES <= hopper::MAX_SHARED);

    static __device__ __forceinline__ int rank() { return blockIdx.x % CTAS; }
    static __device__ __forceinline__ int first_key() { return rank() * hopper::GROUP_ROWS; }

    // A group's piece of dQ: 64 columns of `values`, those left of `keys`, all within one box.
    static constexpr int PIECES = CTAS * GROUPS;
    static __host__ __device__ constexpr int columns_of(int group) { return group == 0 ? 64 : D / 2 - 64; }
    static __device__ __forceinline__ int first_column(int group) {
        return group == 0 ? rank() * (D - 64) : rank() == 0 ? 64 : D / 2;
    }
    static __device__ __forceinline__ int piece_of(int group) { return rank() * GROUPS + group; }
    static __device__ __forceinline__ int piece_begin(int group) { return first_column(group) * B_r; }
    static __device__ __forceinline__ int piece_at(int group, int slot) {
        return (group == 0 ? DO_AT : Q_AT) + slot * Q::BYTES;
    }
    static __device__ __forceinline__ int piece_bytes(int group) {
        return columns_of(group) * B_r * static_cast<int>(sizeof(float));
    }
    static __device__ __forceinline__ int first_other_box() { return rank() * (K::BOXES - OTHER_BOXES); }

    template <class Slots, class Ring>
    static __device__ __forceinline__ void fill_keys(Slots& slots, const Ring& ring, unsigned char* shared,
                                                     const CUtensorMap& key, int row, int head, int batch) {
        using namespace hopper;
        Mbarrier& full = slots.full[ring.slot()];
        mbarrier_expect(full, K::BYTES + OTHER_BYTES);
        for (int i = 0; i < K::BOXES; ++i)
            tma_load(shared + i * K::BOX_BYTES, key, full, i * TMA_COLS, row + first_key(), head, batch);
        const int other_row = row + GROUP_ROWS - first_key();
        for (int i = 0; i < OTHER_BOXES; ++i)
            tma_load(shared + OTHER_K_AT + i * K::BOX_BYTES, key, full, (first_other_box() + i) * TMA_COLS, other_row,
                     head, batch);
    }

    // The first CTA draws an item from a counter and tells the other one. The second of two slots is enough: when the
    // first CTA draws one more, both have computed the item before.
    struct Numbers {
        int* counter;
        hopper::Ring<2> ring = {};

        template <class Barriers>
        __device__ __forceinline__ int next(Barriers& barriers) {
            const int slot = ring.slot();
            hopper::Mbarrier& full = barriers.number.full[slot];
            int number;
            if (rank() == 0) {
                number = atomicAdd(counter, 1);
                hopper::cluster_send(&barriers.numbers[slot], number, full, 1);
            } else {
                hopper::mbarrier_expect(full, sizeof(int));
                hopper::mbarrier_wait(full, ring.parity());
                number = barriers.numbers[slot];
            }
            ring.advance();
            return number;
        }
    };
};

template <typename T>
using D192 = WideShape<T, 192, 2>;
template <typename T>
using D256 = WideShape<T, 256, 1>;

template <class S>
    requires(S::WIDE)
struct Barriers<S> {
    hopper::Slots<S::K_SLOTS> k;
    hopper::Slots<1> v;
    hopper::Slots<S::Q_SLOTS> q;
    hopper::Slots<S::DO_SLOTS> grad_out;
    // Of the same slots: P^T is there; dS^T is, or both CTAs have computed dQ; dS^T of the other CTA is there
    hopper::Slots<S::DS_SLOTS> weights, ds, other_ds;
    hopper::Slots<S::DQ_SLOTS> dq[S::GROUPS];  // full alone: Q and dO are empty when dQ has been read
    hopper::Slots<2> number;
    int numbers[2];

    __device__ void init() {
        constexpr int ONE = S::GROUP_WARPS, BOTH = S::GROUPS * ONE;
        k.init(BOTH + S::GROUPS + 1);  // the adders and the sender read the item, too
        v.init(ONE), q.init(1), grad_out.init(1), number.init(1);
        weights.init(ONE, ONE), ds.init(S::CTAS * BOTH, ONE), other_ds.init(1);
        for (auto& piece : dq) piece.init(1, ONE);
        hopper::mbarrier_init_done();
    }
    // What an adder says when it has read a group's piece.
    __device__ __forceinline__ hopper::Mbarrier& read(int group, int slot) {
        return group == 0 ? grad_out.empty[slot] : q.empty[slot];
    }
};

// ----------------------------------------------------------------------------------------------------- 2. Exchange

// One thread: every tile's dS^T to the other CTA, which is done with the last one in that slot, as this one is.
template <class S>
__device__ __forceinline__ void send_ds(const typename S::Problem& a, Barriers<S>& barriers, const Beside<S>& beside,
                                        const unsigned char* shared) {
    using namespace hopper;
    Ring<S::K_SLOTS> k;
    Ring<S::DS_SLOTS> ds;
    for (;; k.advance()) {
        wait_for(barriers.k, k);
        const int tiles = beside.items[k.slot()].tiles * a.group;
        mbarrier_arrive(barriers.k.empty[k.slot()]);
        if (tiles == 0) return;
        NO_UNROLL
        for (int t = 0; t < tiles; ++t, ds.advance()) {
            const int at = ds.slot() * S::dS::BYTES;
            wait_for(barriers.ds, ds);
            mbarrier_expect(barriers.other_ds.full[ds.slot()], S::dS::BYTES);
            cluster_send(shared + S::OTHER_DS_AT + at, shared + S::DS_AT + at, S::dS::BYTES,
                         barriers.other_ds.full[ds.slot()], 1 - S::rank());
        }
    }
}

// Shared memory as operands; all boxes have 64 rows. What is computed from it is computed anew each time, since the compiler
// would keep more addresses than there are registers.
template <class S>
struct Operands {
    hopper::KMajor k_major;
    hopper::MnMajor mn_major;

    __device__ __forceinline__ explicit Operands(const unsigned char* shared)
        : k_major(hopper::k_major<typename S::K>(shared)), mn_major(hopper::mn_major<typename S::K>(shared)) {
        static_assert(S::K::BOX_BYTES == S::Q::BOX_BYTES && S::K::BOX_BYTES == S::dS::BOX_BYTES);
    }
    __device__ __forceinline__ hopper::KMajor columns(int at) {
        asm volatile("" : "+l"(k_major.bits));
        return k_major.plus(at);
    }
    __device__ __forceinline__ hopper::MnMajor rows(int at) {
        asm volatile("" : "+l"(mn_major.bits));
        return mn_major.plus(at);
    }
};

// A group's columns of dQ [STEP][columns_of(GROUP)]: dS K of this CTA's keys and of the other one's.
template <class S, int GROUP>
struct QueryPiece {
    static constexpr int N8 = S::columns_of(GROUP) / 8;
    unsigned char* shared;
    Operands<S>& operands;
    float dq[N8][4];

    __device__ __forceinline__ void start(int ds, int key, int column, bool add) {
        const int k_at = key + column / 64 * S::K::BOX_BYTES + column % 64 * 2;
        hopper::start_columns_by_rows<typename S::T, hopper::GROUP_ROWS>(dq, operands.rows(ds), operands.rows(k_at), add);
        hopper::wgmma_commit();
    }
    __device__ __forceinline__ void start_own(int slot) {
        start(S::DS_AT + slot * S::dS::BYTES, 0, S::first_column(GROUP), false);
    }
    __device__ __forceinline__ void start_other(int slot) {
        start(S::OTHER_DS_AT + slot * S::dS::BYTES, S::OTHER_K_AT, S::first_column(GROUP) - S::first_other_box() * 64,
              true);
    }
    // Both are done for this warp; where the piece goes, other warps of the group may still read.
    __device__ __forceinline__ void finish(Barriers<S>& barriers, int ds_slot, int slot) {
        using namespace hopper;
        keep_order(dq);
        if (threadIdx.x % 32 == 0) {
            mbarrier_arrive(barriers.ds.empty[ds_slot]);
            mbarrier_arrive(barriers.ds.empty[ds_slot], 1 - S::rank());
        }
        asm volatile("bar.sync %0, %1;" ::"n"(1 + GROUP), "n"(GROUP_THREADS) : "memory");
        float4* to = reinterpret_cast<float4*>(shared + S::piece_at(GROUP, slot)) + threadIdx.x % GROUP_THREADS;
        UNROLL
        for (int n = 0; n < N8; ++n)
            to[n * GROUP_THREADS] = make_float4(dq[n][0], dq[n][1], dq[n][2], dq[n][3]);
        hand_over(barriers.dq[GROUP], slot);
    }
};

// ---------------------------------------------------------------------------------------------------- 3. Consumers

// The group with dV.
template <class S>
__device__ __forceinline__ void consume_values(const typename S::Problem& a, Barriers<S>& barriers,
                                               const Beside<S>& beside, unsigned char* shared) {
    using namespace hopper;
    using T = typename S::T;
    using Q = typename S::Q;
    using K = typename S::K;
    using dS = typename S::dS;
    using Keys = typename S::Keys;
    constexpr int D = S::D, STEP = S::STEP;
    constexpr bool CAPPED = S::SCORES == Scores::CAPPED, DROPPED = S::SCORES == Scores::DROPPED;
    const int warp_row = threadIdx.x / 32 % 4 * 16, warp_key = S::first_key() + warp_row;
    const int column = mma::d_col(threadIdx.x % 32, 0);

    Ring<S::K_SLOTS> k;
    Ring<S::Q_SLOTS> q;              // of the next tile
    Ring<S::DO_SLOTS> grad_out;
    Ring<S::DS_SLOTS> weights, ds;   // weights: of the next tile
    float dv[D / 8][4];              // [64][D]
    float s[STEP / 8][4];            // S^T, then P^T [64 keys][STEP rows]
    Operands<S> operands(shared);
    QueryPiece<S, 0> piece{shared, operands};
    unsigned p[STEP / 16][4];                                              // P^T, rounded
    [[maybe_unused]] unsigned to_ds[S::SCORES == Scores::PLAIN ? 1 : STEP / 16][4];  // what dS = P^T ... wants of it
    [[maybe_unused]] int64_t seed = 0;
    if constexpr (DROPPED) seed = seed_of(a.dropout);

    const auto start_scores = [&] {
        wait_for(barriers.q, q);
        start_rows_by_rows<T, K, Q>(s, operands.columns(0), operands.columns(S::Q_AT + q.slot() * Q::BYTES));
        wgmma_commit();
    };
    // Scores of a tile -> P^T. For dS the softcap's slope is a factor, and what dropout drops has a sign.
    const auto weigh = [&](const typename S::Item& item, const Walk& walk) {
        const int row = walk.tile * S::B_r;
        if constexpr (CAPPED) cap_scores(s, a.inside);
        if (Keys::template hides<S>(a, item, item.k_start + S::first_key(), S::rank(), row))
            Keys::template hide<S>(s, a, item, warp_key, row);
        [[maybe_unused]] Kept<true> kept[2];
        UNROLL
        for (int i = 0; i < STEP / 16; ++i) {
            if constexpr (DROPPED)
                if (i % 2 == 0)
                    keep_two_tiles(kept, a.dropout, seed, item.dropout_heads + walk.head_number(item, a.group),
                                   row / 16 + i, (item.k_start + warp_key) / 16);
            [[maybe_unused]] float slope[2][4];
            UNROLL
            for (int n = 2 * i; n < 2 * i + 2; ++n) {
                const float2 lse = *reinterpret_cast<const float2*>(&beside.lse[q.slot()][8 * n + column]);
                UNROLL
                for (int e = 0; e < 4; ++e) {
                    if constexpr (CAPPED) slope[n % 2][e] = __saturatef(1 - s[n][e] * s[n][e]);  // 0 where hidden
                    s[n][e] = exp2_approx(s[n][e] * a.factor - (e % 2 ? lse.y : lse.x));
                }
            }
            mma::accumulators_as_a<T>(p[i], s[2 * i], s[2 * i + 1]);
            UNROLL
            for (int r = 0; r < 4; ++r) {  // as in accumulators_as_a
                const int n = r / 2, e = r % 2 * 2;
                if constexpr (CAPPED)
                    to_ds[i][r] = mma::pack<T>(s[2 * i + n][e] * slope[n][e], s[2 * i + n][e + 1] * slope[n][e + 1]);
                if constexpr (DROPPED) {
                    const unsigned mask = kept[i % 2].mask(n, r % 2);
                    to_ds[i][r] = p[i][r] | (~mask & 0x80008000u);
                    p[i][r] &= mask;
                }
            }
        }
        q.advance();
    };
    // P^T -> shared memory, when both CTAs are done with what was there.
    const auto hand_over_weights = [&] {
        wait_until_empty(barriers.ds, weights);
        UNROLL
        for (int i = 0; i < STEP / 16; ++i) {
            unsigned char* to = shared + S::DS_AT + weights.slot() * dS::BYTES;
            if constexpr (S::SCORES == Scores::PLAIN)
                store_rows<dS>(to, warp_row, i, p[i]);
            else
                store_rows<dS>(to, warp_row, i, to_ds[i]);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers.weights.full[weights.slot()]);
        weights.advance();
    };
    // A tile whose P^T is there.   walk: the tile's, then the next one's
    const auto do_tile = [&](const typename S::Item& item, Walk& walk, bool first, auto is_last) {
        constexpr bool LAST = decltype(is_last)::value;
        wait_for(barriers.grad_out, grad_out);
        start_weights_by_rows<T, Q>(dv, p, operands.rows(S::DO_AT + grad_out.slot() * Q::BYTES), !first);
        wgmma_commit();
        wait_for(barriers.ds, ds);
        piece.start_own(ds.slot());
        if constexpr (!LAST) start_scores();
        wait_for(barriers.other_ds, ds);
        piece.start_other(ds.slot());
        if constexpr (!LAST) {
            wgmma_wait<1>();
            keep_order(s);
            walk.advance(item);
            weigh(item, walk);
        }
        wgmma_wait<0>();
        piece.finish(barriers, ds.slot(), grad_out.slot());
        ds.advance(), grad_out.advance();
        if constexpr (!LAST) hand_over_weights();
    };

    for (;; k.advance()) {
        wait_for(barriers.k, k);
        const typename Keys::ItemHere here{beside.items[k.slot()]};
        if (here->tiles == 0) break;
        Walk walk(*here, a.group);
        start_scores();
        wgmma_wait<0>();
        keep_order(s);
        weigh(*here, walk);
        hand_over_weights();
        const int tiles = walk.left;
        NO_UNROLL
        for (int t = 0; t < tiles - 1; ++t) do_tile(*here, walk, t == 0, std::false_type());
        do_tile(*here, walk, tiles == 1, std::true_type());
        keep_order(dv);
        const typename S::Item item = *here;
        give_back(barriers.k, k.slot());
        float factor = 1;
        if constexpr (DROPPED) factor = a.dropout.factor;
        Keys::template store<S>(a, item, a.grad_value, item.k_start + warp_key, dv, factor);
    }
}

// The group with dK.
template <class S>
__device__ __forceinline__ void consume_keys(const typename S::Problem& a, Barriers<S>& barriers,
                                             const Beside<S>& beside, unsigned char* shared) {
    using namespace hopper;
    using T = typename S::T;
    using Q = typename S::Q;
    using K = typename S::K;
    using dS = typename S::dS;
    using Keys = typename S::Keys;
    constexpr int D = S::D, STEP = S::STEP;
    constexpr bool DROPPED = S::SCORES == Scores::DROPPED;
    const int warp_row = threadIdx.x / 32 % 4 * 16, column = mma::d_col(threadIdx.x % 32, 0);

    Ring<S::K_SLOTS> k;
    Ring<S::Q_SLOTS> q;
    Ring<S::DO_SLOTS> grad_out;
    Ring<S::DS_SLOTS> ds_ring;
    Ring<1> v;
    float dk[D / 8][4];         // [64][D]
    float dp[STEP / 8][4];      // dP^T [64 keys][STEP rows]
    Operands<S> operands(shared);
    QueryPiece<S, 1> piece{shared, operands};
    unsigned ds[STEP / 16][4];  // P^T, then dS^T

    const auto start_dp = [&] {
        wait_for(barriers.grad_out, grad_out);
        const KMajor rows = operands.columns(S::DO_AT + grad_out.slot() * Q::BYTES);
        start_rows_by_rows<T, K, Q>(dp, operands.columns(S::V_AT), rows);
        wgmma_commit();
    };
    // dS, rounded, in registers and in shared memory
    const auto grade = [&] {
        unsigned char* tile = shared + S::DS_AT + ds_ring.slot() * dS::BYTES;
        wait_for(barriers.weights, ds_ring);
        load_rows<dS>(ds, tile, warp_row);
        __syncwarp();
        UNROLL
        for (int i = 0; i < STEP / 16; ++i) {
            UNROLL
            for (int r = 0; r < 4; ++r) {  // as in accumulators_as_a
                const int n = 2 * i + r / 2, e = r % 2 * 2;
                const float2 d = *reinterpret_cast<const float2*>(&beside.delta[grad_out.slot()][8 * n + column]);
                float2 w = mma::unpack<T>(ds[i][r]), x = {dp[n][e], dp[n][e + 1]};
                if constexpr (DROPPED) {
                    x = {x.x * (signbit(w.x) ? 0.0f : a.dropout.factor), x.y * (signbit(w.y) ? 0.0f : a.dropout.factor)};
                    w = {fabsf(w.x), fabsf(w.y)};
                }
                ds[i][r] = mma::pack<T>(w.x * (x.x - d.x), w.y * (x.y - d.y));
            }
            store_rows<dS>(tile, warp_row, i, ds[i]);
        }
        hand_over(barriers.ds, ds_ring.slot());
        grad_out.advance();
    };
    // A tile whose dP is under way.
    const auto do_tile = [&](bool first, auto is_last) {
        constexpr bool LAST = decltype(is_last)::value;
        wgmma_wait<0>();
        keep_order(dp);
        if constexpr (LAST) give_back(barriers.v, 0);
        grade();
        wait_for(barriers.q, q);
        start_weights_by_rows<T, Q>(dk, ds, operands.rows(S::Q_AT + q.slot() * Q::BYTES), !first);
        wgmma_commit();
        wait_for(barriers.ds, ds_ring);
        piece.start_own(ds_ring.slot());
        wait_for(barriers.other_ds, ds_ring);
        piece.start_other(ds_ring.slot());
        wgmma_wait<0>();
        piece.finish(barriers, ds_ring.slot(), q.slot());
        if constexpr (!LAST) start_dp();  // only now: its dO may be late, and the next P^T waits for this dQ
        q.advance(), ds_ring.advance();
    };

    for (;; k.advance()) {
        wait_for(barriers.k, k);
        const typename Keys::ItemHere here{beside.items[k.slot()]};
        if (here->tiles == 0) break;
        wait_for(barriers.v, v);
        v.advance();
        start_dp();
        const int tiles = here->tiles * a.group;
        NO_UNROLL
        for (int t = 0; t < tiles - 1; ++t) do_tile(t == 0, std::false_type());
        do_tile(tiles == 1, std::true_type());
        keep_order(dk);
        const typename S::Item item = *here;
        give_back(barriers.k, k.slot());
        Keys::template store<S>(a, item, a.grad_key, item.k_start + S::first_key() + warp_row, dk, a.scale);
    }
}

// ------------------------------------------------------------------------------------------------------- 4. Kernel

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
    flash_backward_wide_kernel(const __grid_constant__ typename S::Problem a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    static_assert(S::CTAS == 2);
    extern __shared__ unsigned char bytes[];
    __shared__ Barriers<S> barriers;
    __shared__ Beside<S> beside;
    unsigned char* shared = hopper::aligned(bytes);
    if (threadIdx.x == 0) barriers.init();
    __syncthreads();
    hopper::cluster_sync();
    const int group = hopper::role_of_warpgroup(), warp = threadIdx.x / 32;
    if (group == hopper::PRODUCER) {
        hopper::fewer_registers<S::Registers::OF_PRODUCER>();
        if (threadIdx.x % 32 == 0) {
            if (warp < S::GROUPS)
                add_up<S>(a, barriers, beside, shared, warp);
            else if (warp == S::GROUPS)
                produce<S>(a, barriers, beside, shared);
            else
                send_ds<S>(a, barriers, beside, shared);
        }
        __syncwarp();
    } else {
        hopper::more_registers<S::Registers::OF_CONSUMER>();
        if (group == 0)
            consume_values<S>(a, barriers, beside, shared);
        else
            consume_keys<S>(a, barriers, beside, shared);
    }
    hopper::cluster_sync();  // the other CTA's copies and arrivals
#endif
}
