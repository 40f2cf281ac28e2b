// hopper_backward_copies.cuh - the two roles of hopper_backward.cuh that only issue TMA operations.
//
//   1. Producer     produce                     takes work tiles and issues TMA loads
//   2. Adders       reduce_dQ                   issue TMA reduce-adds of dQ into global memory
//
// Needs sm_90a.
#pragma once
#include "common/cuda/hopper_tiles.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/hopper_backward_work.cuh"

// ----------------------------------------------------------------------------------------------------- 1. Producer

// One thread issues all loads, in the order in which they are used, as far ahead as there are stages.
template <class S>
__device__ __forceinline__ void produce(const typename S::Problem& a, Barriers<S>& barriers, StageData<S>& data,
                                        unsigned char* shared) {
    using namespace hopper;
    using Q = typename S::Q;
    using K = typename S::K;
    Ring<S::K_STAGES> k;
    Ring<1> v;
    Ring<S::Q_STAGES> q;
    Ring<S::DO_STAGES> grad_out;
    typename S::Keys::template WorkOrder<S> order{a};
    typename S::Numbers numbers{a.counter};
    for (;;) {
        const typename S::WorkTile work = order.at(numbers.next(barriers));
        if (order.skips(work)) continue;
        wait_until_empty(barriers.k, k);
        data.work_tiles[k.stage()] = work;
        if (work.tiles == 0) {
            mbarrier_arrive(barriers.k.full[k.stage()]);
            return;
        }
        const int batch = work.batch_kv / a.kv_heads, kv_head = work.batch_kv % a.kv_heads;
        Walk walk(work, a.group);
        const auto fill_rows = [&](auto& stages, auto& ring, int at, const CUtensorMap& map, auto& numbers,
                                   const float* from) {
            const int row = walk.tile * S::B_r;
            wait_until_empty(stages, ring);
            fill<Q>(stages, ring, shared + at, map, work.row + row, kv_head * a.group + walk.head, batch, numbers,
                    from + walk.head_number(work, a.group) * a.rows + work.sum_row + row);
            ring.advance();
        };
        const auto fill_q = [&] { fill_rows(barriers.q, q, S::Q_AT, a.query, data.lse, a.lse); };
        const auto fill_do = [&] {
            fill_rows(barriers.grad_out, grad_out, S::DO_AT, a.grad_out, data.delta, a.delta);
        };
        S::fill_keys(barriers.k, k, shared, a.key, work.key + work.k_start, kv_head, batch);
        fill_q();
        wait_until_empty(barriers.v, v);
        fill<K>(barriers.v, v, shared + S::V_AT, a.value, work.key + work.k_start + S::first_key(), kv_head, batch);
        fill_do();
        k.advance(), v.advance();
        NO_UNROLL
        while (walk.advance(work)) fill_q(), fill_do();
    }
}

// ------------------------------------------------------------------------------------------------------- 2. Adders
//
// One thread per group. With `turns`, the additions to a piece happen in the order of the keys, so that dQ is bitwise
// reproducible: a turn is the first key of the work tile that adds next. Deadlock freedom: earlier work tiles were
// drawn earlier, and a CTA processes its work tiles in the order in which it drew them.

__device__ __forceinline__ void wait_for_turn(const int* turn, int mine) {
    int now;
    do asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
    while (now != mine);
    hopper::fence_proxy_async_global();
}
__device__ __forceinline__ void signal_turn(int* turn, int next) {
    hopper::fence_proxy_async_global();
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(turn), "r"(next) : "memory");
}

template <class S>
__device__ __forceinline__ void reduce_dQ(const typename S::Problem& a, Barriers<S>& barriers, const StageData<S>& data,
                                          const unsigned char* shared, int group) {
    using namespace hopper;
    Ring<S::K_STAGES> k;
    Ring<S::DQ_STAGES> dq;
    for (;; k.advance()) {
        wait_for(barriers.k, k);
        const typename S::WorkTile work = data.work_tiles[k.stage()];
        mbarrier_arrive(barriers.k.empty[k.stage()]);
        if (work.tiles == 0) break;
        Walk walk(work, a.group);
        NO_UNROLL
        do {
            const int tile = walk.head_number(work, a.group) * (a.rows / S::B_r) + work.sum_row / S::B_r + walk.tile;
            wait_for(barriers.dq[group], dq);
            if (work.adds) {
                int* turn = a.turns == nullptr ? nullptr : a.turns + tile * S::PIECES + S::piece_of(group);
                if (turn != nullptr) wait_for_turn(turn, work.turn(walk.tile * S::B_r));
                bulk_add(a.grad_query_sum + int64_t{tile} * S::B_r * S::D + S::piece_begin(group),
                         shared + S::piece_at(group, dq.stage()), S::piece_bytes(group));
                if (turn != nullptr) {
                    bulk_done();
                    signal_turn(turn, work.k_start + S::B_c);
                }
            }
            bulk_read_done();
            mbarrier_arrive(barriers.read(group, dq.stage()));
            dq.advance();
        } while (walk.advance(work));
    }
    bulk_done();
}
