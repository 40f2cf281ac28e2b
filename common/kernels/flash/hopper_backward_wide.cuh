// hopper_backward_wide.cuh - the gradients of attention, float16 and bfloat16, head_dim 129 ... 256, for Hopper GPUs
// (sm_90a): the kernel.
//
//   1. Shapes       WideShape, Barriers             what a CTA has in shared memory
//   2. dQ           add_columns                     64 columns of a tile's part of dQ -> its sum
//   3. Consumers    consume_values, consume_keys    one group each
//   4. Kernel       flash_backward_wide_kernel
//
// With more than 128 columns the rows of dK and dV of 64 keys fill the registers of two groups of four warps. So a CTA
// has 64 keys, and of its two groups one has dV and what it needs, the other dK:
//
//   values   S^T = K Q^T      P^T = 2^(factor S^T - lse)   -> shared memory, float32        dV += P^T dO
//   keys     dP^T = V dO^T    dS^T = P^T * (dP^T - delta)  -> shared memory, 16 bits        dK += dS^T Q
//   both     dQ += dS K, 64 columns at a time; `values` has the first two of them, `keys` the rest
//
//   1. P^T and dS^T are left in registers where the products with dO and Q want their first operand; both groups have
//      the same elements of a tile in the same lanes, so that P^T goes from thread to thread.
//   2. `values` is a tile ahead: the next tile's S^T is started behind dV, and its powers are computed while dQ is being
//      worked on. `keys` starts the next dP^T behind dK.
//   3. dQ's columns are added to the sum in global memory from where they are, 16 bytes a lane: shared memory is full.
//
//   time ->   values   dV1 S2 | dQ1 |  powers 2  | dQ1 -> | dV2 S3 | dQ2 | ...
//             keys     dS1 | dK1 dP2 | dQ1 | dQ1 -> | dS2 | dK2 dP3 | ...
//
// The producer, the work of a CTA and the policies are those of hopper_backward.cuh. What was measured: README.md.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "common/cuda/exp2.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/attention_policies.cuh"
#include "common/kernels/flash/flash_query_sum.cuh"
#include "common/kernels/flash/hopper_backward_copies.cuh"
#include "common/kernels/flash/hopper_backward_work.cuh"

// ------------------------------------------------------------------------------------------------------- 1. Shapes

template <typename T_, int D_>
struct WideShape {
    using T = T_;
    static constexpr bool WIDE = true;
    static constexpr int D = D_, GROUPS = 2, STEP = 64, STEPS = 1, B_r = STEP, B_c = hopper::GROUP_ROWS;
    static constexpr int K_SLOTS = 1, Q_SLOTS = 2, DO_SLOTS = 2, DS_SLOTS = 2;
    static constexpr int THREADS = hopper::GROUP_THREADS * (1 + GROUPS), GROUP_WARPS = 4;
    using Registers = hopper::RegisterShares<GROUPS>;
    using Q = hopper::Tile<B_r, D>;       // or dO
    using K = hopper::Tile<B_c, D>;       // or V
    using dS = hopper::Tile<B_c, STEP>;  // dS^T
    static constexpr int OF_VALUES = 2;  // the boxes of dQ, 64 columns each, that `values` computes
    static constexpr int WEIGHTS_BYTES = B_c * STEP * sizeof(float);
    // Shared memory, in bytes: K, V, Q [Q_SLOTS], dO [DO_SLOTS], dS [DS_SLOTS], P^T
    static constexpr int V_AT = K_SLOTS * K::BYTES, Q_AT = V_AT + K::BYTES, DO_AT = Q_AT + Q_SLOTS * Q::BYTES;
    static constexpr int DS_AT = DO_AT + DO_SLOTS * Q::BYTES, WEIGHTS_AT = DS_AT + DS_SLOTS * dS::BYTES;
    static constexpr int BYTES = WEIGHTS_AT + WEIGHTS_BYTES + hopper::ALIGNMENT;
    static_assert(BYTES <= hopper::MAX_SHARED);
};

template <class S>
    requires(S::WIDE)
struct Barriers<S> {
    hopper::Slots<S::K_SLOTS> k;
    hopper::Slots<1> v, weights;  // weights: P^T; empty when dS has been computed, which `values` waits for anyway
    hopper::Slots<S::Q_SLOTS> q;
    hopper::Slots<S::DO_SLOTS> grad_out;
    hopper::Slots<S::DS_SLOTS> ds;

    __device__ void init() {
        constexpr int ONE = S::GROUP_WARPS, BOTH = S::GROUPS * ONE;
        k.init(BOTH), q.init(BOTH), grad_out.init(BOTH);
        v.init(ONE), weights.init(ONE, ONE), ds.init(BOTH, ONE);
        hopper::mbarrier_init_done();
    }
};

// ----------------------------------------------------------------------------------------------------------- 2. dQ

// Where a group adds the dQ of one tile of rows. With `turns` the additions to a tile take place in the order of the keys,
// see add_up: begin() waits for the group's turn and end() passes it on; without they do nothing.
template <class S, int GROUP>
struct QueryPart {
    const typename S::Problem& a;
    const typename S::Item& item;
    int64_t row_block;  // of 16 rows: the warp's first one
    int* turn;
    int row;

    __device__ __forceinline__ QueryPart(const typename S::Problem& a, const typename S::Item& item, const Walk& walk)
        : a(a), item(item), row(walk.tile * S::B_r) {
        const int64_t first = int64_t{walk.head_number(item, a.group)} * a.rows + item.sum_row + row;
        row_block = first / 16 + threadIdx.x / 32 % S::GROUP_WARPS;
        turn = a.turns != nullptr && item.adds ? a.turns + first / S::B_r * S::GROUPS + GROUP : nullptr;
    }

    static __device__ __forceinline__ void sync() {  // the group's threads
        asm volatile("bar.sync %0, %1;" ::"n"(1 + GROUP), "n"(hopper::GROUP_THREADS) : "memory");
    }
    __device__ __forceinline__ void begin() const {
        if (turn == nullptr) return;
        if (threadIdx.x % hopper::GROUP_THREADS == 0) wait_for_turn(turn, item.turn(row));
        sync();
    }
    // dq: columns 64 box ... 64 box + 63 of the warp's 16 rows
    __device__ __forceinline__ void add(const float (&dq)[8][4], int box) const {
        if (!item.adds) return;
        UNROLL
        for (int n = 0; n < 8; ++n)
            QuerySum<S::D>::add(a.grad_query_sum + QuerySum<S::D>::at(row_block, 8 * box + n, threadIdx.x % 32), dq[n]);
    }
    __device__ __forceinline__ void end() const {
        if (turn == nullptr) return;
        __threadfence();
        sync();
        if (threadIdx.x % hopper::GROUP_THREADS == 0) give_turn(turn, item.k_start + S::B_c);
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
    const int warp_key = threadIdx.x / 32 % 4 * 16, column = mma::d_col(threadIdx.x % 32, 0);
    const KMajor k_at = k_major<K>(shared), q_at = k_major<Q>(shared + S::Q_AT);
    const MnMajor do_rows_at = mn_major<Q>(shared + S::DO_AT), ds_at = mn_major<dS>(shared + S::DS_AT);
    const MnMajor k_columns_at = mn_major<K>(shared);
    float4* weights = reinterpret_cast<float4*>(shared + S::WEIGHTS_AT) + threadIdx.x % GROUP_THREADS;

    Ring<S::K_SLOTS> k;
    Ring<S::Q_SLOTS> q;  // of the next tile
    Ring<S::DO_SLOTS> grad_out;
    Ring<S::DS_SLOTS> ds;
    float dv[D / 8][4];                       // [64][D]
    float s[STEP / 8][4], dq[STEP / 8][4];    // S^T, then P^T [64 keys][STEP rows]; dQ [STEP][64]
    unsigned p[STEP / 16][4];                 // P^T, rounded
    [[maybe_unused]] int64_t seed = 0;
    if constexpr (DROPPED) seed = seed_of(a.dropout);

    const auto start_scores = [&] {
        wait_for(barriers.q, q);
        start_rows_by_rows<T, K, Q>(s, k_at, q_at.plus(q.slot() * Q::BYTES));
        wgmma_commit();
    };
    // Scores of a tile -> P^T, to shared memory in float32 and to p. What dS = P^T ... wants more goes with it: the softcap's
    // slope as a factor, what dropout drops as a sign. The other group is done with the last tile's: dS was there.
    const auto weigh = [&](const typename S::Item& item, const Walk& walk) {
        const int row = walk.tile * S::B_r;
        if constexpr (CAPPED) cap_scores(s, a.inside);
        if (Keys::template hides<S>(a, item, item.k_start, 0, row)) Keys::template hide<S>(s, a, item, warp_key, row);
        [[maybe_unused]] Kept<true> kept[2];
        UNROLL
        for (int i = 0; i < STEP / 16; ++i) {
            if constexpr (DROPPED)
                if (i % 2 == 0)
                    keep_two_tiles(kept, a.dropout, seed, item.dropout_heads + walk.head_number(item, a.group),
                                   row / 16 + i, (item.k_start + warp_key) / 16);
            UNROLL
            for (int n = 2 * i; n < 2 * i + 2; ++n) {
                const float2 lse = *reinterpret_cast<const float2*>(&beside.lse[q.slot()][8 * n + column]);
                float to_ds[4];
                UNROLL
                for (int e = 0; e < 4; ++e) {
                    const float score = s[n][e];
                    s[n][e] = exp2_approx(score * a.factor - (e % 2 ? lse.y : lse.x));
                    to_ds[e] = s[n][e];
                    if constexpr (CAPPED) to_ds[e] *= __saturatef(1 - score * score);  // 0 where the score is hidden
                    if constexpr (DROPPED)
                        if (!kept[i % 2](n % 2, e)) to_ds[e] = -to_ds[e], s[n][e] = 0;
                }
                weights[n * GROUP_THREADS] = make_float4(to_ds[0], to_ds[1], to_ds[2], to_ds[3]);
            }
            mma::accumulators_as_a<T>(p[i], s[2 * i], s[2 * i + 1]);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers.weights.full[0]);
        give_back(barriers.q, q.slot());
        q.advance();
    };
    const auto start_dq = [&](int box) {
        start_columns_by_rows<T, S::B_c>(dq, ds_at.plus(ds.slot() * dS::BYTES), k_columns_at.plus(box * K::BOX_BYTES));
        wgmma_commit();
    };
    // A tile whose p is there.   walk: the tile's, then the next one's
    const auto do_tile = [&](const typename S::Item& item, Walk& walk, bool first, auto is_last) {
        constexpr bool LAST = decltype(is_last)::value;
        const QueryPart<S, 0> part(a, item, walk);
        wait_for(barriers.grad_out, grad_out);
        start_weights_by_rows<T, Q>(dv, p, do_rows_at.plus(grad_out.slot() * Q::BYTES), !first);
        wgmma_commit();
        if constexpr (!LAST) start_scores();
        wait_for(barriers.ds, ds);
        start_dq(0);
        wgmma_wait<1>();
        give_back(barriers.grad_out, grad_out.slot());
        grad_out.advance();
        if constexpr (!LAST) {
            keep_order(s);
            walk.advance(item);
            weigh(item, walk);
        }
        UNROLL
        for (int box = 0; box < S::OF_VALUES; ++box) {
            if (box > 0) start_dq(box);
            wgmma_wait<0>();
            keep_order(dq);
            if (box == 0) part.begin();
            if (box == S::OF_VALUES - 1) give_back(barriers.ds, ds.slot());
            part.add(dq, box);
        }
        part.end();
        ds.advance();
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
    const int warp_key = threadIdx.x / 32 % 4 * 16, column = mma::d_col(threadIdx.x % 32, 0);
    const KMajor v_at = k_major<K>(shared + S::V_AT), do_at = k_major<Q>(shared + S::DO_AT);
    const MnMajor q_rows_at = mn_major<Q>(shared + S::Q_AT), ds_at = mn_major<dS>(shared + S::DS_AT);
    const MnMajor k_columns_at = mn_major<K>(shared);
    const float4* weights = reinterpret_cast<const float4*>(shared + S::WEIGHTS_AT) + threadIdx.x % GROUP_THREADS;

    Ring<S::K_SLOTS> k;
    Ring<S::Q_SLOTS> q;
    Ring<S::DO_SLOTS> grad_out;
    Ring<S::DS_SLOTS> ds_ring;
    Ring<1> v, weights_ring;
    float dk[D / 8][4];                      // [64][D]
    float dp[STEP / 8][4], dq[STEP / 8][4];  // dP^T [64 keys][STEP rows]; dQ [STEP][64]
    unsigned ds[STEP / 16][4];               // dS^T, rounded

    const auto start_dp = [&](int slot) {
        start_rows_by_rows<T, K, Q>(dp, v_at, do_at.plus(slot * Q::BYTES));
        wgmma_commit();
    };
    // dS, rounded, in registers and in shared memory
    const auto grade = [&] {
        wait_for(barriers.weights, weights_ring);
        weights_ring.advance();
        UNROLL
        for (int n = 0; n < STEP / 8; ++n) {
            const float2 delta = *reinterpret_cast<const float2*>(&beside.delta[grad_out.slot()][8 * n + column]);
            const float4 quad = weights[n * GROUP_THREADS];
            const float w[4] = {quad.x, quad.y, quad.z, quad.w};
            UNROLL
            for (int e = 0; e < 4; ++e) {
                float x = dp[n][e];
                if constexpr (DROPPED) x *= signbit(w[e]) ? 0.0f : a.dropout.factor;
                dp[n][e] = (DROPPED ? fabsf(w[e]) : w[e]) * (x - (e % 2 ? delta.y : delta.x));
            }
        }
        wait_until_empty(barriers.ds, ds_ring);
        UNROLL
        for (int i = 0; i < STEP / 16; ++i) {
            mma::accumulators_as_a<T>(ds[i], dp[2 * i], dp[2 * i + 1]);
            store_rows<dS>(shared + S::DS_AT + ds_ring.slot() * dS::BYTES, warp_key, i, ds[i]);
        }
        hand_over(barriers.ds, ds_ring.slot());
        give_back(barriers.grad_out, grad_out.slot());
        grad_out.advance();
    };
    // A tile whose dP is under way.   walk: the tile's, then the next one's
    const auto do_tile = [&](const typename S::Item& item, Walk& walk, bool first, auto is_last) {
        constexpr bool LAST = decltype(is_last)::value;
        const QueryPart<S, 1> part(a, item, walk);
        wgmma_wait<0>();
        keep_order(dp);
        grade();
        wait_for(barriers.q, q);
        start_weights_by_rows<T, Q>(dk, ds, q_rows_at.plus(q.slot() * Q::BYTES), !first);
        wgmma_commit();
        if constexpr (LAST) {
            give_back(barriers.v, 0);
        } else {
            walk.advance(item);
            wait_for(barriers.grad_out, grad_out);
            start_dp(grad_out.slot());
        }
        wait_for(barriers.ds, ds_ring);
        UNROLL
        for (int box = S::OF_VALUES; box < K::BOXES; ++box) {
            start_columns_by_rows<T, S::B_c>(dq, ds_at.plus(ds_ring.slot() * dS::BYTES),
                                             k_columns_at.plus(box * K::BOX_BYTES));
            wgmma_commit();
            wgmma_wait<0>();
            keep_order(dq);
            if (box == S::OF_VALUES) give_back(barriers.q, q.slot()), part.begin();
            if (box == K::BOXES - 1) give_back(barriers.ds, ds_ring.slot());
            part.add(dq, box);
        }
        part.end();
        q.advance(), ds_ring.advance();
    };

    for (;; k.advance()) {
        wait_for(barriers.k, k);
        const typename Keys::ItemHere here{beside.items[k.slot()]};
        if (here->tiles == 0) break;
        Walk walk(*here, a.group);
        wait_for(barriers.v, v);
        v.advance();
        wait_for(barriers.grad_out, grad_out);
        start_dp(grad_out.slot());
        const int tiles = walk.left;
        NO_UNROLL
        for (int t = 0; t < tiles - 1; ++t) do_tile(*here, walk, t == 0, std::false_type());
        do_tile(*here, walk, tiles == 1, std::true_type());
        keep_order(dk);
        const typename S::Item item = *here;
        give_back(barriers.k, k.slot());
        Keys::template store<S>(a, item, a.grad_key, item.k_start + warp_key, dk, a.scale);
    }
}

// ------------------------------------------------------------------------------------------------------- 4. Kernel

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
    flash_backward_wide_kernel(const __grid_constant__ typename S::Problem a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char bytes[];
    __shared__ Barriers<S> barriers;
    __shared__ Beside<S> beside;
    unsigned char* shared = hopper::aligned(bytes);
    if (threadIdx.x == 0) barriers.init();
    __syncthreads();
    const int group = hopper::role_of_warpgroup();
    if (group == hopper::PRODUCER) {
        hopper::fewer_registers<S::Registers::OF_PRODUCER>();
        if (threadIdx.x == 0) produce<S>(a, barriers, beside, shared);
    } else {
        hopper::more_registers<S::Registers::OF_CONSUMER>();
        if (group == 0)
            consume_values<S>(a, barriers, beside, shared);
        else
            consume_keys<S>(a, barriers, beside, shared);
    }
#endif
}
