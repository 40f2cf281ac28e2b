// hopper_backward_wide.cuh - the gradients of attention, float16 and bfloat16, head_dim 129 ... 256, for Hopper GPUs
// (sm_90a): the kernel.
//
//   1. Shapes       WideShape, Barriers             what a CTA has in shared memory
//   2. Consumers    consume_values, consume_keys    one group each
//   3. Kernel       flash_backward_wide_kernel
//
// With more than 128 columns the rows of dK and dV of 64 keys fill the registers of two groups of four warps. So a CTA
// has 64 keys, and of its two groups one has dV and what it needs, the other dK:
//
//   values   S^T = K Q^T      P^T = 2^(factor S^T - lse)     -> shared memory      dV += P^T dO
//   keys     dP^T = V dO^T    dS^T = P^T * (dP^T - delta)    -> in its place       dK += dS^T Q
//   both     dQ = dS K, 64 columns at a time: `values` has the first two pieces of them, `keys` the rest
//
//   1. P^T and dS^T are left in registers where the products with dO and Q want their first operand. A warp of `keys` reads
//      the P^T of 16 keys, has the same numbers in the same lanes as the warp of `values` had, and leaves dS^T there.
//   2. `values` is a tile ahead: the next tile's S^T is started behind dV, and its powers are computed while dQ is being
//      worked on. `keys` starts the next dP^T behind dK.
//   3. Shared memory is full. When dV of a tile is done, nothing reads its dO any longer, and `values` leaves its pieces of
//      dQ there; `keys` leaves its own where Q was. A slot goes back to the producer when TMA has added them to the sum.
//
//   time ->   values   dV1 S2 |   dQ1   | powers 2 | dQ1 | dV2 S3 |   dQ2   | ...      of one tile after another, beside
//             keys     dS1  | dK1 dP2 | dQ1 | dQ1 | dS2  | dK2 dP3 | dQ2 | ...         which each group fills the gaps
//
// Producer, adders, the work of a CTA and the policies are those of hopper_backward.cuh. What was measured: README.md.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "common/cuda/exp2.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/attention_policies.cuh"
#include "common/kernels/flash/hopper_backward_copies.cuh"
#include "common/kernels/flash/hopper_backward_work.cuh"

// ------------------------------------------------------------------------------------------------------- 1. Shapes

template <typename T_, int D_>
struct WideShape {
    using T = T_;
    static constexpr bool WIDE = true;
    static constexpr int D = D_, GROUPS = 2, STEP = 64, B_r = STEP, B_c = hopper::GROUP_ROWS;
    static constexpr int K_SLOTS = 1, Q_SLOTS = 2, DO_SLOTS = 2, DS_SLOTS = 2, DQ_SLOTS = 2;
    static constexpr int THREADS = hopper::GROUP_THREADS * (1 + GROUPS), GROUP_WARPS = 4;
    using Registers = hopper::RegisterShares<GROUPS>;
    using Q = hopper::Tile<B_r, D>;      // or dO
    using K = hopper::Tile<B_c, D>;      // or V
    using dS = hopper::Tile<B_c, STEP>;  // P^T, then dS^T
    // Pieces of dQ: of a tile; at most of a group. They lie where dO (values) and Q (keys) have been.
    static constexpr int PIECES = D / 64, OF_GROUP = 2, PIECE_BYTES = QuerySum<D>::PIECE * sizeof(float);
    static __host__ __device__ constexpr int pieces_of(int group) { return group == 0 ? OF_GROUP : PIECES - OF_GROUP; }
    // Shared memory, in bytes: K, V, Q [Q_SLOTS], dO [DO_SLOTS], dS [DS_SLOTS]
    static constexpr int SLOT_BYTES = std::max(Q::BYTES, OF_GROUP * PIECE_BYTES);  // of Q and dO
    static constexpr int V_AT = K_SLOTS * K::BYTES, Q_AT = V_AT + K::BYTES, DO_AT = Q_AT + Q_SLOTS * SLOT_BYTES;
    static constexpr int DS_AT = DO_AT + DO_SLOTS * SLOT_BYTES;
    static constexpr int BYTES = DS_AT + DS_SLOTS * dS::BYTES + hopper::ALIGNMENT;
    static_assert(BYTES <= hopper::MAX_SHARED);
    static __device__ __forceinline__ int pieces_at(int group, int slot) {
        return (group == 0 ? DO_AT : Q_AT) + slot * SLOT_BYTES;
    }
};

template <class S>
    requires(S::WIDE)
struct Barriers<S> {
    hopper::Slots<S::K_SLOTS> k;
    hopper::Slots<1> v;
    hopper::Slots<S::Q_SLOTS> q;
    hopper::Slots<S::DO_SLOTS> grad_out;
    hopper::Slots<S::DS_SLOTS> weights, ds;  // of the same slots: P^T is there; dS^T is, or dQ has been computed
    hopper::Slots<S::DQ_SLOTS * S::OF_GROUP> dq[S::GROUPS];  // full alone: Q and dO are empty when dQ has been read

    __device__ void init() {
        constexpr int ONE = S::GROUP_WARPS, BOTH = S::GROUPS * ONE;
        k.init(BOTH + S::GROUPS);  // the adders read the item, too
        v.init(ONE), q.init(1), grad_out.init(1), weights.init(ONE, ONE), ds.init(BOTH, ONE);
        for (auto& pieces : dq) pieces.init(1, ONE);
        hopper::mbarrier_init_done();
    }
    // What an adder says when it has read a group's pieces.
    __device__ __forceinline__ hopper::Mbarrier& read(int group, int slot) {
        return group == 0 ? grad_out.empty[slot] : q.empty[slot];
    }
};

// ---------------------------------------------------------------------------------------------------- 2. Consumers

// dQ [STEP][64] of one piece: dS K, and to where it is added from.   group: whose pieces
template <class S, int GROUP>
struct QueryPieces {
    unsigned char* shared;
    float dq[8][4];

    __device__ __forceinline__ void start(int piece, int ds_slot) {
        using namespace hopper;
        const MnMajor ds_at = mn_major<typename S::dS>(shared + S::DS_AT + ds_slot * S::dS::BYTES);
        const MnMajor k_columns_at = mn_major<typename S::K>(shared);
        const int box = GROUP * S::OF_GROUP + piece;
        start_columns_by_rows<typename S::T, S::B_c>(dq, ds_at, k_columns_at.plus(box * S::K::BOX_BYTES));
        wgmma_commit();
    }
    __device__ __forceinline__ void store(int piece, int slot) {
        hopper::keep_order(dq);
        unsigned char* to = shared + S::pieces_at(GROUP, slot) + piece * S::PIECE_BYTES;
        float4* at = reinterpret_cast<float4*>(to) + threadIdx.x % hopper::GROUP_THREADS;
        UNROLL
        for (int n = 0; n < 8; ++n)
            at[n * hopper::GROUP_THREADS] = make_float4(dq[n][0], dq[n][1], dq[n][2], dq[n][3]);
    }
    // All of them.   start_next(): a product that is started behind the last one, where there is one
    template <bool NEXT, class F>
    __device__ __forceinline__ void compute(Barriers<S>& barriers, int ds_slot, int slot, F start_next) {
        UNROLL
        for (int piece = 0; piece < S::pieces_of(GROUP); ++piece) {
            const bool last = piece == S::pieces_of(GROUP) - 1;
            start(piece, ds_slot);
            if constexpr (NEXT) {
                if (last) {
                    start_next();
                    hopper::wgmma_wait<1>();
                } else {
                    hopper::wgmma_wait<0>();
                }
            } else {
                hopper::wgmma_wait<0>();
            }
            if (last) hopper::give_back(barriers.ds, ds_slot);
            store(piece, slot);
            hopper::hand_over(barriers.dq[GROUP], slot * S::OF_GROUP + piece);
        }
    }
};

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
    const MnMajor do_rows_at = mn_major<Q>(shared + S::DO_AT);

    Ring<S::K_SLOTS> k;
    Ring<S::Q_SLOTS> q;                   // of the next tile
    Ring<S::DO_SLOTS> grad_out;
    Ring<S::DS_SLOTS> weights, ds;        // weights: of the next tile
    float dv[D / 8][4];                   // [64][D]
    float s[STEP / 8][4];                 // S^T, then P^T [64 keys][STEP rows]
    QueryPieces<S, 0> pieces{shared};
    unsigned p[STEP / 16][4];             // P^T, rounded
    [[maybe_unused]] int64_t seed = 0;
    if constexpr (DROPPED) seed = seed_of(a.dropout);

    const auto start_scores = [&] {
        wait_for(barriers.q, q);
        start_rows_by_rows<T, K, Q>(s, k_at, q_at.plus(q.slot() * S::SLOT_BYTES));
        wgmma_commit();
    };
    // Scores of a tile -> P^T in p and in shared memory. What dS = P^T ... wants more is there with it: the softcap's slope
    // as a factor, and for what dropout drops a sign.
    const auto weigh = [&](const typename S::Item& item, const Walk& walk) {
        const int row = walk.tile * S::B_r;
        if constexpr (CAPPED) cap_scores(s, a.inside);
        if (Keys::template hides<S>(a, item, item.k_start, 0, row)) Keys::template hide<S>(s, a, item, warp_key, row);
        wait_until_empty(barriers.ds, weights);
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
            unsigned to_ds[4] = {p[i][0], p[i][1], p[i][2], p[i][3]};
            UNROLL
            for (int r = 0; r < 4; ++r) {  // as in accumulators_as_a
                const int n = r / 2, e = r % 2 * 2;
                if constexpr (CAPPED)
                    to_ds[r] = mma::pack<T>(s[2 * i + n][e] * slope[n][e], s[2 * i + n][e + 1] * slope[n][e + 1]);
                if constexpr (DROPPED) {
                    const unsigned mask = kept[i % 2].mask(n, r % 2);
                    to_ds[r] |= ~mask & 0x80008000u;
                    p[i][r] &= mask;
                }
            }
            store_rows<dS>(shared + S::DS_AT + weights.slot() * dS::BYTES, warp_key, i, to_ds);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers.weights.full[weights.slot()]);
        weights.advance(), q.advance();
    };
    // A tile whose p is there.   walk: the tile's, then the next one's
    const auto do_tile = [&](const typename S::Item& item, Walk& walk, bool first, auto is_last) {
        constexpr bool LAST = decltype(is_last)::value;
        wait_for(barriers.grad_out, grad_out);
        start_weights_by_rows<T, Q>(dv, p, do_rows_at.plus(grad_out.slot() * S::SLOT_BYTES), !first);
        wgmma_commit();
        wait_for(barriers.ds, ds);
        pieces.template compute<!LAST>(barriers, ds.slot(), grad_out.slot(), start_scores);
        if constexpr (!LAST) {
            wgmma_wait<0>();
            keep_order(s);
            walk.advance(item);
            weigh(item, walk);
        }
        ds.advance(), grad_out.advance();
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
    const MnMajor q_rows_at = mn_major<Q>(shared + S::Q_AT);

    Ring<S::K_SLOTS> k;
    Ring<S::Q_SLOTS> q;
    Ring<S::DO_SLOTS> grad_out;
    Ring<S::DS_SLOTS> ds_ring;
    Ring<1> v;
    float dk[D / 8][4];           // [64][D]
    float dp[STEP / 8][4];        // dP^T [64 keys][STEP rows]
    QueryPieces<S, 1> pieces{shared};
    unsigned ds[STEP / 16][4];    // P^T, then dS^T

    const auto start_dp = [&] {
        wait_for(barriers.grad_out, grad_out);
        start_rows_by_rows<T, K, Q>(dp, v_at, do_at.plus(grad_out.slot() * S::SLOT_BYTES));
        wgmma_commit();
    };
    // dS, rounded, in registers and in shared memory
    const auto grade = [&] {
        unsigned char* tile = shared + S::DS_AT + ds_ring.slot() * dS::BYTES;
        wait_for(barriers.weights, ds_ring);
        load_rows<dS>(ds, tile, warp_key);
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
            store_rows<dS>(tile, warp_key, i, ds[i]);
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
        start_weights_by_rows<T, Q>(dk, ds, q_rows_at.plus(q.slot() * S::SLOT_BYTES), !first);
        wgmma_commit();
        wait_for(barriers.ds, ds_ring);
        pieces.template compute<!LAST>(barriers, ds_ring.slot(), q.slot(), start_dp);
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
        Keys::template store<S>(a, item, a.grad_key, item.k_start + warp_key, dk, a.scale);
    }
}

// ------------------------------------------------------------------------------------------------------- 3. Kernel

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
    const int group = hopper::role_of_warpgroup(), warp = threadIdx.x / 32;
    if (group == hopper::PRODUCER) {
        hopper::fewer_registers<S::Registers::OF_PRODUCER>();
        if (threadIdx.x % 32 != 0) return;
        if (warp < S::GROUPS)
            add_up<S>(a, barriers, beside, shared, warp);
        else if (warp == S::GROUPS)
            produce<S>(a, barriers, beside, shared);
    } else {
        hopper::more_registers<S::Registers::OF_CONSUMER>();
        if (group == 0)
            consume_values<S>(a, barriers, beside, shared);
        else
            consume_keys<S>(a, barriers, beside, shared);
    }
#endif
}
