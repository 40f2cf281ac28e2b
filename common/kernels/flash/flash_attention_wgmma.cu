// flash_attention_wgmma.cu - FlashAttention, forward, float16 and bfloat16, for Hopper GPUs (sm_90a).
//
//   1. Shapes       Shape, Barriers      what a block has in shared memory
//   2. Producer     produce              asks for tiles
//   3. Consumers    consume              compute with them
//   4. Kernel       flash_attention_wgmma_kernel
//   5. Launcher     hopper_takes, hopper_forward
//
//   hopper_forward_work.cuh: which rows and tiles a block has, and in which order
//   common/cuda/    hopper_tiles.cuh: tiles, products, slots, roles; hopper_rows.cuh: weights and output in registers;
//                   flash_softmax.cuh: the online softmax; below them wgmma.cuh, tma.cuh, mbarrier.cuh
//
// The algorithm is FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608). What differs from flash_attention_mma.cu,
// which computes the same by mma.sync and cp.async, and takes what this kernel does not:
//
//   1. wgmma. Four warps own 64 rows together. The tensor cores read K and V, and mostly Q, in shared memory
//      themselves, and work while the warps go on; a warp waits for a result when it needs it.
//   2. TMA. One thread asks for a tile by its coordinates; the copy engine computes addresses, swizzles, and fills what
//      lies outside with zeros: ragged ends, and the columns between head_dim and D.
//   3. Warps with roles. A producer asks for tiles, as far ahead as there are slots; groups of consumers, 64 rows each,
//      compute. The producer needs few registers and gives the others away.
//   4. Softmax under products. Q K^T of tile t is started first, P V of tile t - 1 behind it; as soon as the scores are
//      there, their softmax is computed while P V is still being worked on.
//   5. Pieces of work without a seam. There is one block per multiprocessor, and it takes one item after the other. The
//      first scores of the next item are started before the last output of this one has been waited for and written.
//   6. Groups that drift. Under a causal mask a group stops at the last tile that its own rows see, not the block's,
//      and goes on to the next item. The slots decide how far it may be ahead of the others.
//
//   time ->      producer      Q K0 V0  K1 V1  K2 V2 ...                       Q' K0' V0' ...
//                tensor cores      S0 |      S1 P0V0 |      S2 P1V1 | ... PnVn S0' |       S1' P0'V0'   of one group;
//                warps                softmax 0 -> P0  softmax 1 -> P1    write O | softmax 0'          others fill
//                                                                                                       the gaps
//
// Which shape for which problem, what was measured, and what was tried: README.md.
//
// Why sm_90a: wgmma and setmaxnreg exist in this target alone, not in sm_90 or later ones. For all other targets the
// kernel is empty and hopper_forward returns false, as it does in the simulator unless that runs code for sm_90a.
#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
#include "common/kernels/flash/flash.h"

bool hopper_takes(const FlashArguments&, bool) { return false; }  // not built for it
bool hopper_forward(const FlashArguments&, bool) { return false; }
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/check.h"
#include "common/cuda/flash_launch.h"
#include "common/cuda/flash_softmax.cuh"
#include "common/cuda/hopper_rows.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/hopper_forward_work.cuh"

// ------------------------------------------------------------------------------------------------- 1. Shapes
//
// GROUPS warpgroups of 64 rows make the B_r rows of a block. A tile of K or V is B_c keys, and there is room for SLOTS
// of each. Q_IN_REGISTERS: a group copies its rows of Q there at once, so that the next item's may come; otherwise the
// tensor cores read them in shared memory, in one of two slots.

template <typename T_, int D_, int GROUPS_, int B_c_, int SLOTS_, bool Q_IN_REGISTERS_, Order ORDER_>
struct Shape {
    using T = T_;
    static constexpr int D = D_, GROUPS = GROUPS_, SLOTS = SLOTS_, Q_SLOTS = Q_IN_REGISTERS_ ? 1 : 2;
    static constexpr bool Q_IN_REGISTERS = Q_IN_REGISTERS_;
    static constexpr Order ORDER = ORDER_;
    static constexpr int B_r = hopper::GROUP_ROWS * GROUPS, B_c = B_c_;
    static constexpr int THREADS = hopper::GROUP_THREADS * (1 + GROUPS), CONSUMER_WARPS = 4 * GROUPS;
    using Registers = hopper::RegisterShares<GROUPS>;
    // Shared memory, in bytes: Q [Q_SLOTS][B_r][D], K [SLOTS][B_c][D], V [SLOTS][B_c][D]
    using Q = hopper::Tile<B_r, D>;
    using K = hopper::Tile<B_c, D>;
    static constexpr int K_AT = Q_SLOTS * Q::BYTES, V_AT = K_AT + SLOTS * K::BYTES;
    static constexpr int BYTES = V_AT + SLOTS * K::BYTES + hopper::ALIGNMENT;
    static_assert(BYTES <= hopper::MAX_SHARED);
    // A group sees at most so many tiles less than another one of the block, see consume().
    static_assert(SLOTS > ceil_div(B_r - hopper::GROUP_ROWS, B_c));
};

// Which is for what: forward() below.
template <typename T>
using D64 = Shape<T, 64, 4, 64, 8, false, Order::SNAKE>;
template <typename T>
using D64FewRows = Shape<T, 64, 2, 64, 8, false, Order::SNAKE>;
template <typename T>
using D64ManyKeys = Shape<T, 64, 3, 128, 4, false, Order::SNAKE>;
template <typename T>
using D128 = Shape<T, 128, 2, 128, 3, true, Order::FOLDED>;
template <typename T>
using D128ManyKeys = Shape<T, 128, 3, 80, 3, false, Order::SNAKE>;

template <class S>
struct Barriers {
    hopper::Slots<S::Q_SLOTS> q;
    hopper::Slots<S::SLOTS> k, v;

    __device__ void init() {
        q.init(S::CONSUMER_WARPS), k.init(S::CONSUMER_WARPS), v.init(S::CONSUMER_WARPS);
        hopper::mbarrier_init_done();
    }
};

// ----------------------------------------------------------------------------------------------- 2. Producer

// One thread asks for everything, in the order in which it is used, as far ahead as there are slots.
template <class S>
__device__ __forceinline__ void produce(const Problem& a, Barriers<S>& barriers, unsigned char* shared) {
    using namespace hopper;
    Ring<S::Q_SLOTS> q;
    Ring<S::SLOTS> kv;
    Items<S> items(a);
    for (Item item; items.take(item);) {
        const int batch = item.batch_head / a.heads, head = item.batch_head % a.heads, kv_head = head / a.group;
        wait_until_empty(barriers.q, q);
        fill<typename S::Q>(barriers.q, q, shared, a.query, item.q_start, head, batch);
        q.advance();
        NO_UNROLL
        for (int t = 0; t < item.tiles; ++t) {
            const int first_key = (item.first + t) * S::B_c;
            wait_until_empty(barriers.k, kv);
            fill<typename S::K>(barriers.k, kv, shared + S::K_AT, a.key, first_key, kv_head, batch);
            wait_until_empty(barriers.v, kv);
            fill<typename S::K>(barriers.v, kv, shared + S::V_AT, a.value, first_key, kv_head, batch);
            kv.advance();
        }
    }
}

// ---------------------------------------------------------------------------------------------- 3. Consumers

template <class S>
__device__ __forceinline__ void consume(const Problem& a, Barriers<S>& barriers, unsigned char* shared, int group) {
    using namespace hopper;
    using T = typename S::T;
    using Q = typename S::Q;
    using K = typename S::K;
    constexpr int B_c = S::B_c, D = S::D;
    const int group_row = GROUP_ROWS * group, warp_row = group_row + threadIdx.x / 32 % 4 * 16;
    const KMajor q_at = k_major<Q>(shared, group_row), k_at = k_major<K>(shared + S::K_AT);
    const MnMajor v_at = mn_major<K>(shared + S::V_AT);
    Ring<S::Q_SLOTS> q;
    Ring<S::SLOTS> k, v;
    const auto release = [](auto& slots, auto& ring) {
        give_back(slots, ring.slot());
        ring.advance();
    };
    unsigned q_rows[S::Q_IN_REGISTERS ? D / 16 : 1][4];  // Q [64][D]
    float s[1][B_c / 8][4];                              // S [64][B_c], then the powers
    unsigned p[B_c / 16][4];                             // P [64][B_c]
    float o[1][D / 8][4];                                // O [64][D]

    const auto wait_for_item = [&] {
        wait_for(barriers.q, q);
        if constexpr (S::Q_IN_REGISTERS) {
            load_rows<Q>(q_rows, shared, warp_row);
            __syncwarp();
            release(barriers.q, q);
        }
        wait_for(barriers.k, k);
    };
    const auto start_scores = [&] {  // K has been waited for
        const KMajor keys = k_at.plus(k.slot() * K::BYTES);
        if constexpr (S::Q_IN_REGISTERS)
            start_rows_by_rows<T, K>(s[0], q_rows, keys);
        else
            start_rows_by_rows<T, Q, K>(s[0], q_at.plus(q.slot() * Q::BYTES), keys);
        wgmma_commit();
    };
    const auto start_output = [&](bool first) {
        wait_for(barriers.v, v);
        start_weights_by_rows<T, K>(o[0], p, v_at.plus(v.slot() * K::BYTES), !first);
        wgmma_commit();
    };

    bool nan = false;  // in this lane's part of any item's output: see seen_row.cuh
    Items<S> items(a);
    Item next;
    if (!items.take(next)) return;
    wait_for_item();
    start_scores();
    for (bool more = true; more;) {
        const Item item = next;
        const int first_row = item.q_start + warp_row, group_start = item.q_start + group_row;
        const int all_see = keys_seen(a, group_start);  // keys before this one need no mask
        const int tiles = min(max(ceil_div(keys_seen(a, group_start + GROUP_ROWS - 1), B_c), 1), item.tiles);
        flash::RowState<1> rows;
        float ratio[2];
        // Scores -> powers. True if the output has to be scaled by `ratio` before the next product is added.
        const auto softmax = [&](int t) {
            const int key = (item.first + t) * B_c;
            if (key + B_c > all_see) {
                const int row = first_row + mma::d_row(threadIdx.x % 32, 0);
                hide_from(s, {keys_seen(a, row) - key, keys_seen(a, row + 8) - key});
            }
            float top[2];
            const bool raise = flash::needs_rescale(top, rows, s, a.factor);
            if (raise) flash::raise_shifts(ratio, rows, top, a.factor);
            powers(s, rows, a.factor);
            return raise;
        };

        wgmma_wait<0>();
        keep_order(s[0]);
        release(barriers.k, k);
        softmax(0);
        round_weights<T>(p, s);
        if (tiles > 1) wait_for(barriers.k, k);
        NO_UNROLL
        for (int t = 1; t < tiles; ++t) {
            start_scores();
            start_output(t == 1);
            wgmma_wait<1>();
            keep_order(s[0]);
            release(barriers.k, k);
            const bool raised = softmax(t);
            // The compiler would put most powers off until P V is done, since it may move arithmetic across wgmma_wait,
            // but not across a wait that their sum decides about. (No sum is below 0.)
            const bool never = rows.sum[0] < 0 || rows.sum[1] < 0;
            if (t + 1 < tiles) mbarrier_wait(barriers.k.full[k.slot()], k.parity() ^ never);
            wgmma_wait<0>();
            keep_order(o[0]);
            release(barriers.v, v);
            if (raised) flash::scale_output(o, ratio);
            round_weights<T>(p, s);
        }
        if constexpr (!S::Q_IN_REGISTERS) release(barriers.q, q);
        start_output(tiles == 1);
        // What only later rows of the block see goes by. Neither these K nor those of the next item need the slot of V
        // that is still in use: there are more slots than such tiles.
        NO_UNROLL
        for (int t = tiles; t < item.tiles; ++t) {
            wait_for(barriers.k, k);
            release(barriers.k, k);
        }
        // The compiler follows what is under way through straight code only: after the last item the product is started
        // all the same, with what is left in the slot, and nobody looks at it.
        more = items.take(next);
        if (more) wait_for_item();
        start_scores();
        wgmma_wait<1>();
        keep_order(o[0]);
        release(barriers.v, v);
        NO_UNROLL
        for (int t = tiles; t < item.tiles; ++t) {
            wait_for(barriers.v, v);
            release(barriers.v, v);
        }
        const int64_t at = int64_t{item.batch_head} * a.S_q + first_row;
        write_rows<T, D>(static_cast<T*>(a.out) + at * a.head_dim, a.lse == nullptr ? nullptr : a.lse + at, o, rows,
                         a.S_q - first_row, a.head_dim);
        nan |= attention::has_nan(o[0]);
    }
    wgmma_wait<0>();
    keep_order(s[0]);
    if (!a.sources.hides_keys || !__any_sync(FULL_WARP, nan)) return;
    Items<S> same(a);
    for (Item item; same.take(item);) {
        const int first_row = item.q_start + warp_row;
        const int64_t at = int64_t{item.batch_head} * a.S_q + first_row;
        const int batch = item.batch_head / a.heads, head = item.batch_head % a.heads;
        compute_nan_again(a.sources, static_cast<T*>(a.out) + at * a.head_dim, batch, head, head / a.group, first_row,
                          a.S_q - first_row, a.head_dim, [&](int row, auto f) {
                              const int end = keys_seen(a, row);
                              for (int key = 0; key < end; ++key) f(key);
                          });
    }
}

// ------------------------------------------------------------------------------------------------- 4. Kernel

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1) flash_attention_wgmma_kernel(const __grid_constant__ Problem a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char bytes[];
    __shared__ Barriers<S> barriers;
    unsigned char* shared = hopper::aligned(bytes);
    if (threadIdx.x == 0) barriers.init();
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

// False, with nothing done, if the kernel does not take the problem or is not built for this GPU.
template <class S>
static bool launch(const FlashArguments& a, bool dry) {
    using T = typename S::T;
    Problem p = {};
    const hopper::RowShape rows = {a.batch, a.heads, a.S_q, a.head_dim};
    const hopper::RowShape keys = {a.batch, a.kv_heads, a.S_k, a.head_dim};
    if (!hopper::is_built(flash_attention_wgmma_kernel<S>) ||
        !hopper::make_tensor_map<T>(p.query, a.query, rows, a.query_strides, S::B_r) ||
        !hopper::make_tensor_map<T>(p.key, a.key, keys, a.key_strides, S::B_c) ||
        !hopper::make_tensor_map<T>(p.value, a.value, keys, a.value_strides, S::B_c))
        return false;
    if (dry) return true;
    const int blocks = set_work(p, a, S::B_r);
    const auto kernel = flash_attention_wgmma_kernel<S>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
    kernel<<<blocks, S::THREADS, S::BYTES, a.stream>>>(p);
    CUDA_CHECK_LAUNCH();
    return true;
}

// How long a shape takes: the items of the fullest multiprocessor (of the average one under a causal mask, whose short
// items fill up) times what one of them takes, in units that are the same for one D.
template <class S>
static double estimate(const FlashArguments& a, double each) {
    const double items = static_cast<double>(a.batch * a.heads * ceil_div(a.S_q, int64_t{S::B_r}));
    const double rounds = items / device_attribute(cudaDevAttrMultiProcessorCount);
    return each * std::max(1.0, a.causal ? rounds : std::ceil(rounds));
}

// What an item of each shape takes was measured, and so was from how many keys on the last of each D is the fastest at
// all: README.md.
template <typename T>
static bool forward(const FlashArguments& a, bool dry) {
    constexpr int64_t MANY = int64_t{1} << 28;
    if (a.mask.kind != MaskKind::NONE || a.key_step != 1 || !(a.scale > 0) || !in_pieces<T>(a)) return false;
    if (std::max({a.S_q, a.S_k, a.batch * a.heads * ceil_div(a.S_q, int64_t{64}), std::abs(a.diagonal)}) > MANY)
        return false;
    if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
    if (a.head_dim <= 64) {
        const double few = estimate<D64FewRows<T>>(a, 1.0), most = estimate<D64<T>>(a, 1.7);
        if (!a.causal && a.S_k >= 4096 && estimate<D64ManyKeys<T>>(a, 1.2) < std::min(few, most))
            return launch<D64ManyKeys<T>>(a, dry);
        return few < most ? launch<D64FewRows<T>>(a, dry) : launch<D64<T>>(a, dry);
    }
    const bool many_keys = a.S_k >= (a.causal ? 8192 : 2048);
    if (many_keys && estimate<D128ManyKeys<T>>(a, 1.44) < estimate<D128<T>>(a, 1.0))
        return launch<D128ManyKeys<T>>(a, dry);
    return launch<D128<T>>(a, dry);
}

bool hopper_takes(const FlashArguments& a, bool bfloat16) {
    return bfloat16 ? forward<__nv_bfloat16>(a, true) : forward<__half>(a, true);
}

bool hopper_forward(const FlashArguments& a, bool bfloat16) {
    return bfloat16 ? forward<__nv_bfloat16>(a, false) : forward<__half>(a, false);
}
#endif
