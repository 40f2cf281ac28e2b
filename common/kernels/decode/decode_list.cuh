// decode_list.cuh - decoding for sequences of any lengths: their tiles in one list, split evenly.
//
//   1. Memory      ListPlan            sizes that depend only on the arguments and the GPU
//                  part_states
//   2. Kernels     list_kernel         a block's part of the work list (decode_work.cuh)
//                  merge_kernel        merges segments shared by several blocks and writes the output
//   3. Launcher    decode_list
//
// Every block has the same number of tiles, so all SMs read to the end. The warps' rings continue across segment
// borders: they are not drained before the end. At the end of a segment the states of the warps are merged in shared
// memory, those of several blocks by a second kernel.
#pragma once
#include <algorithm>
#include <stdexcept>
#include <string>

#include "common/cuda/dependent_launch.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/unroll.cuh"
#include "common/kernels/decode/decode_common.cuh"
#include "common/kernels/decode/decode_work.cuh"

// --------------------------------------------------------------------------------------------------- 1. Memory

constexpr int LIST_STAGES = 2;
template <typename Warp>
using ListRing = TileRing<Warp, LIST_STAGES>;

// Blocks per SM. With MAX_WARPS each, 64 KB per SM are in flight: less does not saturate memory, and more is slower.
template <typename Warp>
constexpr int BLOCKS = Warp::TILE_BYTES > 4096 ? 1 : 2;

struct ListPlan {
    HeadUnits units;
    int warps;  // per block
    int parts;  // at most; one block is launched for each
    size_t shared_bytes;
    float scale_log2;
    bool vectors;  // every row of K and V consists of aligned pieces of Warp::VECTOR elements
};

// The workspace: part p's state of the segment that began before it (index 2p) and of the one that continues after it
// (2p + 1).    o [parts][2][unit_heads][COLS], m and l [parts][2][unit_heads]
template <int COLS>
__device__ __forceinline__ attention::StateArray<COLS> part_states(float* workspace, const ListPlan& plan) {
    const int64_t rows = int64_t{2} * plan.parts * plan.units.unit_heads;
    return {workspace, reinterpret_cast<float2*>(workspace + rows * COLS), plan.units.unit_heads};
}

// -------------------------------------------------------------------------------------------------- 2. Kernels

__device__ __forceinline__ WorkList work_list(const DecodeArguments& a, const ListPlan& plan) {
    WorkList list = {a.lengths, static_cast<int>(a.batch), static_cast<int>(a.layout.kv_heads), plan.units.count,
                     static_cast<int>(a.layout.capacity)};
    cut(list, plan.parts);
    return list;
}

// grid (plan.parts), block (32 * plan.warps). Shared memory: the rings of the warps, then their states.
template <typename Warp>
__global__ void __launch_bounds__(32 * MAX_WARPS, BLOCKS<Warp>)
    list_kernel(const DecodeArguments a, const ListPlan plan) {
    using T = typename Warp::Element;
    extern __shared__ __align__(128) unsigned char shared[];
    wait_for_predecessor();
    launch_dependents();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int head_dim = a.layout.head_dim;
    const WorkList list = work_list(a, plan);
    const int part = static_cast<int>(blockIdx.x), begin = part * list.part_size;
    Segment at;
    if (!segment_at(at, list, begin)) return;
    const int end = min(begin + list.part_size, list.whole ? begin - at.tile + tiles_of(at.length) : list.total);

    // Prefetch: `next`, index next_number in the list, is the tile that this warp copies next, `page` its page.
    ListRing<Warp> ring = {shared + warp * ListRing<Warp>::BYTES};
    Segment next = at;
    int next_number = begin, page = 0;
    const auto go_on = [&](int tiles) {
        next_number += tiles;
        if (next_number >= end) return;
        advance(next, list, tiles);
        page = page_number(a.layout, next.sequence, next.tile * TILE);
    };
    const auto copy_next = [&] {
        if (next_number < end)
            ring.copy(a, next.sequence, next.kv_head, next.tile * TILE, page, next.length, plan.vectors);
        else
            ring.copy_nothing();
        go_on(plan.warps);
    };
    go_on(warp);
    NO_UNROLL
    for (int i = 0; i < LIST_STAGES - 1; ++i) copy_next();

    // Segment by segment; this part has tiles `first` to `last` - 1 of each
    int number = begin + warp;
    for (int first = begin; first < end;) {
        const int last = min(end, first - at.tile + tiles_of(at.length));
        const SegmentHeads heads = heads_of(a, plan.units, at.sequence, at.kv_head, at.head_unit);
        Warp state;
        state.load_queries(query_of<T>(a, at.sequence, heads), a.query_strides.head, heads.count, head_dim);
        NO_UNROLL
        for (; number < last; number += plan.warps) {
            ring.wait();
            copy_next();
            state.add_tile(ring.tile(), ring.tokens(), heads.count, plan.scale_log2);
            ring.advance();
        }

        const auto states = warp_states<Warp>(shared + plan.warps * ListRing<Warp>::BYTES, plan.warps, heads.count);
        state.store_state(states, warp);
        __syncthreads();
        const int segment_begin = first - at.tile;
        const bool begun_here = segment_begin >= begin;
        const bool alone = begun_here && segment_begin + tiles_of(at.length) <= end;
        for (int x = threadIdx.x; x < heads.count * ROW<Warp>; x += 32 * plan.warps) {
            const int head = x / ROW<Warp>, col = x % ROW<Warp> * 4;
            const attention::State sum = states.sum(plan.warps, head, col);
            if (alone)
                attention::store_output(static_cast<T*>(a.out) + (heads.first + head) * head_dim, col, head_dim, sum);
            else
                part_states<Warp::COLS>(a.workspace, plan).store(2 * part + begun_here, head, col, sum);
        }
        if (last == end) return;
        __syncthreads();
        advance(at, list, last - first);
        first = last;
    }
}

constexpr int MERGE_THREADS = 256;

// One block per query head: grid (batch * heads). Merges the states of the parts that share its segment, and writes
// zeros for an empty sequence. A thread has four columns of every SLICES-th part, and issues AT_ONCE loads before it
// waits for the first; neighboring lanes have the same columns.
template <typename T, int COLS>
__global__ void __launch_bounds__(MERGE_THREADS) merge_kernel(const DecodeArguments a, const ListPlan plan) {
    constexpr int SLICES = MERGE_THREADS / (COLS / 4), AT_ONCE = 5;
    const int heads = static_cast<int>(a.heads), head = static_cast<int>(blockIdx.x) % heads;
    const WorkList list = work_list(a, plan);
    Segment segment;
    segment.sequence = static_cast<int>(blockIdx.x) / heads;
    segment.kv_head = head / plan.units.group;
    segment.head_unit = head % plan.units.group / plan.units.unit_heads;
    segment.length = list.length_of(segment.sequence);
    const int begin = number_of(list, segment), tiles = tiles_of(segment.length);
    const int first = begin / list.part_size, last = tiles == 0 ? -1 : (begin + tiles - 1) / list.part_size;
    wait_for_predecessor();  // not earlier: the lengths were there before the list kernel began
    launch_dependents();
    if (first == last) return;  // that block has already written the output

    const auto states = part_states<COLS>(a.workspace, plan);
    const int row = head % plan.units.group % plan.units.unit_heads;
    const int slice = static_cast<int>(threadIdx.x) % SLICES, col = static_cast<int>(threadIdx.x) / SLICES * 4;
    attention::State sum;
    for (int part = first + slice; part <= last; part += AT_ONCE * SLICES) {
        attention::State of_part[AT_ONCE];
        UNROLL
        for (int i = 0; i < AT_ONCE; ++i) {
            const int at = part + i * SLICES;
            if (at <= last) of_part[i] = states.load(2 * at + (at * list.part_size <= begin), row, col);
        }
        UNROLL
        for (int i = 0; i < AT_ONCE; ++i) sum.add(of_part[i]);
    }
    sum = attention::sum_of_lanes(sum, SLICES);
    if (slice == 0)
        attention::store_output(static_cast<T*>(a.out) + int64_t{blockIdx.x} * a.layout.head_dim, col,
                                a.layout.head_dim, sum);
}

// ------------------------------------------------------------------------------------------------- 3. Launcher

template <typename Warp>
ListPlan plan_list(const DecodeArguments& a) {
    ListPlan plan = {};
    plan.units = head_units_of(a, Warp::HEADS);
    plan.scale_log2 = a.scale * LOG2_E;  // softmax in base e of x is softmax in base 2 of log2(e) * x
    plan.vectors =
        a.layout.head_dim % Warp::VECTOR == 0 && inputs_aligned(a, Warp::VECTOR * sizeof(typename Warp::Element));

    // As many warps as let these blocks fit
    const size_t per_warp = ListRing<Warp>::BYTES + state_bytes<Warp>(plan.units.unit_heads);
    const size_t most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    const size_t room = most / BLOCKS<Warp> - 1024;
    plan.warps = static_cast<int>(std::clamp<size_t>(room / per_warp, 1, MAX_WARPS));
    plan.shared_bytes = plan.warps * per_warp;

    const int64_t tiles = a.batch * a.layout.kv_heads * plan.units.count * ceil_div(a.layout.capacity, int64_t{TILE});
    if (tiles > MAX_TILES)
        throw std::invalid_argument("decode_attention has " + std::to_string(tiles) +
                                    " tiles of 16 tokens when all caches are full; at most 2^30 are supported");
    plan.parts = static_cast<int>(std::clamp<int64_t>(
        tiles / LEAST_TILES, 1, BLOCKS<Warp> * device_attribute(cudaDevAttrMultiProcessorCount)));
    return plan;
}

// Returns the number of workspace floats needed; launches only if asked to.
template <typename Warp>
int64_t decode_list(const DecodeArguments& a, bool launch) {
    const ListPlan plan = plan_list<Warp>(a);
    const unsigned query_heads = grid_blocks(a.batch * a.heads, "decode_attention");
    if (launch) {
        CUDA_CHECK(cudaFuncSetAttribute(list_kernel<Warp>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(plan.shared_bytes)));
        launch_after(list_kernel<Warp>, plan.parts, 32 * plan.warps, plan.shared_bytes, a.stream, a, plan);
        launch_after(merge_kernel<typename Warp::Element, Warp::COLS>, query_heads, MERGE_THREADS, 0, a.stream, a,
                     plan);
    }
    return int64_t{2} * plan.parts * plan.units.unit_heads * (Warp::COLS + 2);
}
