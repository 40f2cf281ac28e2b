// hopper_backward_wide.cuh - attention gradients in float16 and bfloat16, head_dim 129 ... 256, on Hopper GPUs.
//
//   1. Consumers    consume_values, consume_keys    one warpgroup each
//   2. Kernel       flash_backward_wide_kernel
//
//   hopper_backward_wide_work.cuh    shared memory; what the CTAs of a cluster exchange
//   hopper_backward_copies.cuh, hopper_backward_work.cuh, hopper_backward_sequences.cuh    as for hopper_backward.cuh
//
// Above 128 columns, dK and dV of 64 keys fill the registers of two warpgroups. So a CTA has 64 keys: one warpgroup
// accumulates dV, the other dK. Two CTAs form a cluster: they hold 128 neighboring keys, walk over the same query rows,
// and each computes half of dQ's columns from the dS of both.
//
//   values   S^T = K Q^T      P^T = 2^(factor S^T - lse)     -> shared memory           dV += P^T dO
//   keys     dP^T = V dO^T    dS^T = P^T * (dP^T - delta)    -> in its place, both CTAs'     dK += dS^T Q
//   both     dQ = dS K over 128 keys, D / 4 columns a group (D = 192: 64 and 32)
//
//   1. P^T and dS^T are in registers as the A operands of the GEMMs with dO and Q. A warp of `values` also writes
//      its 16 rows of P^T to shared memory; the warp of `keys` with the same keys reads them into the same lanes, and
//      writes dS^T over them.
//   2. The next tile's S^T starts before dQ is complete, and its exponentials are computed while dQ finishes.
//   3. Accumulating dQ in the L2 cache is the bottleneck; without the cluster every 64 keys would add all of dQ. Shared
//      memory is full, so each group writes its piece of dQ over an operand that it no longer needs: `values` over dO
//      after dV, `keys` over Q after dK. The stage is released to the producer when TMA has added the piece.
//
//   time ->   values   dV1 | dQ1 S2 dQ1' | exp 2 | dV2 | dQ2 S3 dQ2' | ...        one tile after another; ': for the
//             keys     dS1 | dK1 dQ1 dQ1' | dP2 | dS2 | dK2 dQ2 dQ2' | dP3 | ...  other CTA's keys
//
// Measurements: README.md; what didn't work: notes/tried.md.
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
#include "common/kernels/flash/hopper_backward_wide_work.cuh"
#include "common/kernels/flash/hopper_backward_work.cuh"

// ---------------------------------------------------------------------------------------------------- 1. Consumers

// The group that accumulates dV.
template <class S>
__device__ __forceinline__ void consume_values(const typename S::Problem& a, Barriers<S>& barriers,
                                               const StageData<S>& data, unsigned char* shared) {
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

    Ring<S::K_STAGES> k;
    Ring<S::Q_STAGES> q;             // for the next tile
    Ring<S::DO_STAGES> grad_out;
    Ring<S::DS_STAGES> weights, ds;  // weights: of the next tile
    float dv[D / 8][4];              // [64][D]
    float s[STEP / 8][4];            // S^T, then P^T [64 keys][STEP rows]
    Operands<S> operands(shared);
    QueryPiece<S, 0> piece{shared, operands};
    unsigned p[STEP / 16][4];                                              // P^T, rounded
    [[maybe_unused]] unsigned to_ds[S::SCORES == Scores::PLAIN ? 1 : STEP / 16][4];  // the factor in dS = P^T ...
    [[maybe_unused]] int64_t seed = 0;
    if constexpr (DROPPED) seed = seed_of(a.dropout);

    const auto start_scores = [&] {
        wait_for(barriers.q, q);
        start_rows_by_rows<T, K, Q>(s, operands.k_major(0), operands.k_major(S::Q_AT + q.stage() * Q::BYTES));
        wgmma_commit();
    };
    // Scores of a tile -> P^T. For dS, the softcap's slope is a factor, and dropped weights have their sign bit set.
    const auto weigh = [&](const typename S::WorkTile& work, const Walk& walk) {
        const int row = walk.tile * S::B_r;
        if constexpr (CAPPED) cap_scores(s, a.inside);
        if (Keys::template hides<S>(a, work, work.k_start + S::first_key(), S::rank(), row))
            Keys::template hide<S>(s, a, work, warp_key, row);
        [[maybe_unused]] Kept<true> kept[2];
        UNROLL
        for (int i = 0; i < STEP / 16; ++i) {
            if constexpr (DROPPED)
                if (i % 2 == 0)
                    keep_two_tiles(kept, a.dropout, seed, work.dropout_heads + walk.head_number(work, a.group),
                                   row / 16 + i, (work.k_start + warp_key) / 16);
            [[maybe_unused]] float slope[2][4];
            UNROLL
            for (int n = 2 * i; n < 2 * i + 2; ++n) {
                const float2 lse = *reinterpret_cast<const float2*>(&data.lse[q.stage()][8 * n + column]);
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
    // Stores P^T to shared memory, once both CTAs are done with the previous contents.
    const auto signal_weights_full = [&] {
        wait_until_empty(barriers.ds, weights);
        UNROLL
        for (int i = 0; i < STEP / 16; ++i) {
            unsigned char* to = shared + S::DS_AT + weights.stage() * dS::BYTES;
            if constexpr (S::SCORES == Scores::PLAIN)
                store_rows<dS>(to, warp_row, i, p[i]);
            else
                store_rows<dS>(to, warp_row, i, to_ds[i]);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers.weights.full[weights.stage()]);
        weights.advance();
    };
    // A tile whose P^T is ready.   walk: the tile's, then the next one's
    const auto do_tile = [&](const typename S::WorkTile& work, Walk& walk, bool first, auto is_last) {
        constexpr bool LAST = decltype(is_last)::value;
        wait_for(barriers.grad_out, grad_out);
        start_weights_by_rows<T, Q>(dv, p, operands.mn_major(S::DO_AT + grad_out.stage() * Q::BYTES), !first);
        wgmma_commit();
        wait_for(barriers.ds, ds);
        piece.start_own(ds.stage());
        if constexpr (!LAST) start_scores();
        wait_for(barriers.other_ds, ds);
        piece.start_other(ds.stage());
        if constexpr (!LAST) {
            wgmma_wait<1>();
            keep_order(s);
            walk.advance(work);
            weigh(work, walk);
        }
        wgmma_wait<0>();
        piece.finish(barriers, ds.stage(), grad_out.stage());
        ds.advance(), grad_out.advance();
        if constexpr (!LAST) signal_weights_full();
    };

    for (;; k.advance()) {
        wait_for(barriers.k, k);
        const typename Keys::ConsumerWorkTile current{data.work_tiles[k.stage()]};
        if (current->tiles == 0) break;
        Walk walk(*current, a.group);
        start_scores();
        wgmma_wait<0>();
        keep_order(s);
        weigh(*current, walk);
        signal_weights_full();
        const int tiles = walk.left;
        NO_UNROLL
        for (int t = 0; t < tiles - 1; ++t) do_tile(*current, walk, t == 0, std::false_type());
        do_tile(*current, walk, tiles == 1, std::true_type());
        keep_order(dv);
        const typename S::WorkTile work = *current;
        release_stage(barriers.k, k.stage());
        float factor = 1;
        if constexpr (DROPPED) factor = a.dropout.factor;
        Keys::template store<S>(a, work, a.grad_value, work.k_start + warp_key, dv, factor);
    }
}

// The group that accumulates dK.
template <class S>
__device__ __forceinline__ void consume_keys(const typename S::Problem& a, Barriers<S>& barriers,
                                             const StageData<S>& data, unsigned char* shared) {
    using namespace hopper;
    using T = typename S::T;
    using Q = typename S::Q;
    using K = typename S::K;
    using dS = typename S::dS;
    using Keys = typename S::Keys;
    constexpr int D = S::D, STEP = S::STEP;
    constexpr bool DROPPED = S::SCORES == Scores::DROPPED;
    const int warp_row = threadIdx.x / 32 % 4 * 16, column = mma::d_col(threadIdx.x % 32, 0);

    Ring<S::K_STAGES> k;
    Ring<S::Q_STAGES> q;
    Ring<S::DO_STAGES> grad_out;
    Ring<S::DS_STAGES> ds_ring;
    Ring<1> v;
    float dk[D / 8][4];         // [64][D]
    float dp[STEP / 8][4];      // dP^T [64 keys][STEP rows]
    Operands<S> operands(shared);
    QueryPiece<S, 1> piece{shared, operands};
    unsigned ds[STEP / 16][4];  // P^T, then dS^T

    const auto start_dp = [&] {
        wait_for(barriers.grad_out, grad_out);
        const KMajor rows = operands.k_major(S::DO_AT + grad_out.stage() * Q::BYTES);
        start_rows_by_rows<T, K, Q>(dp, operands.k_major(S::V_AT), rows);
        wgmma_commit();
    };
    // Computes dS, rounded, in registers and in shared memory
    const auto compute_dS = [&] {
        unsigned char* tile = shared + S::DS_AT + ds_ring.stage() * dS::BYTES;
        wait_for(barriers.weights, ds_ring);
        load_rows<dS>(ds, tile, warp_row);
        __syncwarp();
        UNROLL
        for (int i = 0; i < STEP / 16; ++i) {
            UNROLL
            for (int r = 0; r < 4; ++r) {  // as in accumulators_as_a
                const int n = 2 * i + r / 2, e = r % 2 * 2;
                const float2 d = *reinterpret_cast<const float2*>(&data.delta[grad_out.stage()][8 * n + column]);
                float2 w = mma::unpack<T>(ds[i][r]), x = {dp[n][e], dp[n][e + 1]};
                if constexpr (DROPPED) {
                    x = {x.x * (signbit(w.x) ? 0.0f : a.dropout.factor), x.y * (signbit(w.y) ? 0.0f : a.dropout.factor)};
                    w = {fabsf(w.x), fabsf(w.y)};
                }
                ds[i][r] = mma::pack<T>(w.x * (x.x - d.x), w.y * (x.y - d.y));
            }
            store_rows<dS>(tile, warp_row, i, ds[i]);
        }
        signal_full(barriers.ds, ds_ring.stage());
        grad_out.advance();
    };
    // A tile whose dP is in flight.
    const auto do_tile = [&](bool first, auto is_last) {
        constexpr bool LAST = decltype(is_last)::value;
        wgmma_wait<0>();
        keep_order(dp);
        if constexpr (LAST) release_stage(barriers.v, 0);
        compute_dS();
        wait_for(barriers.q, q);
        start_weights_by_rows<T, Q>(dk, ds, operands.mn_major(S::Q_AT + q.stage() * Q::BYTES), !first);
        wgmma_commit();
        wait_for(barriers.ds, ds_ring);
        piece.start_own(ds_ring.stage());
        wait_for(barriers.other_ds, ds_ring);
        piece.start_other(ds_ring.stage());
        wgmma_wait<0>();
        piece.finish(barriers, ds_ring.stage(), q.stage());
        if constexpr (!LAST) start_dp();  // not earlier: its dO may be late, and the next P^T waits for this dQ
        q.advance(), ds_ring.advance();
    };

    for (;; k.advance()) {
        wait_for(barriers.k, k);
        const typename Keys::ConsumerWorkTile current{data.work_tiles[k.stage()]};
        if (current->tiles == 0) break;
        wait_for(barriers.v, v);
        v.advance();
        start_dp();
        const int tiles = current->tiles * a.group;
        NO_UNROLL
        for (int t = 0; t < tiles - 1; ++t) do_tile(t == 0, std::false_type());
        do_tile(tiles == 1, std::true_type());
        keep_order(dk);
        const typename S::WorkTile work = *current;
        release_stage(barriers.k, k.stage());
        Keys::template store<S>(a, work, a.grad_key, work.k_start + S::first_key() + warp_row, dk, a.scale);
    }
}

// ------------------------------------------------------------------------------------------------------- 2. Kernel

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
    flash_backward_wide_kernel(const __grid_constant__ typename S::Problem a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    static_assert(S::CTAS == 2);
    extern __shared__ unsigned char bytes[];
    __shared__ Barriers<S> barriers;
    __shared__ StageData<S> data;
    unsigned char* shared = hopper::aligned(bytes);
    if (threadIdx.x == 0) barriers.init();
    __syncthreads();
    hopper::cluster_sync();
    const int group = hopper::role_of_warpgroup(), warp = threadIdx.x / 32;
    if (group == hopper::PRODUCER) {
        hopper::fewer_registers<S::Registers::OF_PRODUCER>();
        if (threadIdx.x % 32 == 0) {
            if (warp < S::GROUPS)
                reduce_dQ<S>(a, barriers, data, shared, warp);
            else if (warp == S::GROUPS)
                produce<S>(a, barriers, data, shared);
            else
                send_ds<S>(a, barriers, data, shared);
        }
        __syncwarp();
    } else {
        hopper::more_registers<S::Registers::OF_CONSUMER>();
        if (group == 0)
            consume_values<S>(a, barriers, data, shared);
        else
            consume_keys<S>(a, barriers, data, shared);
    }
    hopper::cluster_sync();  // the other CTA's copies and arrivals
#endif
}
