// flash_attention_wgmma.cu - experimental
#ifdef CUDA_SIMULATOR
#include "common/kernels/flash/flash.h"
bool hopper_forward(const FlashArguments&, bool) { return false; }
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <algorithm>
#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/flash_softmax.cuh"
#include "common/cuda/hopper_rows.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/shared_offset.cuh"
#include "common/kernels/flash/flash.h"

#ifndef POLY
#define POLY 0
#endif

template <typename T_, int D_, int GROUPS_, int B_c_, int BLOCKS_, bool Q_REGS_, int SLOTS_ = 2, int Q_SLOTS_ = 0>
struct Shape {
    using T = T_;
    static constexpr int D = D_, GROUPS = GROUPS_, BLOCKS = BLOCKS_;
    static constexpr bool Q_REGS = Q_REGS_;
    static constexpr int B_r = 64 * GROUPS, B_c = B_c_, THREADS = 128 * GROUPS + 128;
    static constexpr int Q_SLOTS = Q_SLOTS_ ? Q_SLOTS_ : Q_REGS ? 1 : 2, SLOTS = SLOTS_;
    using Q = hopper::Tile<B_r, D>;
    using K = hopper::Tile<B_c, D>;
    static constexpr int K_AT = Q_SLOTS * Q::BYTES, V_AT = K_AT + SLOTS * K::BYTES;
    static constexpr int BYTES = V_AT + SLOTS * K::BYTES + hopper::ALIGNMENT;
};

struct Problem {
    CUtensorMap query, key, value;
    void* out;
    float* lse;
    float factor;
    int S_q, S_k, head_dim, heads, group;
    bool causal;
    int diagonal;
    int q_blocks, units, heads_together, batch_heads;
    int policy;  // 0 in sequence, 1 longest first in sections, 2 folded
    unsigned* drawn;
};

template <class S>
struct Barriers {
    hopper::Slots<S::Q_SLOTS> q;
    hopper::Slots<S::SLOTS> k, v;
    int items[S::Q_SLOTS];
};

__device__ __forceinline__ int keys_seen(const Problem& p, int row) {
    return p.causal ? max(0, min(p.S_k, row + p.diagonal + 1)) : p.S_k;
}

template <class S>
struct Item {
    int batch_head, q_start, tiles, first;

    __device__ __forceinline__ Item(const Problem& p, int number) {
        batch_head = number / p.q_blocks;
        q_start = number % p.q_blocks * S::B_r;
        tiles = ceil_div(keys_seen(p, min(q_start + S::B_r, p.S_q) - 1), S::B_c);
        first = 0;
        if (tiles == 0) tiles = 1, first = ceil_div(p.S_k, S::B_c);
    }
};

// unit -> item
__device__ __forceinline__ int item_of(const Problem& p, int unit, int half) {
    if (p.policy == 0) return unit;
    if (p.policy == 2) {
        const int per = (p.q_blocks + 1) / 2, bh = unit / per, i = unit % per;
        return bh * p.q_blocks + (half ? i : p.q_blocks - 1 - i);
    }
    const int per = p.heads_together * p.q_blocks, section = unit / per, i = unit % per;
    const int first = section * p.heads_together, width = min(p.heads_together, p.batch_heads - first);
    return (first + i % width) * p.q_blocks + p.q_blocks - 1 - i / width;
}

template <class S>
__device__ __forceinline__ void produce(const Problem& p, Barriers<S>& b, unsigned char* shared) {
    using namespace hopper;
    Ring<S::Q_SLOTS> q;
    Ring<S::SLOTS> kv;
    int unit = blockIdx.x;
    while (unit < p.units) {
        const int next = p.drawn == nullptr ? unit + gridDim.x : gridDim.x + atomicAdd(p.drawn, 1u);
        for (int half = 0; half < (p.policy == 2 ? 2 : 1); ++half) {
            const int number = item_of(p, unit, half);
            if (half == 1 && number == item_of(p, unit, 0)) break;
            const Item<S> item(p, number);
            const int batch = item.batch_head / p.heads, head = item.batch_head % p.heads, kv_head = head / p.group;
            wait_until_empty(b.q, q);
            b.items[q.slot()] = number;
            fill<typename S::Q>(b.q, q, shared, p.query, item.q_start, head, batch);
            q.advance();
#pragma unroll 1
            for (int t = 0; t < item.tiles; ++t) {
                const int key = (item.first + t) * S::B_c;
                wait_until_empty(b.k, kv);
                fill<typename S::K>(b.k, kv, shared + S::K_AT, p.key, key, kv_head, batch);
                wait_until_empty(b.v, kv);
                fill<typename S::K>(b.v, kv, shared + S::V_AT, p.value, key, kv_head, batch);
                kv.advance();
            }
        }
        unit = next;
    }
    wait_until_empty(b.q, q);
    b.items[q.slot()] = -1;
    mbarrier_arrive(b.q.full[q.slot()]);
}

template <class S>
__device__ __forceinline__ void consume(const Problem& p, Barriers<S>& b, unsigned char* shared, int group) {
    using namespace hopper;
    using T = typename S::T;
    using Q = typename S::Q;
    using K = typename S::K;
    constexpr int B_c = S::B_c, D = S::D;
    const int group_row = 64 * group, warp_row = group_row + threadIdx.x / 32 % 4 * 16;
    const KMajor q_at = k_major<Q>(shared, group_row), k_at = k_major<K>(shared + S::K_AT);
    const MnMajor v_at = mn_major<K>(shared + S::V_AT);
    Ring<S::Q_SLOTS> q;
    Ring<S::SLOTS> k, v;
    for (;;) {
        wait_for(b.q, q);
        const int number = __shfl_sync(FULL_WARP, b.items[q.slot()], 0);
        if (number < 0) break;
        const Item<S> item(p, number);
        const int first_row = item.q_start + warp_row;
        const int all_see = keys_seen(p, min(item.q_start + group_row, p.S_q - 1));
        const int last_sees = keys_seen(p, min(item.q_start + group_row + 63, p.S_q - 1));
        const int mine = item.q_start + group_row < p.S_q ? max(1, min(item.tiles, ceil_div(last_sees, B_c))) : 1;
        unsigned q_rows[S::Q_REGS ? D / 16 : 1][4];
        if constexpr (S::Q_REGS) {
            load_rows<Q>(q_rows, shared, warp_row);
            __syncwarp();
            give_back(b.q, q.slot());
            q.advance();
        }
        float s[1][B_c / 8][4];
        unsigned w[B_c / 16][4];
        float o[1][D / 8][4];
        RowState<1> rows;
        float ratio[1][2];
        const auto next_scores = [&] {
            if constexpr (S::Q_REGS)
                start_rows_by_rows<T, K>(s[0], q_rows, k_at.plus(k.slot() * K::BYTES));
            else
                start_rows_by_rows<T, Q, K>(s[0], q_at.plus(q.slot() * Q::BYTES), k_at.plus(k.slot() * K::BYTES));
            wgmma_commit();
        };
        const auto next_output = [&] {
            wait_for(b.v, v);
            start_weights_by_rows<T, K>(o[0], w, v_at.plus(v.slot() * K::BYTES));
            wgmma_commit();
        };
        const auto softmax = [&](int t) {
            const int key = (item.first + t) * B_c;
            if (key + B_c > all_see) {
                const int row = first_row + mma_d_row(threadIdx.x % 32, 0);
                hide_from(s, {keys_seen(p, row) - key, keys_seen(p, row + 8) - key});
            }
            float top[1][2];
            const bool raise = scores_exceed(top, rows, s, p.factor);
            if (raise) raise_shifts(ratio, rows, top, p.factor);
            powers<POLY>(s, rows, p.factor);
            return raise;
        };
        wait_for(b.k, k);
        next_scores();
        clear(o);
        wgmma_wait<0>();
        keep_order(s[0]);
        give_back(b.k, k.slot());
        k.advance();
        softmax(0);
        round_weights<T>(w, s);
        if (mine > 1) wait_for(b.k, k);
#pragma unroll 1
        for (int t = 1; t < mine; ++t) {
            next_scores();
            next_output();
            wgmma_wait<1>();
            keep_order(s[0]);
            give_back(b.k, k.slot());
            k.advance();
            const bool raised = softmax(t);
            const bool never = rows.sum[0][0] < 0 || rows.sum[0][1] < 0;
            if (t + 1 < mine) mbarrier_wait(b.k.full[k.slot()], k.parity() ^ never);
            wgmma_wait<0>();
            keep_order(o[0]);
            give_back(b.v, v.slot());
            v.advance();
            if (raised) scale_output(o, ratio);
            round_weights<T>(w, s);
        }
        if constexpr (!S::Q_REGS) {
            give_back(b.q, q.slot());
            q.advance();
        }
        next_output();
        wgmma_wait<0>();
        keep_order(o[0]);
        give_back(b.v, v.slot());
        v.advance();
        for (int t = mine; t < item.tiles; ++t) {
            wait_for(b.k, k);
            give_back(b.k, k.slot());
            k.advance();
            wait_for(b.v, v);
            give_back(b.v, v.slot());
            v.advance();
        }
        const int64_t at = int64_t{item.batch_head} * p.S_q + first_row;
        write_rows<T, D>(static_cast<T*>(p.out) + at * p.head_dim, p.lse == nullptr ? nullptr : p.lse + at, o, rows,
                         p.S_q - first_row, p.head_dim);
    }
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) flash_attention_wgmma_kernel(const __grid_constant__ Problem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char unaligned[];
    __shared__ Barriers<S> barriers;
    unsigned char* shared =
        unaligned + (hopper::ALIGNMENT - shared_offset(unaligned) % hopper::ALIGNMENT) % hopper::ALIGNMENT;
    if (threadIdx.x == 0) {
        barriers.q.init(4 * S::GROUPS), barriers.k.init(4 * S::GROUPS), barriers.v.init(4 * S::GROUPS);
        mbarrier_init_done();
    }
    __syncthreads();
    const int group = hopper::role_of_warpgroup();
    if (group == hopper::PRODUCER) {
        fewer_registers<hopper::RegisterShares<S::GROUPS, S::BLOCKS>::OF_PRODUCER>();
        if (threadIdx.x == 0) produce<S>(p, barriers, shared);
    } else {
        more_registers<hopper::RegisterShares<S::GROUPS, S::BLOCKS>::OF_CONSUMER>();
        consume<S>(p, barriers, shared, group);
    }
#endif
}

template <class S>
static bool launch(const FlashArguments& a, int policy, unsigned* drawn, int heads_together) {
    using T = typename S::T;
    Problem p = {};
    const RowShape rows = {a.batch, a.heads, a.S_q, a.head_dim}, keys = {a.batch, a.kv_heads, a.S_k, a.head_dim};
    if (!make_tensor_map<T>(p.query, a.query, rows, a.query_strides, S::B_r) ||
        !make_tensor_map<T>(p.key, a.key, keys, a.key_strides, S::B_c) ||
        !make_tensor_map<T>(p.value, a.value, keys, a.value_strides, S::B_c))
        return false;
    p.out = a.out, p.lse = a.lse, p.factor = a.scale * LOG2_E;
    p.S_q = a.S_q, p.S_k = a.S_k, p.head_dim = a.head_dim, p.heads = a.heads, p.group = a.heads / a.kv_heads;
    p.causal = a.causal, p.diagonal = a.diagonal;
    p.q_blocks = ceil_div(p.S_q, S::B_r), p.batch_heads = a.batch * a.heads;
    p.policy = policy, p.drawn = drawn, p.heads_together = heads_together;
    p.units = p.batch_heads * (policy == 2 ? (p.q_blocks + 1) / 2 : p.q_blocks);
    if (drawn) CUDA_CHECK(cudaMemsetAsync(drawn, 0, sizeof(unsigned), a.stream));
    const int blocks = std::min(p.units, S::BLOCKS * device_attribute(cudaDevAttrMultiProcessorCount));
    const auto kernel = flash_attention_wgmma_kernel<S>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
    kernel<<<blocks, S::THREADS, S::BYTES, a.stream>>>(p);
    CUDA_CHECK_LAUNCH();
    return true;
}
#ifdef BENCH
using B = __nv_bfloat16;
extern "C" int run(int variant, const void* q, const void* k, const void* v, void* out, float* lse, int batch, int heads,
                   int kv_heads, int S_q, int S_k, int head_dim, int causal, int diagonal, int policy, unsigned* drawn,
                   int heads_together, cudaStream_t stream) {
    FlashArguments a = {};
    a.query = q, a.key = k, a.value = v, a.out = out, a.lse = lse;
    a.query_strides = {int64_t{heads} * S_q * head_dim, int64_t{S_q} * head_dim, head_dim};
    a.key_strides = a.value_strides = {int64_t{kv_heads} * S_k * head_dim, int64_t{S_k} * head_dim, head_dim};
    a.batch = batch, a.heads = heads, a.kv_heads = kv_heads, a.S_q = S_q, a.S_k = S_k, a.head_dim = head_dim;
    a.scale = 1 / sqrtf(head_dim), a.causal = causal, a.diagonal = diagonal, a.key_step = 1, a.stream = stream;
    try {
    switch (variant) {
#define X_V(n, ...) case n: return launch<Shape<B, __VA_ARGS__>>(a, policy, drawn, heads_together);
        VARIANTS
    }
    } catch (const std::exception& e) { fprintf(stderr, "%s\n", e.what()); }
    return -1;
}
#endif
#endif
