// sparse_attention_wgmma.cu - sparse attention, forward, float16 and bfloat16, for Hopper GPUs (sm_90a).
//
//   1. Shapes       Shape, Barriers                  what a block has in shared memory
//   2. Producer     produce                          asks for tiles
//   3. Consumers    start_qk, start_pv, consume      compute with them
//   4. Kernel       sparse_attention_wgmma_kernel
//   5. Launcher     hopper_forward
//
//   hopper_work.cuh    which rows and which tiles, for strided, causal, window and block-sparse masks
//   hopper_rows.cuh    masks and weights in registers, the output
//   common/cuda/       wgmma.cuh: tensor cores; tma.cuh: the copy engine; mbarrier.cuh: how it and warps wait for each
//                      other; flash_softmax.cuh: the online softmax
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
// kernel is empty and hopper_forward returns false, as it does in the simulator, which has no wgmma.
#ifdef CUDA_SIMULATOR
#include "common/kernels/sparse/sparse.h"

bool hopper_forward(const SparseArguments&, bool) { return false; }  // the simulator has no wgmma
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/flash_softmax.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/mbarrier.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/shared_offset.cuh"
#include "common/cuda/tma.cuh"
#include "common/cuda/wgmma.cuh"
#include "common/kernels/sparse/hopper_rows.cuh"
#include "common/kernels/sparse/hopper_work.cuh"
#include "common/kernels/sparse/sparse.h"

// ------------------------------------------------------------------------------------------------- 1. Shapes
//
// A warpgroup has 64 rows, GROUPS of them make the B_r rows of a block. A tile of K or V is B_c keys, [B_c][D], in
// boxes of 64 columns one behind the other (tma.cuh). One more warpgroup is the producer.

template <typename T_, int D_, int GROUPS_>
struct Shape {
    using T = T_;
    static constexpr int D = D_, GROUPS = GROUPS_, SLOTS = 2;
    static constexpr int B_r = 64 * GROUPS, B_c = 128, THREADS = 128 * (1 + GROUPS), BOXES = D / TMA_COLS;
    // The multiprocessor has 65536 registers: the producer gives most of its share away.
    static constexpr int PRODUCER_REGISTERS = GROUPS == 2 ? 40 : 32, CONSUMER_REGISTERS = GROUPS == 2 ? 232 : 160;
    // Shared memory, in bytes: SLOTS tiles of Q, of K and of V
    static constexpr int ROW = TMA_COLS * sizeof(T), Q_BOX = B_r * ROW, Q_TILE = BOXES * Q_BOX;
    static constexpr int BOX = B_c * ROW, TILE = BOXES * BOX;
    static constexpr int K_AT = SLOTS * Q_TILE, V_AT = K_AT + SLOTS * TILE;
    static constexpr int ALIGNMENT = 1024, BYTES = V_AT + SLOTS * TILE + ALIGNMENT;
};

// Of each slot: whether it has been filled, whether all warps are done with it.
template <class S>
struct Slots {
    Mbarrier full[S::SLOTS], empty[S::SLOTS];

    __device__ void init() {
        for (int i = 0; i < S::SLOTS; ++i) mbarrier_init(full[i], 1), mbarrier_init(empty[i], 4 * S::GROUPS);
    }
};

template <class S>
struct Barriers {
    Slots<S> q, k, v;
};

template <class S>
using WorkItem = Item<S::B_r, S::B_c>;

// ----------------------------------------------------------------------------------------------- 2. Producer

// One thread asks for everything, in the order in which it is used, as far ahead as there are slots.
template <class S>
__device__ __forceinline__ void produce(const Problem& a, Barriers<S>& barriers, unsigned char* shared) {
    Ring<S::SLOTS> q, kv;
    for_each_item<S::B_r, S::B_c>(a, [&](const WorkItem<S>& item) {
        const int batch = item.batch_head / a.heads, head = item.batch_head % a.heads;
        const auto load = [&](const CUtensorMap& map, Slots<S>& slots, const Ring<S::SLOTS>& ring, int at,
                              int box_bytes, int row, int head) {
            mbarrier_wait(slots.empty[ring.slot()], ring.parity() ^ 1);
            mbarrier_expect(slots.full[ring.slot()], S::BOXES * box_bytes);
            for (int i = 0; i < S::BOXES; ++i)
                tma_load(shared + at + (ring.slot() * S::BOXES + i) * box_bytes, map, slots.full[ring.slot()],
                         i * TMA_COLS, row, head, batch);
        };
        load(a.query, barriers.q, q, 0, S::Q_BOX, item.q_start, head);
        q.advance();
#pragma unroll 1
        for (int t = 0; t < item.tiles; ++t) {
            const int first_key = item.tile(a, t) * S::B_c, kv_head = head / a.group;
            load(a.key, barriers.k, kv, S::K_AT, S::BOX, first_key, kv_head);
            load(a.value, barriers.v, kv, S::V_AT, S::BOX, first_key, kv_head);
            kv.advance();
        }
    });
}

// ---------------------------------------------------------------------------------------------- 3. Consumers

template <class S>
using Scores = float[1][S::B_c / 8][4];
template <class S>
using Weights = unsigned[S::B_c / 16][4];
template <class S>
using Output = float[1][S::D / 8][4];

// s = Q K^T for the rows of a warpgroup and a tile of keys
template <class S>
__device__ __forceinline__ void start_qk(Scores<S>& s, Operand q, Operand k) {
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < S::D / 16; ++i) {
        const int box = i / 4, within = i % 4 * 32;
        wgmma<typename S::T>(s[0], q.plus(box * S::Q_BOX + within), k.plus(box * S::BOX + within), i > 0);
    }
    wgmma_commit();
}

// o += P V
template <class S>
__device__ __forceinline__ void start_pv(Output<S>& o, const Weights<S>& p, Operand v) {
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < S::B_c / 16; ++i) wgmma<typename S::T>(o[0], p[i], v.plus(i * 16 * S::ROW));
    wgmma_commit();
}

template <class S>
__device__ __forceinline__ void consume(const Problem& a, Barriers<S>& barriers, unsigned char* shared, int group) {
    using T = typename S::T;
    const int lane = threadIdx.x % 32, group_row = 64 * group, warp_row = group_row + threadIdx.x / 32 % 4 * 16;
    const Operand q_at = Operand::k_major(shared + group_row * S::ROW);
    const Operand k_at = Operand::k_major(shared + S::K_AT), v_at = Operand::mn_major(shared + S::V_AT, S::BOX);
    Ring<S::SLOTS> q, k, v;
    const auto wait = [&](Slots<S>& slots, const Ring<S::SLOTS>& ring) {
        mbarrier_wait(slots.full[ring.slot()], ring.parity());
    };
    const auto release = [&](Slots<S>& slots, Ring<S::SLOTS>& ring) {
        if (lane == 0) mbarrier_arrive(slots.empty[ring.slot()]);
        ring.advance();
    };

    for_each_item<S::B_r, S::B_c>(a, [&](const WorkItem<S>& item) {
        const int first_row = item.q_start + warp_row;
        // What all rows of the group see needs no mask.
        const int all_from = span_of(a, item.q_start + group_row + 63).first;
        const int all_to = span_of(a, item.q_start + group_row).end - (S::B_c - 1) * a.key_step;
        Scores<S> s;
        Weights<S> p;
        Output<S> o;
        RowState<1> rows;
        float ratio[1][2];
        const auto next_scores = [&] {  // K has been waited for
            start_qk<S>(s, q_at.plus(q.slot() * S::Q_TILE), k_at.plus(k.slot() * S::TILE));
        };
        const auto next_output = [&] {
            wait(barriers.v, v);
            start_pv<S>(o, p, v_at.plus(v.slot() * S::TILE));
        };
        // Scores -> powers. True if the output has to be scaled by `ratio` before the next product is added.
        const auto softmax = [&](int tile) {
            const int position = a.key_offset + tile * S::B_c * a.key_step;
            if (position < all_from || position >= all_to) hide(s, a, first_row, position);
            float top[1][2];
            const bool raise = needs_rescale(top, rows, s, a.factor);
            if (raise) raise_shifts(ratio, rows, top, a.factor);
            powers(s, rows, a.factor);
            return raise;
        };

        int tile = item.tile(a, 0);
        wait(barriers.q, q);
        wait(barriers.k, k);
        next_scores();
        clear(o);
        wgmma_wait<0>();
        keep_order(s[0]);
        release(barriers.k, k);
        softmax(tile);
        round_weights<T>(p, s);
        if (item.tiles > 1) wait(barriers.k, k);
#pragma unroll 1
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
            const bool never = rows.sum[0][0] < 0 || rows.sum[0][1] < 0;
            if (t + 1 < item.tiles) mbarrier_wait(barriers.k.full[k.slot()], k.parity() ^ never);
            wgmma_wait<0>();
            keep_order(o[0]);
            release(barriers.v, v);
            if (raised) scale_output(o, ratio);
            round_weights<T>(p, s);
        }
        release(barriers.q, q);
        next_output();
        wgmma_wait<0>();
        keep_order(o[0]);
        release(barriers.v, v);
        write_rows<T, S::D>(a, o, rows, item, first_row);
    });
}

// ------------------------------------------------------------------------------------------------- 4. Kernel

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1) sparse_attention_wgmma_kernel(const __grid_constant__ Problem a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char unaligned[];
    __shared__ Barriers<S> barriers;
    unsigned char* shared = unaligned + (S::ALIGNMENT - shared_offset(unaligned) % S::ALIGNMENT) % S::ALIGNMENT;
    if (threadIdx.x == 0) {
        barriers.q.init(), barriers.k.init(), barriers.v.init();
        mbarrier_init_done();
    }
    __syncthreads();
    const int group = __shfl_sync(FULL_WARP, threadIdx.x / 128, 0) - 1;  // the same in all lanes, for the compiler, too
    if (group < 0) {
        fewer_registers<S::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) produce<S>(a, barriers, shared);
    } else {
        more_registers<S::CONSUMER_REGISTERS>();
        consume<S>(a, barriers, shared, group);
    }
#endif
}

// ----------------------------------------------------------------------------------------------- 5. Launcher

// False if the kernel was compiled for another target than sm_90a: then it is empty, and has no barriers.
template <class S>
static bool is_built() {
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, sparse_attention_wgmma_kernel<S>);
    if (error != cudaSuccess) cudaGetLastError();  // no code for this GPU at all; the error is dealt with
    return error == cudaSuccess && attributes.sharedSizeBytes > 0;
}

template <class S>
static bool launch(const SparseArguments& a) {
    using T = typename S::T;
    Problem p = {};
    const RowShape rows = {a.batch, a.heads, a.S_q, S::D}, keys = {a.batch, a.kv_heads, a.S_k, S::D};
    if (!is_built<S>() || !divide<S::B_r, S::B_c>(p, a) ||
        !make_tensor_map<T>(p.query, a.query, rows, a.query_strides, S::B_r) ||
        !make_tensor_map<T>(p.key, a.key, keys, a.key_strides, S::B_c) ||
        !make_tensor_map<T>(p.value, a.value, keys, a.value_strides, S::B_c))
        return false;
    p.out = a.out;
    p.lse = a.lse;
    p.factor = a.scale * LOG2_E;

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
