// sparse_attention_wgmma.cu - sparse attention, forward, float16 and bfloat16, for Hopper GPUs (sm_90a).
//
//   1. Shapes       Shape, Barriers                  what a block has in shared memory
//   2. Producer     produce                          asks for tiles
//   3. Consumers    start_qk, start_pv, consume      compute with them
//   4. Kernel       sparse_attention_wgmma_kernel
//   5. Launcher     hopper_forward
//
//   hopper_work.cuh    which rows and which tiles, for strided, causal, window and block-sparse masks
//   common/cuda/       hopper_tiles.cuh: tiles, products, slots, roles; hopper_rows.cuh: weights and output in
//                      registers; flash_softmax.cuh: the online softmax; below them wgmma.cuh, tma.cuh, mbarrier.cuh
//
// The algorithm is FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608). What differs from sparse_attention_mma.cu,
// which computes the same by mma.sync and cp.async:
//
//   1. wgmma. Four warps own 64 rows together. The tensor cores read Q, K and V in shared memory themselves, so that
//      nothing passes through ldmatrix and registers but P, and one instruction is 64 x 128 x 16 products. They work
//      while the warps go on; a warp waits for a result when it needs it.
//   2. TMA. One thread asks for a tile by its coordinates; the copy engine computes addresses, swizzles, and fills what
//      lies outside with zeros. Every stride-th row of K is a tensor map with a larger distance between rows: strided
//      attention is attention to a shorter sequence, read where it lies, and the rows between are never touched.
//   3. Warps with roles. A producer does nothing but ask for tiles, as far ahead as there is room; the consumers do
//      nothing but compute. They meet at barriers in shared memory, a pair for every slot. The producer needs few
//      registers and gives the others to the consumers: these hold S [64][128], P and O [64][D] of 4 warps.
//   4. Softmax under products. Q K^T of tile t is started first, P V of tile t - 1 behind it; as soon as the scores are
//      there, their softmax is computed while P V is still being worked on. The groups of a block do so at different
//      times, each under the products of the others.
//   5. Blocks that stay. There is one block per multiprocessor, and it takes one piece of work after the other. Q, K
//      and V of the next piece are on their way while the last is finished. With few tiles per piece (windows, large
//      strides) this is a good part of the time.
//
//   time ->      producer      Q K0 V0  K1 V1  K2 V2 ...
//                tensor cores      S0 |      S1 P0V0 |      S2 P1V1 | ...      of one group; the other fills the gaps
//                warps                softmax 0 -> P0  softmax 1 -> P1   ...
//
// Measured, what is in the way of more, and what was tried: README.md.
//
// Why sm_90a: wgmma and setmaxnreg exist in this target alone, not in sm_90 or later ones. For all other targets the
// kernel is empty and hopper_forward returns false, as it does in the simulator unless that runs code for sm_90a.
#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
#include "common/kernels/sparse/sparse.h"

bool hopper_forward(const SparseArguments&, bool) { return false; }  // not built for it
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/flash_softmax.cuh"
#include "common/cuda/hopper_rows.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/sparse/hopper_work.cuh"
#include "common/kernels/sparse/sparse.h"

// ------------------------------------------------------------------------------------------------- 1. Shapes
//
// A warpgroup has 64 rows, GROUPS of them make the B_r rows of a block. A tile of K or V is B_c keys, [B_c][D]. One more
// warpgroup is the producer.

template <typename T_, int D_, int GROUPS_>
struct Shape {
    using T = T_;
    static constexpr int D = D_, GROUPS = GROUPS_, SLOTS = 2;
    static constexpr int B_r = hopper::GROUP_ROWS * GROUPS, B_c = 128;
    static constexpr int THREADS = hopper::GROUP_THREADS * (1 + GROUPS);
    using Registers = hopper::RegisterShares<GROUPS>;
    // Shared memory, in bytes: SLOTS tiles of Q, of K and of V
    using Q = hopper::Tile<B_r, D>;
    using K = hopper::Tile<B_c, D>;
    static constexpr int K_AT = SLOTS * Q::BYTES, V_AT = K_AT + SLOTS * K::BYTES;
    static constexpr int BYTES = V_AT + SLOTS * K::BYTES + hopper::ALIGNMENT;
    static_assert(BYTES <= hopper::MAX_SHARED);
};

template <class S>
struct Barriers {
    hopper::Slots<S::SLOTS> q, k, v;
};

template <class S>
using WorkItem = Item<S::B_r, S::B_c>;

// ----------------------------------------------------------------------------------------------- 2. Producer

// One thread asks for everything, in the order in which it is used, as far ahead as there are slots.
template <class S>
__device__ __forceinline__ void produce(const Problem& a, Barriers<S>& barriers, unsigned char* shared) {
    using namespace hopper;
    Ring<S::SLOTS> q, kv;
    for_each_item<S::B_r, S::B_c>(a, [&](const WorkItem<S>& item) {
        const int batch = item.batch_head / a.heads, head = item.batch_head % a.heads, kv_head = head / a.group;
        wait_until_empty(barriers.q, q);
        fill<typename S::Q>(barriers.q, q, shared, a.query, item.q_start, head, batch);
        q.advance();
        NO_UNROLL
        for (int t = 0; t < item.tiles; ++t) {
            const int first_key = item.tile(a, t) * S::B_c;
            wait_until_empty(barriers.k, kv);
            fill<typename S::K>(barriers.k, kv, shared + S::K_AT, a.key, first_key, kv_head, batch);
            wait_until_empty(barriers.v, kv);
            fill<typename S::K>(barriers.v, kv, shared + S::V_AT, a.value, first_key, kv_head, batch);
            kv.advance();
        }
    });
}

// ---------------------------------------------------------------------------------------------- 3. Consumers

template <class S>
__device__ __forceinline__ void consume(const Problem& a, Barriers<S>& barriers, unsigned char* shared, int group) {
    using namespace hopper;
    using T = typename S::T;
    using Q = typename S::Q;
    using K = typename S::K;
    const int group_row = GROUP_ROWS * group, warp_row = group_row + threadIdx.x / 32 % 4 * 16;
    const KMajor q_at = k_major<Q>(shared, group_row), k_at = k_major<K>(shared + S::K_AT);
    const MnMajor v_at = mn_major<K>(shared + S::V_AT);
    Ring<S::SLOTS> q, k, v;
    const auto release = [&](Slots<S::SLOTS>& slots, Ring<S::SLOTS>& ring) {
        give_back(slots, ring.slot());
        ring.advance();
    };

    bool nan = false;  // in this lane's part of any item's output: see seen_row.cuh
    for_each_item<S::B_r, S::B_c>(a, [&](const WorkItem<S>& item) {
        const int first_row = item.q_start + warp_row;
        // What all rows of the group see needs no mask.
        const int all_from = span_of(a, item.q_start + group_row + 63).first;
        const int all_to = span_of(a, item.q_start + group_row).end - (S::B_c - 1) * a.key_step;
        float s[1][S::B_c / 8][4];
        unsigned p[S::B_c / 16][4];
        float o[1][S::D / 8][4];
        flash::RowState<1> rows;
        float ratio[2];
        const auto next_scores = [&] {  // K has been waited for
            start_rows_by_rows<T, Q, K>(s[0], q_at.plus(q.slot() * Q::BYTES), k_at.plus(k.slot() * K::BYTES));
            wgmma_commit();
        };
        const auto next_output = [&] {
            wait_for(barriers.v, v);
            start_weights_by_rows<T, K>(o[0], p, v_at.plus(v.slot() * K::BYTES));
            wgmma_commit();
        };
        // Scores -> powers. True if the output has to be scaled by `ratio` before the next product is added.
        const auto softmax = [&](int tile) {
            const int position = a.key_offset + tile * S::B_c * a.key_step;
            if (position < all_from || position >= all_to) hide(s, a, first_row, position);
            float top[2];
            const bool raise = flash::needs_rescale(top, rows, s, a.factor);
            if (raise) flash::raise_shifts(ratio, rows, top, a.factor);
            powers(s, rows, a.factor);
            return raise;
        };

        int tile = item.tile(a, 0);
        wait_for(barriers.q, q);
        wait_for(barriers.k, k);
        next_scores();
        mma::clear(o);
        wgmma_wait<0>();
        keep_order(s[0]);
        release(barriers.k, k);
        softmax(tile);
        round_weights<T>(p, s);
        if (item.tiles > 1) wait_for(barriers.k, k);
        NO_UNROLL
        for (int t = 1; t < item.tiles; ++t) {
            tile = item.tile(a, t);
            next_scores();
            next_output();
            wgmma_wait<1>();
            keep_order(s[0]);
            release(barriers.k, k);
            const bool raised = softmax(tile);
            // The compiler would put most powers off until P V is done, since it may move arithmetic across wgmma_wait,
            // but not across a wait that their sum decides about. (No sum is below 0.)
            const bool never = rows.sum[0] < 0 || rows.sum[1] < 0;
            if (t + 1 < item.tiles) mbarrier_wait(barriers.k.full[k.slot()], k.parity() ^ never);
            wgmma_wait<0>();
            keep_order(o[0]);
            release(barriers.v, v);
            if (raised) flash::scale_output(o, ratio);
            round_weights<T>(p, s);
        }
        release(barriers.q, q);
        next_output();
        wgmma_wait<0>();
        keep_order(o[0]);
        release(barriers.v, v);
        const int64_t at = int64_t{item.batch_head} * a.S_q + first_row;
        write_rows<T, S::D>(static_cast<T*>(a.out) + at * S::D, a.lse == nullptr ? nullptr : a.lse + at, o, rows,
                            a.S_q - first_row);
        nan |= attention::has_nan(o[0]);
    });
    if (!a.sources.hides_keys || !__any_sync(FULL_WARP, nan)) return;
    for_each_item<S::B_r, S::B_c>(a, [&](const WorkItem<S>& item) {
        const int first_row = item.q_start + warp_row;
        const int64_t at = int64_t{item.batch_head} * a.S_q + first_row;
        const int batch = item.batch_head / a.heads, head = item.batch_head % a.heads;
        compute_nan_again(a.sources, static_cast<T*>(a.out) + at * S::D, batch, head, head / a.group, first_row,
                          a.S_q - first_row, S::D, [&](int row, auto f) { for_each_seen<S::B_c>(a, item, row, f); });
    });
}

// ------------------------------------------------------------------------------------------------- 4. Kernel

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1) sparse_attention_wgmma_kernel(const __grid_constant__ Problem a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char bytes[];
    __shared__ Barriers<S> barriers;
    unsigned char* shared = hopper::aligned(bytes);
    if (threadIdx.x == 0) {
        for (auto* slots : {&barriers.q, &barriers.k, &barriers.v}) slots->init(4 * S::GROUPS);
        hopper::mbarrier_init_done();
    }
    __syncthreads();
    const int group = hopper::role_of_warpgroup();
    if (group == hopper::PRODUCER) {
        hopper::fewer_registers<S::Registers::OF_PRODUCER>();
        if (threadIdx.x == 0) produce<S>(a, barriers, shared);
    } else {
        hopper::more_registers<S::Registers::OF_CONSUMER>();
        consume<S>(a, barriers, shared, group);
    }
#endif
}

// ----------------------------------------------------------------------------------------------- 5. Launcher

template <class S>
static bool launch(const SparseArguments& a) {
    using T = typename S::T;
    Problem p = {};
    const hopper::RowShape rows = {a.batch, a.heads, a.S_q, S::D}, keys = {a.batch, a.kv_heads, a.S_k, S::D};
    if (!hopper::is_built(sparse_attention_wgmma_kernel<S>) || !divide<S::B_r, S::B_c>(p, a) ||
        !hopper::make_tensor_map<T>(p.query, a.query, rows, a.query_strides, S::B_r) ||
        !hopper::make_tensor_map<T>(p.key, a.key, keys, a.key_strides, S::B_c) ||
        !hopper::make_tensor_map<T>(p.value, a.value, keys, a.value_strides, S::B_c))
        return false;
    p.out = a.out;
    p.lse = a.lse;
    p.factor = a.scale * LOG2_E;
    p.sources.set(a, a.causal || a.window > 0);

    const int blocks = std::min(p.units, device_attribute(cudaDevAttrMultiProcessorCount));
    const auto kernel = sparse_attention_wgmma_kernel<S>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
    kernel<<<blocks, S::THREADS, S::BYTES, a.stream>>>(p);
    CUDA_CHECK_LAUNCH();
    return true;
}

// D = 128: two groups, since three have no room for S, P and O in registers. D = 64: the softmax is as much work as the
// products, and a third group hides more of it; but its 192 rows see more of what a window hides, and are not whole
// blocks of 128.
template <typename T>
static bool forward(const SparseArguments& a) {
    if (!(a.scale > 0) || (a.block != 0 && a.block != 128)) return false;
    if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
    if (a.head_dim == 128) return launch<Shape<T, 128, 2>>(a);
    if (a.head_dim != 64) return false;
    return a.block != 0 || a.window > 0 ? launch<Shape<T, 64, 2>>(a) : launch<Shape<T, 64, 3>>(a);
}

bool hopper_forward(const SparseArguments& a, bool bfloat16) {
    return bfloat16 ? forward<__nv_bfloat16>(a) : forward<__half>(a);
}
#endif
