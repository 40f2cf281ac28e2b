// flash_attention_wgmma.cuh - FlashAttention, forward, float16 and bfloat16, for Hopper GPUs (sm_90a): the kernel.
//
//   1. Shapes       Shape                tiles and their layout in shared memory
//   2. Policies     DensePolicy, OptionsPolicy    what an instance of the kernel supports; Barriers
//   3. Producer     produce              issues the TMA loads
//   4. Consumers    consume              compute
//   5. Kernel       flash_attention_wgmma_kernel
//   6. Launcher     make_maps, launch_wgmma
//
//   flash_attention_wgmma.cu           dense attention: its instances, and which shape for which problem
//   flash_attention_wgmma_options.cuh  attention with options
//   hopper_forward_work.cuh            work tiles: rows, and the tiles of keys that they see; the tile scheduler
//   hopper_forward_rows.cuh            rows before and after the loop over tiles of keys, with options
//   attention_policies.cuh             what the options do
//   common/cuda/                       hopper_tiles.cuh: tiles, GEMMs, pipeline stages, roles; hopper_rows.cuh: weights
//                                      and output in registers; flash_softmax.cuh: the online softmax
//
// The algorithm is FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608). Differences from flash_attention_mma.cuh,
// which computes the same with mma.sync and cp.async and supports what this kernel does not:
//
//   1. wgmma. Four warps own 64 rows together. The tensor cores read K and V, and usually Q, from shared memory and
//      run asynchronously; a warp waits for a result only when it needs it.
//   2. TMA. One thread issues a load by its coordinates; the hardware computes addresses, swizzles, and fills
//      everything outside the tensor with zeros: ragged ends, and the columns between head_dim and D.
//   3. Warp specialization. A producer issues loads as far ahead as the pipeline has stages; groups of consumers, 64
//      rows each, compute. The producer needs few registers and releases the rest to them.
//   4. Softmax overlapped with GEMMs. Q K^T of tile t is issued first, P V of tile t - 1 after it; as soon as the
//      scores arrive, their softmax is computed while P V is still running.
//   5. Persistent CTAs. One CTA per SM loops over work tiles; the next tile's first Q K^T is issued before the current
//      tile's epilogue.
//   6. Independent groups. A group computes the tiles of keys that its own rows see, not the CTA's (causal masks,
//      windows), and goes on to the next work tile. The number of stages limits how far it may run ahead of the others.
//
//   time ->      producer      Q K0 V0  K1 V1  K2 V2 ...                       Q' K0' V0' ...
//                tensor cores      S0 |      S1 P0V0 |      S2 P1V1 | ... PnVn S0' |       S1' P0'V0'   of one group;
//                warps                softmax 0 -> P0  softmax 1 -> P1    write O | softmax 0'          others fill
//                                                                                                       the gaps
//
// Why sm_90a: wgmma and setmaxnreg exist only in this target, not in sm_90 or later ones. For all other targets the
// kernel is empty and make_maps returns false. The simulator compiles it only for sm_90a.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "common/cuda/check.h"
#include "common/cuda/dependent_launch.cuh"
#include "common/cuda/flash_softmax.cuh"
#include "common/cuda/hopper_rows.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/attention_policies.cuh"
#include "common/kernels/flash/hopper_forward_rows.cuh"
#include "common/kernels/flash/hopper_forward_work.cuh"

// ------------------------------------------------------------------------------------------------- 1. Shapes
//
// GROUPS warpgroups of 64 rows make up the B_r rows of a CTA. A tile of K or V is B_c keys, and the pipeline has STAGES
// of each. Q_IN_REGISTERS: a group copies its rows of Q to registers at once, making room for the next work tile's;
// otherwise the tensor cores read them from shared memory, from one of Q_STAGES.

template <typename T_, int D_, int GROUPS_, int B_c_, int STAGES_, bool Q_IN_REGISTERS_, Order ORDER_, int Q_STAGES_ = 2>
struct Shape {
    using T = T_;
    static constexpr int D = D_, GROUPS = GROUPS_, STAGES = STAGES_, Q_STAGES = Q_IN_REGISTERS_ ? 1 : Q_STAGES_;
    static constexpr bool Q_IN_REGISTERS = Q_IN_REGISTERS_;
    static constexpr Order ORDER = ORDER_;
    static constexpr int B_r = hopper::GROUP_ROWS * GROUPS, B_c = B_c_;
    static constexpr int THREADS = hopper::GROUP_THREADS * (1 + GROUPS), CONSUMER_WARPS = 4 * GROUPS;
    using Registers = hopper::RegisterShares<GROUPS>;
    // Shared memory, in bytes: Q [Q_STAGES][B_r][D], K [STAGES][B_c][D], V [STAGES][B_c][D]
    using Q = hopper::Tile<B_r, D>;
    using K = hopper::Tile<B_c, D>;
    static constexpr int K_AT = Q_STAGES * Q::BYTES, V_AT = K_AT + STAGES * K::BYTES;
    static constexpr int BYTES = V_AT + STAGES * K::BYTES + hopper::ALIGNMENT;
    static_assert(BYTES <= hopper::MAX_SHARED);
    // More stages than the number of consecutive tiles that a group skips, see consume(): the last group skips none at
    // the end, the first none at the beginning, and those in between, with a window, no more than that in both places
    // together.
    static_assert(STAGES > ceil_div(B_r - hopper::GROUP_ROWS, B_c));
};

// ----------------------------------------------------------------------------------------------- 2. Policies

// What each instance of the kernel supports. Anything known only at run time (packed sequences, sinks, both alignments
// of a causal mask) costs a branch per work tile, none per tile of keys.
//
//   OPTIONS    the producer's scheduler finds the work tiles for all roles, and needs its whole warp for it
template <class Problem_, class Tile_, template <class> class Scheduler_>
struct Policy {
    using Problem = Problem_;
    using Tile = Tile_;
    template <class S>
    using Scheduler = Scheduler_<S>;
    static constexpr bool OPTIONS = false, SOFTCAP = false, DROPOUT = false;
};
using DensePolicy = Policy<ForwardProblem, WorkTile, TileScheduler>;
template <bool SOFTCAP_, bool DROPOUT_>
struct OptionsPolicy : Policy<BandProblem, BandTile, BandScheduler> {
    static constexpr bool OPTIONS = true, SOFTCAP = SOFTCAP_, DROPOUT = DROPOUT_;
};

// tiles: with options, the work tiles found by the producer's scheduler; each is published along with its Q. A warp
// that waits for a Q has finished the output of the work tile three before it.
template <class S, class P>
struct Barriers {
    static constexpr int TILES = 4;
    hopper::Stages<S::Q_STAGES> q;
    hopper::Stages<S::STAGES> k, v;
    typename P::Tile tiles[P::OPTIONS ? TILES : 1];

    __device__ void init() {
        q.init(S::CONSUMER_WARPS), k.init(S::CONSUMER_WARPS), v.init(S::CONSUMER_WARPS);
        hopper::mbarrier_init_done();
    }
};

// ----------------------------------------------------------------------------------------------- 3. Producer

// One thread issues all loads, in the order in which they are used, as far ahead as there are stages. The rest of its
// warp, if it gets here, helps the scheduler.
template <class S, class P>
__device__ __forceinline__ void produce(const typename P::Problem& a, Barriers<S, P>& barriers, unsigned char* shared) {
    using namespace hopper;
    Ring<S::Q_STAGES> q;
    Ring<S::STAGES> kv;
    typename P::template Scheduler<S> scheduler(a);
    typename P::Tile tile;
    [[maybe_unused]] int number = 0;
    for (; scheduler.take(tile); ++number) {
        if (threadIdx.x != 0) continue;
        const int batch = tile.batch(a), head = tile.head(a), kv_head = head / a.group;
        wait_until_empty(barriers.q, q);
        if constexpr (P::OPTIONS) barriers.tiles[number % barriers.TILES] = tile;
        fill<typename S::Q>(barriers.q, q, shared, a.query, tile.query_row(), head, batch);
        q.advance();
        NO_UNROLL
        for (int t = 0; t < tile.tiles; ++t) {
            const int key_row = tile.key_row(tile.key_tile(a, t) * S::B_c);
            wait_until_empty(barriers.k, kv);
            fill<typename S::K>(barriers.k, kv, shared + S::K_AT, a.key, key_row, kv_head, batch);
            wait_until_empty(barriers.v, kv);
            fill<typename S::K>(barriers.v, kv, shared + S::V_AT, a.value, key_row, kv_head, batch);
            kv.advance();
        }
    }
    if constexpr (P::OPTIONS) {
        if (threadIdx.x != 0) return;
        wait_until_empty(barriers.q, q);
        barriers.tiles[number % barriers.TILES].tiles = 0;
        mbarrier_arrive(barriers.q.full[q.stage()]);
    }
}

// ---------------------------------------------------------------------------------------------- 4. Consumers

// The tiles of keys begin ... end - 1 of a work tile that have a key visible to a group's rows; at least one. All its
// rows see all keys from all_from to all_to. first: the work tile's.
struct GroupTiles {
    int begin, end, all_from, all_to, first;
};
template <class S, class P>
__device__ __forceinline__ GroupTiles tiles_of_group(const typename P::Problem& a, const typename P::Tile& tile,
                                                     int first_row) {
    GroupTiles of = {0, 0, 0, tile.end_of_keys(a, first_row), tile.first};
    const int last_row = first_row + hopper::GROUP_ROWS - 1;
    if constexpr (P::Tile::HAS_WINDOW) {
        const int last = min(last_row, tile.rows(a) - 1);
        of.begin = max(min(tile.first_key_of(a, first_row) / S::B_c - tile.first, tile.tiles - 1), 0);
        of.end = min(max(ceil_div(tile.end_of_keys(a, last), S::B_c) - tile.first, of.begin + 1), tile.tiles);
        of.all_from = tile.first_key_of(a, last);
        if (last != last_row) of.all_to = 0;  // rows past the end see nothing, but the warp's vote must not count them
        if (tile.is_listed(a)) of.begin = 0, of.end = tile.tiles;
        // The shuffle tells the compiler that they are the same in all lanes: pipeline stages are then kept once per
        // warp.
        of.begin = __shfl_sync(FULL_WARP, of.begin, 0), of.end = __shfl_sync(FULL_WARP, of.end, 0);
        of.first = __shfl_sync(FULL_WARP, of.first, 0);
    } else {
        of.end = min(max(ceil_div(tile.end_of_keys(a, last_row), S::B_c), 1), tile.tiles);
    }
    return of;
}

template <class S, class P>
__device__ __forceinline__ void consume(const typename P::Problem& a, Barriers<S, P>& barriers, unsigned char* shared,
                                        int group) {
    using namespace hopper;
    using T = typename S::T;
    using Q = typename S::Q;
    using K = typename S::K;
    using Tile = typename P::Tile;
    constexpr int B_c = S::B_c, D = S::D;
    const int group_row = GROUP_ROWS * group, warp_row = group_row + threadIdx.x / 32 % 4 * 16;
    const KMajor q_at = k_major<Q>(shared, group_row), k_at = k_major<K>(shared + S::K_AT);
    const MnMajor v_at = mn_major<K>(shared + S::V_AT);
    Ring<S::Q_STAGES> q;
    Ring<S::STAGES> k, v;
    const auto release = [](auto& stages, auto& ring) {
        release_stage(stages, ring.stage());
        ring.advance();
    };
    const auto skip = [&](auto& stages, auto& ring, int from, int to) {
        NO_UNROLL
        for (int t = from; t < to; ++t) {
            wait_for(stages, ring);
            release(stages, ring);
        }
    };
    unsigned q_rows[S::Q_IN_REGISTERS ? D / 16 : 1][4];  // Q [64][D]
    float s[1][B_c / 8][4];                              // S [64][B_c], then the exponentials
    unsigned p[B_c / 16][4];                             // P [64][B_c]
    float o[1][D / 8][4];                                // O [64][D]
    [[maybe_unused]] Kept<false> kept[P::DROPOUT ? B_c / 16 : 1];

    // The work tiles of dense attention follow from their indices; others are read where the producer published them.
    std::conditional_t<P::OPTIONS, const Tile*, Tile> next;
    const auto at = [](const auto& held) -> const Tile& {
        if constexpr (P::OPTIONS)
            return *held;
        else
            return held;
    };
    typename P::template Scheduler<S> scheduler(a);
    [[maybe_unused]] int number = 0;
    // False if none is left; otherwise its Q has arrived.
    const auto take_tile = [&] {
        if constexpr (!P::OPTIONS)
            if (!scheduler.take(next)) return false;
        wait_for(barriers.q, q);
        if constexpr (P::OPTIONS) {
            next = &barriers.tiles[number++ % barriers.TILES];
            if (__shfl_sync(FULL_WARP, next->tiles, 0) == 0) return false;
        }
        if constexpr (S::Q_IN_REGISTERS) {
            load_rows<Q>(q_rows, shared, warp_row);
            __syncwarp();
            release(barriers.q, q);
        }
        return true;
    };
    const auto start_scores = [&] {  // K has already been waited for
        const KMajor keys = k_at.plus(k.stage() * K::BYTES);
        if constexpr (S::Q_IN_REGISTERS)
            start_rows_by_rows<T, K>(s[0], q_rows, keys);
        else
            start_rows_by_rows<T, Q, K>(s[0], q_at.plus(q.stage() * Q::BYTES), keys);
        wgmma_commit();
    };
    const auto start_output = [&](bool first) {
        wait_for(barriers.v, v);
        start_weights_by_rows<T, K>(o[0], p, v_at.plus(v.stage() * K::BYTES), !first);
        wgmma_commit();
    };

    bool nan = false;  // in this lane's part of any tile's output: see seen_row.cuh
    int64_t seed = 0;
    if constexpr (P::DROPOUT) seed = seed_of(a.dropout);
    if (!take_tile()) return;
    GroupTiles of_next = tiles_of_group<S, P>(a, at(next), at(next).q_start + group_row);
    if constexpr (Tile::HAS_WINDOW) skip(barriers.k, k, 0, of_next.begin), skip(barriers.v, v, 0, of_next.begin);
    wait_for(barriers.k, k);
    start_scores();
    for (bool more = true; more;) {
        const auto held = next;
        const Tile& tile = at(held);
        const GroupTiles of = of_next;
        const int first_row = tile.q_start + warp_row;
        flash::RowState<1> rows;
        float ratio[2];
        // Scores -> exponentials. True if the output must be scaled by `ratio` before the next P V is added.
        const auto softmax = [&](int t) {
            const int key = (tile.is_listed(a) ? tile.key_tile(a, t) : of.first + t) * B_c;
            if constexpr (P::SOFTCAP) cap_scores(s[0], a.inside);
            const int row = first_row + mma::d_row(threadIdx.x % 32, 0);
            if (key + B_c > of.all_to)
                hide_from(s, {tile.end_of_keys(a, row) - key, tile.end_of_keys(a, row + 8) - key});
            if constexpr (Tile::HAS_WINDOW)
                if (key < of.all_from)
                    hide_before(s[0], {tile.first_key_of(a, row) - key, tile.first_key_of(a, row + 8) - key});
            float top[2];
            const bool raise = flash::needs_rescale(top, rows, s, a.factor);
            if (raise) flash::raise_row_max(ratio, rows, top, a.factor);
            exponentials(s, rows, a.factor);
            if constexpr (P::DROPOUT) keep_weights(kept, a.dropout, seed, dropout_head(a, tile), first_row, key);
            return raise;
        };
        const auto round = [&] {
            round_weights<T>(p, s);
            if constexpr (P::DROPOUT) drop_weights(p, kept);
        };

        wgmma_wait<0>();
        keep_order(s[0]);
        release(barriers.k, k);
        softmax(of.begin);
        round();
        if (of.end > of.begin + 1) wait_for(barriers.k, k);
        NO_UNROLL
        for (int t = of.begin + 1; t < of.end; ++t) {
            start_scores();
            start_output(t == of.begin + 1);
            wgmma_wait<1>();
            keep_order(s[0]);
            release(barriers.k, k);
            const bool raised = softmax(t);
            // The compiler would sink most exponentials below P V: it may move arithmetic across wgmma_wait, but not
            // across a wait that depends on the row sums. (No sum is negative.)
            const bool never = rows.sum[0] < 0 || rows.sum[1] < 0;
            if (t + 1 < of.end) mbarrier_wait(barriers.k.full[k.stage()], k.parity() ^ never);
            wgmma_wait<0>();
            keep_order(o[0]);
            release(barriers.v, v);
            if (raised) flash::scale_output(o, ratio);
            round();
        }
        if constexpr (!S::Q_IN_REGISTERS) release(barriers.q, q);
        start_output(of.end == of.begin + 1);
        // Skips the tiles that only other rows of the CTA see: at the end of this work tile and, with windows, at the
        // start of the next. Neither the K of these nor the K after them needs the stage of V that is still in use:
        // there are more stages than such tiles.
        skip(barriers.k, k, of.end, tile.tiles);
        // The compiler can track in-flight wgmmas only through straight-line code: after the last tile Q K^T is issued
        // anyway, on whatever is left in the stage, and the result is discarded.
        more = take_tile();
        if (more) {
            of_next = tiles_of_group<S, P>(a, at(next), at(next).q_start + group_row);
            if constexpr (Tile::HAS_WINDOW) skip(barriers.k, k, 0, of_next.begin);
            wait_for(barriers.k, k);
        }
        start_scores();
        wgmma_wait<1>();
        keep_order(o[0]);
        release(barriers.v, v);
        skip(barriers.v, v, of.end, tile.tiles);
        if constexpr (Tile::HAS_WINDOW)
            if (more) skip(barriers.v, v, 0, of_next.begin);
        const int rows_left = tile.rows(a) - first_row;
        write_tile<T, D>(a, tile, first_row, rows_left, o, rows);
        nan |= attention::has_nan(o[0]);
    }
    wgmma_wait<0>();
    keep_order(s[0]);
    if constexpr (P::OPTIONS)
        if (a.cu_seqlens_q != nullptr) clear_rest<T>(a, threadIdx.x - GROUP_THREADS, S::THREADS - GROUP_THREADS);
    if (!a.sources.hides_keys || !__any_sync(FULL_WARP, nan)) return;
    typename P::template Scheduler<S> same(a);
    for (Tile tile; same.take(tile);) recompute_nan<T, S, P>(a, tile, tile.q_start + warp_row, seed);
}

// ------------------------------------------------------------------------------------------------- 5. Kernel

template <class S, class P>
__global__ void __launch_bounds__(S::THREADS, 1)
    flash_attention_wgmma_kernel(const __grid_constant__ typename P::Problem a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char bytes[];
    __shared__ Barriers<S, P> barriers;
    unsigned char* shared = hopper::aligned(bytes);
    if (threadIdx.x == 0) barriers.init();
    __syncthreads();
    launch_dependents();
    wait_for_predecessor();
    const int group = hopper::role_of_warpgroup();
    if (group == hopper::PRODUCER) {
        hopper::fewer_registers<S::Registers::OF_PRODUCER>();
        if (threadIdx.x < (P::OPTIONS ? 32 : 1)) produce<S, P>(a, barriers, shared);
    } else {
        hopper::more_registers<S::Registers::OF_CONSUMER>();
        consume<S, P>(a, barriers, shared, group);
    }
#endif
}

// ----------------------------------------------------------------------------------------------- 6. Launcher

// Whether the kernel is built for this GPU and TMA can address the tensors; if so, p has their tensor maps.
//   rows, keys: shapes of query and of key and value
template <class S, class P>
bool make_maps(typename P::Problem& p, const AttentionArguments& a, hopper::RowShape rows, hopper::RowShape keys) {
    using T = typename S::T;
    return hopper::is_built(flash_attention_wgmma_kernel<S, P>) &&
           hopper::make_tensor_map<T>(p.query, a.query, rows, a.query_strides, S::B_r) &&
           hopper::make_tensor_map<T>(p.key, a.key, keys, a.key_strides, S::B_c) &&
           hopper::make_tensor_map<T>(p.value, a.value, keys, a.value_strides, S::B_c);
}

template <class S, class P>
void launch_wgmma(const typename P::Problem& p, int blocks, cudaStream_t stream) {
    const auto kernel = flash_attention_wgmma_kernel<S, P>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
    launch_after(kernel, static_cast<unsigned>(blocks), S::THREADS, S::BYTES, stream, p);
}
