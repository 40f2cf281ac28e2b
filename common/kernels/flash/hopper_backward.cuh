// hopper_backward.cuh - attention gradients in float16 and bfloat16, head_dim up to 128, on Hopper GPUs (sm_90a): the
// kernel.
//
//   1. Consumers    consume                     compute
//   2. Kernel       flash_backward_wgmma_kernel
//
//   hopper_backward_work.cuh      shared memory; the policies: which rows see a key, what is applied to a score
//   hopper_backward_copies.cuh    producer and adders: the roles that issue all TMA copies
//   hopper_backward_wide.cuh      the kernel for more than 128 columns
//   flash_backward_wgmma.cuh      launchers and instances, dense and with options
//   common/cuda/                  hopper_tiles.cuh: tiles, GEMMs, pipeline stages, roles; hopper_rows.cuh: gradients ->
//                                 global memory; below them wgmma.cuh, tma.cuh, mbarrier.cuh
//
// The algorithm is that of flash_backward_mma.cuh, which supports what this kernel does not; the roles come from
// FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608). A CTA has 128 keys; each of two groups of four warps has 64 of
// them, with their rows of dK and dV in registers to the end. They loop over the rows that see the keys:
//
//   S^T = K Q^T             P^T = 2^(factor S^T - lse)              dV += P^T dO
//   dP^T = V dO^T           dS^T = P^T * (dP^T - delta)             dK += dS^T Q               dQ += dS K
//
//   1. Everything is transposed, so that P^T and dS^T end up in registers exactly as the A operands of the GEMMs
//      with dO and Q. Only dS^T is needed a second time: dQ = dS K sums over the keys of both groups, so both write
//      their part to shared memory, and each computes half of dQ: 64 x 64 numbers, a piece.
//   2. A step is 64 rows. With D = 128 a tile is one step; with D = 64 it is two, and dQ is computed after the second,
//      the rows of one step by each group, so that a piece is 64 x 64 there, too.
//   3. The next step's S^T is started before this one's dS^T is computed, and its exponentials are computed while dK is
//      in flight: the tensor cores are busy at all times, even across the end of a work tile.
//   4. dQ is accumulated in global memory, in float32, since every block of keys contributes to it. A group leaves its
//      piece in shared memory; one thread of a dedicated warp issues a TMA reduce-add for it.
//   5. Pipeline stages as in the forward kernel. A work tile travels with its K: the producer draws it from a counter,
//      and all warps read it next to the stage.
//
//   time ->       tensor cores  S1 dV0 | dK0 |  dQ0  dP1 | S2 dV1 | dK1 |  dQ1  dP2 |     of one group; the other one
//                 warps          dS0   |   exp2 1   | dQ0 -> |  dS1  |   exp2 2   | ...    fills the gaps
//
// Needs sm_90a; why, and what happens for other targets and in the simulator: flash_attention_wgmma.cuh. Measurements:
// README.md; what didn't work: notes/tried.md.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "common/cuda/attention_arguments.h"
#include "common/cuda/check.h"
#include "common/cuda/exp2.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/attention_policies.cuh"
#include "common/kernels/flash/hopper_backward_copies.cuh"
#include "common/kernels/flash/hopper_backward_work.cuh"

// ---------------------------------------------------------------------------------------------------- 1. Consumers

template <class S>
__device__ __forceinline__ void consume(const typename S::Problem& a, Barriers<S>& barriers, const StageData<S>& data,
                                        unsigned char* shared, int group) {
    using namespace hopper;
    using T = typename S::T;
    using Q = typename S::Q;
    using K = typename S::K;
    using dS = typename S::dS;
    constexpr int D = S::D, STEP = S::STEP, STEPS = S::STEPS;
    using Keys = typename S::Keys;
    constexpr bool KV_IN_REGISTERS = S::KV_IN_REGISTERS;
    constexpr bool CAPPED = S::SCORES == Scores::CAPPED, DROPPED = S::SCORES == Scores::DROPPED;
    const int lane = threadIdx.x % 32, group_key = GROUP_ROWS * group, column = mma::d_col(lane, 0);
    const int warp_key = group_key + threadIdx.x / 32 % 4 * 16;
    const int group_at = group_key * K::ROW_BYTES;
    // The group's piece of dQ: its columns or, with two steps per tile, the rows of one step.
    const int k_columns_at = STEPS == 1 ? group * K::BOX_BYTES : 0;
    Operands<S> operands(shared);
    float4* piece = reinterpret_cast<float4*>(shared + S::DQ_AT + group * S::PIECE_BYTES) + threadIdx.x % GROUP_THREADS;

    // next_...: of the step whose scores are started early
    Ring<S::K_STAGES> k, next_k;
    Ring<S::Q_STAGES> q, next_q;
    Ring<S::DO_STAGES> grad_out, next_do;
    Ring<S::DS_STAGES> ds_ring, my_ds;  // my_ds: of the step that dQ is computed from
    Ring<1> v, dq_ring;
    unsigned k_rows[KV_IN_REGISTERS ? D / 16 : 1][4], v_rows[KV_IN_REGISTERS ? D / 16 : 1][4];  // [64][D]
    float dk[D / 8][4], dv[D / 8][4];                                                          // [64][D]
    float s[STEP / 8][4], dp[STEP / 8][4];        // S^T, then its exponentials; dP^T [64][STEP]
    unsigned p[STEP / 16][4], ds[STEP / 16][4];   // P^T, dS^T [64][STEP]
    [[maybe_unused]] unsigned capped_p[S::KEEPS_SLOPE ? STEP / 16 : 1][4];  // P^T (1 - t^2)
    float(&dq)[8][4] = s;                         // [64][64]; the exponentials have been rounded by then

    [[maybe_unused]] int64_t seed = 0;
    if constexpr (DROPPED) seed = seed_of(a.dropout);
    wait_for(barriers.k, next_k);
    typename Keys::ConsumerWorkTile next{data.work_tiles[0]};
    if constexpr (Keys::MORE_CTAS_THAN_WORK_TILES)
        if (next->tiles == 0) return;
    Walk ahead(*next, a.group);
    bool more = true, piece_written = false;

    // For a stage with values that the lanes have read themselves: waits until all lanes are done.
    const auto release = [](auto& stages, int stage) {
        __syncwarp();
        release_stage(stages, stage);
    };
    const auto load_k = [&] {
        if constexpr (KV_IN_REGISTERS) load_rows<K>(k_rows, shared + next_k.stage() * K::BYTES, warp_key);
    };
    const auto wait_for_v = [&] {
        wait_for(barriers.v, v);
        v.advance();
        if constexpr (KV_IN_REGISTERS) {
            load_rows<K>(v_rows, shared + S::V_AT, warp_key);
            release(barriers.v, 0);
        }
    };
    const auto start_scores = [&](int stage, int step) {
        const KMajor rows = operands.k_major(S::Q_AT, stage * Q::BYTES + step * STEP * Q::ROW_BYTES);
        if constexpr (KV_IN_REGISTERS)
            start_rows_by_rows<T, Q>(s, k_rows, rows);
        else
            start_rows_by_rows<T, K, Q>(s, operands.k_major(group_at, next_k.stage() * K::BYTES), rows);
        wgmma_commit();
    };
    const auto start_dp = [&](int stage, int step) {
        const KMajor rows = operands.k_major(S::DO_AT, stage * Q::BYTES + step * STEP * Q::ROW_BYTES);
        if constexpr (KV_IN_REGISTERS)
            start_rows_by_rows<T, Q>(dp, v_rows, rows);
        else
            start_rows_by_rows<T, K, Q>(dp, operands.k_major(S::V_AT + group_at), rows);
        wgmma_commit();
    };
    // Scores of a step of the tile `ahead` -> exponentials, in place
    const auto weigh = [&](int stage, int step) {
        const int row = ahead.tile * S::B_r + step * STEP;
        const bool hides = Keys::template hides<S>(a, *next, next->k_start + group_key, group, row);
        if constexpr (CAPPED) cap_scores(s, a.inside);
        if (hides)
            Keys::template hide<S>(s, a, *next, warp_key, row);
        UNROLL
        for (int n = 0; n < STEP / 8; ++n) {
            const float2 lse = *reinterpret_cast<const float2*>(&data.lse[stage][step * STEP + 8 * n + column]);
            [[maybe_unused]] float dp_factor[4];
            UNROLL
            for (int e = 0; e < 4; ++e) {
                const float score = s[n][e];
                s[n][e] = exp2_approx(score * a.factor - (e % 2 ? lse.y : lse.x));
                if constexpr (S::KEEPS_SLOPE) {
                    const float t = score;
                    dp_factor[e] = s[n][e] * __saturatef(1 - t * t);  // 0 where the score is hidden
                }
            }
            if constexpr (S::KEEPS_SLOPE) {
                unsigned(&to)[4] = capped_p[n / 2];
                to[n % 2 * 2] = mma::pack<T>(dp_factor[0], dp_factor[1]);
                to[n % 2 * 2 + 1] = mma::pack<T>(dp_factor[2], dp_factor[3]);
            }
        }
    };
    // True if an exponential has its sign bit set. None does, see do_step.
    const auto round_exponentials = [&] {
        unsigned all = 0;
        UNROLL
        for (int i = 0; i < STEP / 16; ++i) {
            mma::accumulators_as_a<T>(p[i], s[2 * i], s[2 * i + 1]);
            all |= p[i][0] | p[i][1] | p[i][2] | p[i][3];
        }
        return (all & 0x80008000u) != 0;
    };
    // Rounds dS and stores it to shared memory.   keep(i, kept): what dropout keeps of rows 16 i ... 16 i + 31
    const auto compute_dS = [&](int stage, int step, [[maybe_unused]] const auto& keep) {
        [[maybe_unused]] Kept<true> kept[2];
        UNROLL
        for (int i = 0; i < STEP / 16; ++i) {
            if constexpr (DROPPED)
                if (i % 2 == 0) keep(i, kept);
            UNROLL
            for (int r = 0; r < 4; ++r) {  // as in accumulators_as_a
                const int n = 2 * i + r / 2, e = r % 2 * 2;
                const float2 w = mma::unpack<T>(S::KEEPS_SLOPE ? capped_p[i][r] : p[i][r]);
                const float2 d = *reinterpret_cast<const float2*>(&data.delta[stage][step * STEP + 8 * n + column]);
                float2 x = {dp[n][e], dp[n][e + 1]};
                if constexpr (DROPPED) {
                    x.x *= kept[i % 2](r / 2, e) ? a.dropout.factor : 0.0f;
                    x.y *= kept[i % 2](r / 2, e + 1) ? a.dropout.factor : 0.0f;
                    p[i][r] &= kept[i % 2].mask(r / 2, r % 2);  // dS needs all of P, dV only what is kept of it
                }
                x = {w.x * (x.x - d.x), w.y * (x.y - d.y)};
                if constexpr (CAPPED && !S::KEEPS_SLOPE) {  // recover t from P: softcap t = log(P) + lse
                    const float2 lse =
                        *reinterpret_cast<const float2*>(&data.lse[q.stage()][step * STEP + 8 * n + column]);
                    const auto slope = [&](float weight, float of_row) {
                        const float t = fmaf(log2_approx(weight), a.log2_to_t, of_row * a.log2_to_t);
                        return __saturatef(1 - t * t);  // 0 where P is 0 and t -infinity or NaN
                    };
                    x.x *= slope(w.x, lse.x), x.y *= slope(w.y, lse.y);
                }
                ds[i][r] = mma::pack<T>(x.x, x.y);
            }
            store_rows<dS>(shared + S::DS_AT + ds_ring.stage() * dS::BYTES, warp_key, i, ds[i]);
        }
    };

    // A step whose exponentials are ready and whose dP is in flight. first, last: tile of its work tile
    const auto do_step = [&](auto number, bool first, bool last) {
        constexpr int step = decltype(number)::value, next_step = (step + 1) % STEPS;
        constexpr bool ENDS_TILE = next_step == 0;
        const int rows_at = step * STEP * Q::ROW_BYTES, next_stage = ENDS_TILE ? next_q.stage() : q.stage();
        [[maybe_unused]] const int head = ahead.head_number(*next, a.group), row = ahead.tile * S::B_r + step * STEP;
        [[maybe_unused]] const int first_key = next->k_start + warp_key, dropout_heads = next->dropout_heads;
        wgmma_wait<0>();
        keep_order(dp);
        if constexpr (ENDS_TILE) {
            if (last) {
                if constexpr (!KV_IN_REGISTERS) release_stage(barriers.v, 0);
                next_k.advance();
                wait_for(barriers.k, next_k);
                next = typename Keys::ConsumerWorkTile{data.work_tiles[next_k.stage()]};
                ahead = Walk(*next, a.group);
                more = next->tiles > 0;
                if (more) load_k();
            } else {
                ahead.advance(*next);
            }
            if (more) wait_for(barriers.q, next_q);
        }
        // The compiler can track in-flight wgmmas only through straight-line code: after the last work tile this is
        // started anyway, on whatever is left in the stages, and the result is discarded.
        start_scores(next_stage, next_step);
        const auto start_dv = [&] {
            start_weights_by_rows<T, Q>(dv, p, operands.mn_major(S::DO_AT, grad_out.stage() * Q::BYTES + rows_at),
                                        !first);
            wgmma_commit();
        };
        if constexpr (!DROPPED) start_dv();
        // Not earlier, since its fence waits until the piece has been written, which takes a while.
        if (step == 0 && piece_written) signal_full(barriers.dq[group], 0);
        if constexpr (step == 0) wait_until_empty(barriers.ds, ds_ring);
        compute_dS(grad_out.stage(), step, [&](int i, Kept<true>(&kept)[2]) {
            if constexpr (DROPPED)
                keep_two_tiles(kept, a.dropout, seed, dropout_heads + head, row / 16 + i, first_key / 16);
        });
        if constexpr (DROPPED) start_dv();
        signal_full(barriers.ds, ds_ring.stage());
        if (STEPS == 1 || step == group) my_ds = ds_ring;
        ds_ring.advance();
        start_weights_by_rows<T, Q>(dk, ds, operands.mn_major(S::Q_AT, q.stage() * Q::BYTES + rows_at), !first);
        wgmma_commit();

        wgmma_wait<2>();
        keep_order(s);
        weigh(next_stage, next_step);
        wgmma_wait<1>();
        if constexpr (ENDS_TILE) release(barriers.grad_out, grad_out.stage());
        // The compiler would sink most exponentials below dP, since it may move arithmetic across wgmma_wait, but not
        // across a wait that depends on them.
        const bool never = round_exponentials();
        if constexpr (!ENDS_TILE) {
            start_dp(grad_out.stage(), next_step);
            mbarrier_wait(barriers.ds.empty[ds_ring.stage()], ds_ring.parity() ^ 1 ^ never);
        } else {
            mbarrier_wait(barriers.ds.full[my_ds.stage()], my_ds.parity() ^ never);
            start_columns_by_rows<T, S::B_c>(dq, operands.mn_major(S::DS_AT, my_ds.stage() * dS::BYTES),
                                             operands.mn_major(k_columns_at, k.stage() * K::BYTES));
            wgmma_commit();
            wgmma_wait<1>();
            release(barriers.q, q.stage());
            if (more && last) wait_for_v();
            if (more) wait_for(barriers.grad_out, next_do);
            start_dp(next_do.stage(), 0);
            wgmma_wait<1>();
            keep_order(dq);
            release_stage(barriers.ds, my_ds.stage());
            if (last) release(barriers.k, k.stage());
            wait_until_empty(barriers.dq[group], dq_ring);
            UNROLL
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
    round_exponentials();
    start_dp(0, 0);
    next_q.advance(), next_do.advance();
    while (more) {
        const typename S::WorkTile work = *next;
        const int tiles = ahead.left;
        NO_UNROLL
        for (int t = 0; t < tiles; ++t) {
            do_step(std::integral_constant<int, 0>(), t == 0, t == tiles - 1);
            if constexpr (STEPS == 2) do_step(std::integral_constant<int, 1>(), false, t == tiles - 1);
        }
        k.advance();
        keep_order(dk);
        keep_order(dv);
        float factor = 1;
        if constexpr (DROPPED) factor = a.dropout.factor;
        Keys::template store<S>(a, work, a.grad_value, work.k_start + warp_key, dv, factor);
        Keys::template store<S>(a, work, a.grad_key, work.k_start + warp_key, dk, a.scale);
    }
    signal_full(barriers.dq[group], 0);
    wgmma_wait<0>();
    keep_order(dp);
}

// ------------------------------------------------------------------------------------------------------- 2. Kernel

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
    flash_backward_wgmma_kernel(const __grid_constant__ typename S::Problem a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char bytes[];
    __shared__ Barriers<S> barriers;
    __shared__ StageData<S> data;
    unsigned char* shared = hopper::aligned(bytes);
    if (threadIdx.x == 0) barriers.init();
    __syncthreads();
    const int group = hopper::role_of_warpgroup(), warp = threadIdx.x / 32;
    if (group == hopper::PRODUCER) {
        hopper::fewer_registers<S::Registers::OF_PRODUCER>();
        if (threadIdx.x % 32 != 0) return;
        if (warp < S::GROUPS)
            reduce_dQ<S>(a, barriers, data, shared, warp);
        else if (warp == S::GROUPS)
            produce<S>(a, barriers, data, shared);
    } else {
        hopper::more_registers<S::Registers::OF_CONSUMER>();
        consume<S>(a, barriers, data, shared, group);
    }
#endif
}
