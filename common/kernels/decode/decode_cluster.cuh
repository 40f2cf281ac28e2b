// decode_cluster.cuh - decoding by one cluster of blocks per segment: for short caches.
//
//   1. Plan        how many blocks and warps a segment gets
//   2. Kernel      cluster_kernel
//   3. Launcher    fits_clusters, decode_clusters
//
// If there are few segments, several blocks share each, or most of the GPU would be idle. Tiles are distributed
// round-robin over all warps of all blocks of the segment; with 2 blocks of 3 warps:
//
//     tile             0  1  2  3  4  5 | 6  7  8  9 10 11 | 12 13
//     block            0  1  0  1  0  1   0  1  0  1  0  1    0  1
//     warp of it       0  0  1  1  2  2   0  0  1  1  2  2    0  0
//
// So whatever the length, tile counts of any two warps differ by at most one. Each warp has its own softmax; at the end
// the states are merged, those of the warps in the block's shared memory, those of the blocks in the cluster's. It is a
// single kernel and needs only its own sequence's length to begin, where decode_list.cuh reads all lengths first and
// needs a second kernel: with short caches that matters. With long sequences of different lengths some clusters would
// finish much later than others; then the list is better.
#pragma once
#include <algorithm>
#include <limits>

#include "common/cuda/dependent_launch.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/unroll.cuh"
#include "common/kernels/decode/cluster.cuh"
#include "common/kernels/decode/decode_common.cuh"

// ------------------------------------------------------------------------------------------------------ 1. Plan

constexpr int CLUSTER_STAGES = 3;
template <typename Warp>
using ClusterRing = TileRing<Warp, CLUSTER_STAGES>;

struct ClusterPlan {
    HeadUnits units;
    int blocks;  // per cluster, which has one segment
    int warps;   // per block
    size_t shared_bytes;
    float scale_log2;
};

// The number of a segment's States that each block of the cluster turns into output.
__host__ __device__ __forceinline__ int states_per_block(int states, int blocks) {
    return (states + blocks - 1) / blocks;
}
// The number of States it receives from all blocks.
__host__ __device__ __forceinline__ int states_gathered(int states, int blocks) {
    return blocks == 1 ? 0 : blocks * states_per_block(states, blocks);
}

template <typename Warp>
ClusterPlan plan_clusters(const DecodeArguments& a) {
    ClusterPlan plan = {};
    plan.units = head_units_of(a, Warp::HEADS);
    plan.scale_log2 = a.scale * LOG2_E;  // softmax in base e of x is softmax in base 2 of log2(e) * x
    const int64_t segments = a.batch * a.layout.kv_heads * plan.units.count;
    const int64_t sms = device_attribute(cudaDevAttrMultiProcessorCount);
    const int64_t rounds = ceil_div(a.layout.capacity, int64_t{TILE} * MAX_WARPS);  // for one block
    const int64_t most = std::clamp<int64_t>(rounds, 1, has_clusters() ? MAX_CLUSTER : 1);
    plan.blocks = static_cast<int>(std::clamp<int64_t>(3 * sms / 2 / std::max<int64_t>(segments, 1), 1, most));

    // As many warps as allow all blocks to be co-resident, if two per SM are enough for that
    const size_t per_warp = ClusterRing<Warp>::BYTES + state_bytes<Warp>(plan.units.unit_heads);
    const int states = plan.units.unit_heads * ROW<Warp>;
    const size_t gathered = states_gathered(states, plan.blocks) * sizeof(attention::State);
    const size_t shared = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    const size_t room = (segments * plan.blocks <= sms ? shared : shared / 2 - 1024) - gathered;
    plan.warps = static_cast<int>(std::clamp<size_t>(room / per_warp, 1, MAX_WARPS));
    plan.shared_bytes = plan.warps * per_warp + gathered;
    return plan;
}

// ---------------------------------------------------------------------------------------------------- 2. Kernel

// grid (batch * kv_heads * units.count * blocks), block (32 * warps), cluster (blocks)
//
// Shared memory:    rings           [warps][CLUSTER_STAGES][TILE_BYTES]
//                   gathered        State [blocks][states_per_block]: from each block of the cluster, the states of the
//                                   segment that this block turns into output; none if it is alone
//                   states          of the warps, see warp_states
template <typename Warp>
__global__ void __launch_bounds__(32 * MAX_WARPS, 1) cluster_kernel(const DecodeArguments a, const ClusterPlan plan) {
    using T = typename Warp::Element;
    extern __shared__ __align__(128) unsigned char shared[];
    cluster_arrive();
    wait_for_predecessor();
    launch_dependents();
    const int warp = static_cast<int>(threadIdx.x) / 32, head_dim = a.layout.head_dim;
    const int segment = static_cast<int>(blockIdx.x) / plan.blocks, rank = static_cast<int>(blockIdx.x) % plan.blocks;
    const int row = segment / plan.units.count, kv_heads = static_cast<int>(a.layout.kv_heads);
    const int sequence = row / kv_heads, kv_head = row % kv_heads;
    const int length = min(max(a.lengths[sequence], 0), static_cast<int>(a.layout.capacity));
    const int tiles = ceil_div(length, TILE), step = plan.blocks * plan.warps;
    const SegmentHeads heads = heads_of(a, plan.units, sequence, kv_head, segment % plan.units.count);

    // `next` is the tile that this warp copies next, `page` its page.
    ClusterRing<Warp> ring = {shared + warp * ClusterRing<Warp>::BYTES};
    int next = warp * plan.blocks + rank, page = 0;
    const auto look_up = [&] {
        if (next < tiles) page = page_number(a.layout, sequence, next * TILE);
    };
    const auto copy_next = [&] {
        if (next < tiles)
            ring.copy(a, sequence, kv_head, next * TILE, page, length, true);
        else
            ring.copy_nothing();
        next += step;
        look_up();
    };
    look_up();
    NO_UNROLL
    for (int i = 0; i < CLUSTER_STAGES - 1; ++i) copy_next();
    Warp state;
    state.load_queries(query_of<T>(a, sequence, heads), a.query_strides.head, heads.count, head_dim);
    NO_UNROLL
    for (int tile = warp * plan.blocks + rank; tile < tiles; tile += step) {
        ring.wait();
        copy_next();
        state.add_tile(ring.tile(), ring.tokens(), heads.count, plan.scale_log2);
        ring.advance();
    }

    const int states = heads.count * ROW<Warp>, each = states_per_block(states, plan.blocks);
    attention::State* gathered = reinterpret_cast<attention::State*>(shared + plan.warps * ClusterRing<Warp>::BYTES);
    const auto of_warps = warp_states<Warp>(gathered + states_gathered(states, plan.blocks), plan.warps, heads.count);
    const auto store = [&](int i, const attention::State& sum) {
        T* out = static_cast<T*>(a.out) + (heads.first + i / ROW<Warp>) * head_dim;
        attention::store_output(out, i % ROW<Warp> * 4, head_dim, sum);
    };
    state.store_state(of_warps, warp);
    __syncthreads();
    cluster_wait();  // all blocks have started: their shared memory may be written
    for (int i = threadIdx.x; i < states; i += 32 * plan.warps) {
        const attention::State sum = of_warps.sum(plan.warps, i / ROW<Warp>, i % ROW<Warp> * 4);
        if (plan.blocks == 1)
            store(i, sum);
        else
            *in_block(gathered + rank * each + i % each, i / each) = sum;
    }
    if (plan.blocks == 1) return;
    cluster_arrive();
    cluster_wait();
    for (int i = threadIdx.x; i < each && rank * each + i < states; i += 32 * plan.warps) {
        attention::State sum;
        for (int block = 0; block < plan.blocks; ++block) sum.add(gathered[block * each + i]);
        store(rank * each + i, sum);
    }
}

// -------------------------------------------------------------------------------------------------- 3. Launcher

// Bytes that a block may read: 1 MB, but less where the list would use many more SMs.
constexpr int64_t MOST_BYTES = 1 << 20, MOST_BYTES_OF_FEW = 1 << 17;

// Whether clusters are about as fast as the list or faster, whatever the lengths. These are not known here, so the
// capacity is used.
template <typename Warp>
bool fits_clusters(const DecodeArguments& a) {
    const ClusterPlan plan = plan_clusters<Warp>(a);
    const int64_t blocks = a.batch * a.layout.kv_heads * plan.units.count * plan.blocks;
    const int64_t bytes = a.layout.capacity * a.layout.head_dim * 2 * sizeof(typename Warp::Element) / plan.blocks;
    const bool many = 3 * blocks >= device_attribute(cudaDevAttrMultiProcessorCount);
    return blocks <= std::numeric_limits<int>::max() && bytes <= (many ? MOST_BYTES : MOST_BYTES_OF_FEW);
}

template <typename Warp>
void decode_clusters(const DecodeArguments& a) {
    const ClusterPlan plan = plan_clusters<Warp>(a);
    const int64_t blocks = a.batch * a.layout.kv_heads * plan.units.count * plan.blocks;
    CUDA_CHECK(cudaFuncSetAttribute(cluster_kernel<Warp>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(plan.shared_bytes)));
    launch_clusters_after(cluster_kernel<Warp>, static_cast<unsigned>(plan.blocks), static_cast<unsigned>(blocks),
                          static_cast<unsigned>(32 * plan.warps), plan.shared_bytes, a.stream, a, plan);
}
