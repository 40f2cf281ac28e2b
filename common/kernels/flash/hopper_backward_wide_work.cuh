// hopper_backward_wide_work.cuh - shared by the roles of hopper_backward_wide.cuh: shared memory; the exchange between
// CTAs.
//
//   1. Shapes       WideShape, Barriers       a CTA's shared memory; who computes which part of dQ
//   2. Exchange     send_ds, QueryPiece       dS to the other CTA; a piece of dQ from the dS of both
//
// Needs sm_90a.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/hopper_cluster.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/flash_query_sum.cuh"
#include "common/kernels/flash/hopper_backward_work.cuh"

// ------------------------------------------------------------------------------------------------------- 1. Shapes

template <typename T_, int D_, int DS_STAGES_>
struct WideShape {
    using T = T_;
    static constexpr bool WIDE = true;
    static constexpr int D = D_, GROUPS = 2, CTAS = 2, STEP = 64, B_r = STEP, B_c = CTAS * hopper::GROUP_ROWS;
    static constexpr int K_STAGES = 1, Q_STAGES = 2, DO_STAGES = 2, DS_STAGES = DS_STAGES_, DQ_STAGES = 2;
    static constexpr int THREADS = hopper::GROUP_THREADS * (1 + GROUPS), GROUP_WARPS = 4;
    using Registers = hopper::RegisterShares<GROUPS>;
    using Q = hopper::Tile<B_r, D>;                      // or dO
    using K = hopper::Tile<hopper::GROUP_ROWS, D>;       // or V: of the CTA's keys
    using dS = hopper::Tile<hopper::GROUP_ROWS, STEP>;  // P^T, then dS^T
    // The two boxes of the other CTA's K that hold the columns of dQ computed by this one.
    static constexpr int OTHER_BOXES = 2, OTHER_BYTES = OTHER_BOXES * K::BOX_BYTES;
    // Shared memory, in bytes: K, the other CTA's K, V, Q [Q_STAGES], dO [DO_STAGES], dS [DS_STAGES], the other's dS
    static constexpr int OTHER_K_AT = K::BYTES, V_AT = OTHER_K_AT + OTHER_BYTES, Q_AT = V_AT + K::BYTES;
    static constexpr int DO_AT = Q_AT + Q_STAGES * Q::BYTES, DS_AT = DO_AT + DO_STAGES * Q::BYTES;
    static constexpr int OTHER_DS_AT = DS_AT + DS_STAGES * dS::BYTES;
    static constexpr int BYTES = OTHER_DS_AT + DS_STAGES * dS::BYTES + hopper::ALIGNMENT;
    static_assert(BYTES <= hopper::MAX_SHARED);

    static __device__ __forceinline__ int rank() { return blockIdx.x % CTAS; }
    static __device__ __forceinline__ int first_key() { return rank() * hopper::GROUP_ROWS; }

    // A group's piece of dQ: 64 columns for `values`, the rest for `keys`, all within one box.
    static constexpr int PIECES = CTAS * GROUPS;
    static __host__ __device__ constexpr int columns_of(int group) { return group == 0 ? 64 : D / 2 - 64; }
    static __device__ __forceinline__ int first_column(int group) {
        return group == 0 ? rank() * (D - 64) : rank() == 0 ? 64 : D / 2;
    }
    static __device__ __forceinline__ int piece_of(int group) { return rank() * GROUPS + group; }
    static __device__ __forceinline__ int piece_begin(int group) { return first_column(group) * B_r; }
    static __device__ __forceinline__ int piece_at(int group, int stage) {
        return (group == 0 ? DO_AT : Q_AT) + stage * Q::BYTES;
    }
    static __device__ __forceinline__ int piece_bytes(int group) {
        return columns_of(group) * B_r * static_cast<int>(sizeof(float));
    }
    static __device__ __forceinline__ int first_other_box() { return rank() * (K::BOXES - OTHER_BOXES); }

    template <class Stages, class Ring>
    static __device__ __forceinline__ void fill_keys(Stages& stages, const Ring& ring, unsigned char* shared,
                                                     const CUtensorMap& key, int row, int head, int batch) {
        using namespace hopper;
        Mbarrier& full = stages.full[ring.stage()];
        mbarrier_expect(full, K::BYTES + OTHER_BYTES);
        for (int i = 0; i < K::BOXES; ++i)
            tma_load(shared + i * K::BOX_BYTES, key, full, i * TMA_COLS, row + first_key(), head, batch);
        const int other_row = row + GROUP_ROWS - first_key();
        for (int i = 0; i < OTHER_BOXES; ++i)
            tma_load(shared + OTHER_K_AT + i * K::BOX_BYTES, key, full, (first_other_box() + i) * TMA_COLS, other_row,
                     head, batch);
    }

    // Rank 0 draws a work tile from a counter and sends its number to rank 1. Two stages are enough: before rank 0
    // draws the work tile after the next one, both CTAs have finished the current one.
    struct Numbers {
        int* counter;
        hopper::Ring<2> ring = {};

        template <class Barriers>
        __device__ __forceinline__ int next(Barriers& barriers) {
            const int stage = ring.stage();
            hopper::Mbarrier& full = barriers.number.full[stage];
            int number;
            if (rank() == 0) {
                number = atomicAdd(counter, 1);
                hopper::cluster_send(&barriers.numbers[stage], number, full, 1);
            } else {
                hopper::mbarrier_expect(full, sizeof(int));
                hopper::mbarrier_wait(full, ring.parity());
                number = barriers.numbers[stage];
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
    hopper::Stages<S::K_STAGES> k;
    hopper::Stages<1> v;
    hopper::Stages<S::Q_STAGES> q;
    hopper::Stages<S::DO_STAGES> grad_out;
    // On the same stages: P^T is ready; dS^T is ready, or both CTAs have computed dQ; the other CTA's dS^T is ready
    hopper::Stages<S::DS_STAGES> weights, ds, other_ds;
    hopper::Stages<S::DQ_STAGES> dq[S::GROUPS];  // only `full`: Q and dO become empty when dQ has been read
    hopper::Stages<2> number;
    int numbers[2];

    __device__ void init() {
        constexpr int ONE = S::GROUP_WARPS, BOTH = S::GROUPS * ONE;
        k.init(BOTH + S::GROUPS + 1);  // the adders and the sender read the work tile, too
        v.init(ONE), q.init(1), grad_out.init(1), number.init(1);
        weights.init(ONE, ONE), ds.init(S::CTAS * BOTH, ONE), other_ds.init(1);
        for (auto& piece : dq) piece.init(1, ONE);
        hopper::mbarrier_init_done();
    }
    // Where an adder arrives when it has read a group's piece.
    __device__ __forceinline__ hopper::Mbarrier& read(int group, int stage) {
        return group == 0 ? grad_out.empty[stage] : q.empty[stage];
    }
};

// ----------------------------------------------------------------------------------------------------- 2. Exchange

// One thread sends every tile's dS^T to the other CTA. The stage there is free: dS^T is written only after both CTAs
// have released it.
template <class S>
__device__ __forceinline__ void send_ds(const typename S::Problem& a, Barriers<S>& barriers, const StageData<S>& data,
                                        const unsigned char* shared) {
    using namespace hopper;
    Ring<S::K_STAGES> k;
    Ring<S::DS_STAGES> ds;
    for (;; k.advance()) {
        wait_for(barriers.k, k);
        const int tiles = data.work_tiles[k.stage()].tiles * a.group;
        mbarrier_arrive(barriers.k.empty[k.stage()]);
        if (tiles == 0) return;
        NO_UNROLL
        for (int t = 0; t < tiles; ++t, ds.advance()) {
            const int at = ds.stage() * S::dS::BYTES;
            wait_for(barriers.ds, ds);
            mbarrier_expect(barriers.other_ds.full[ds.stage()], S::dS::BYTES);
            cluster_send(shared + S::OTHER_DS_AT + at, shared + S::DS_AT + at, S::dS::BYTES,
                         barriers.other_ds.full[ds.stage()], 1 - S::rank());
        }
    }
}

// A group's columns of dQ [STEP][columns_of(GROUP)]: dS K over this CTA's keys and the other one's.
template <class S, int GROUP>
struct QueryPiece {
    static constexpr int N8 = S::columns_of(GROUP) / 8;
    unsigned char* shared;
    Operands<S>& operands;
    float dq[N8][4];

    __device__ __forceinline__ void start(int ds, int key, int column, bool add) {
        const int k_at = key + column / 64 * S::K::BOX_BYTES + column % 64 * 2;
        using namespace hopper;
        start_columns_by_rows<typename S::T, GROUP_ROWS>(dq, operands.mn_major(ds), operands.mn_major(k_at), add);
        wgmma_commit();
    }
    __device__ __forceinline__ void start_own(int stage) {
        start(S::DS_AT + stage * S::dS::BYTES, 0, S::first_column(GROUP), false);
    }
    __device__ __forceinline__ void start_other(int stage) {
        start(S::OTHER_DS_AT + stage * S::dS::BYTES, S::OTHER_K_AT, S::first_column(GROUP) - S::first_other_box() * 64,
              true);
    }
    // After both. The barrier is needed because other warps of the group may still read what the piece overwrites.
    __device__ __forceinline__ void finish(Barriers<S>& barriers, int ds_stage, int stage) {
        using namespace hopper;
        keep_order(dq);
        if (threadIdx.x % 32 == 0) {
            mbarrier_arrive(barriers.ds.empty[ds_stage]);
            mbarrier_arrive(barriers.ds.empty[ds_stage], 1 - S::rank());
        }
        asm volatile("bar.sync %0, %1;" ::"n"(1 + GROUP), "n"(GROUP_THREADS) : "memory");
        float4* to = reinterpret_cast<float4*>(shared + S::piece_at(GROUP, stage)) + threadIdx.x % GROUP_THREADS;
        UNROLL
        for (int n = 0; n < N8; ++n)
            to[n * GROUP_THREADS] = make_float4(dq[n][0], dq[n][1], dq[n][2], dq[n][3]);
        signal_full(barriers.dq[GROUP], stage);
    }
};
