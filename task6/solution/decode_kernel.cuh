// decode_kernel.cuh - tuned decoding: the kernels around a warp's attention (decode_mma.cuh, decode_simt.cuh).
//
//   1. Memory      Plan                the sizes that depend on the arguments and the GPU only
//                  warp_tiles, warp_states, part_states
//   2. Kernels     decode_kernel       a block's part of the work list (decode_work.cuh)
//                  merge_kernel        segments that several blocks had a share of -> output
//   3. Launcher    decode_with
//
// Decoding reads every key and value once and does next to nothing with it: the time is that of the memory. What it
// takes to keep that busy:
//
//   enough reads on their way     each warp has a ring of STAGES tiles in shared memory, into which it copies
//                                 asynchronously: while it computes one tile, the next ones are on their way. The ring
//                                 goes on across the borders of segments: it is never emptied before the end.
//   of whole lines                a warp copies 512 neighbouring bytes with one instruction
//   from all multiprocessors      to the end: every block has as many tiles as any other
//   and nothing else to wait for  warps meet only where a segment ends
//
// A segment (the tokens of one K/V head of one sequence) is divided among the warps of a block, and where its tiles
// belong to two or more parts, among blocks. Each warp has a softmax of its own; states are merged at the end of the
// segment, in shared memory, and those of several blocks by a second kernel.
#pragma once
#include <algorithm>
#include <stdexcept>
#include <string>

#include "common/cuda/check.h"
#include "common/cuda/cp_async.cuh"
#include "common/cuda/exp2.cuh"
#include "task6/solution/cache_layout.cuh"
#include "task6/solution/decode_merge.cuh"
#include "task6/solution/decode_work.cuh"
#include "task6/solution/dependent_launch.cuh"

constexpr int MAX_WARPS = 8;
constexpr int STAGES = 3;  // tiles of a warp: one in use, the others on their way
constexpr int BLOCKS = 2;  // of a multiprocessor

// --------------------------------------------------------------------------------------------------- 1. Memory

struct Plan {
    int group;       // query heads that share a K/V head
    int unit_heads;  // query heads of a segment, at most
    int head_units;  // segments that a group makes
    int warps;       // of a block
    int parts;       // at most; as many blocks are launched
    size_t shared_bytes;
    float scale_log2;
    bool vectors;  // every row of K and V consists of aligned pieces of Warp::VECTOR elements
};

// Shared memory:
//
//   tiles     [warps][STAGES][TILE_BYTES]
//   states    o [warps][unit_heads][COLS + 4], m and l [warps][unit_heads]
//
// The 4 floats behind each row let the rows of a state start at different banks.
template <typename Warp>
constexpr int STATE_STRIDE = Warp::COLS + 4;

template <typename Warp>
constexpr size_t bytes_per_warp(int unit_heads) {
    return STAGES * Warp::TILE_BYTES + unit_heads * (STATE_STRIDE<Warp> * sizeof(float) + sizeof(float2));
}
template <typename Warp>
__device__ __forceinline__ unsigned char* warp_tiles(unsigned char* shared, int warp) {
    return shared + warp * STAGES * Warp::TILE_BYTES;
}
template <typename Warp>
__device__ __forceinline__ StateArray<STATE_STRIDE<Warp>> warp_states(unsigned char* shared, int warps, int heads) {
    float* o = reinterpret_cast<float*>(warp_tiles<Warp>(shared, warps));
    return {o, reinterpret_cast<float2*>(o + warps * heads * STATE_STRIDE<Warp>), heads};
}

// The workspace: part p's state of the segment that began before it (place 2p) and of the one that goes on behind it
// (2p + 1).    o [parts][2][unit_heads][COLS], m and l [parts][2][unit_heads]
template <int COLS>
__device__ __forceinline__ StateArray<COLS> part_states(float* workspace, const Plan& plan) {
    const int64_t rows = int64_t{2} * plan.parts * plan.unit_heads;
    return {workspace, reinterpret_cast<float2*>(workspace + rows * COLS), plan.unit_heads};
}

// -------------------------------------------------------------------------------------------------- 2. Kernels

__device__ __forceinline__ WorkList work_list(const DecodeArguments& a, const Plan& plan) {
    WorkList list = {a.lengths, static_cast<int>(a.batch), static_cast<int>(a.layout.kv_heads), plan.head_units,
                     static_cast<int>(a.layout.capacity)};
    cut(list, plan.parts);
    return list;
}

// The queries of a segment: rows of query and out.
struct SegmentHeads {
    int64_t first;
    int count;
};
__device__ __forceinline__ SegmentHeads heads_of(const DecodeArguments& a, const Plan& plan, const Segment& at) {
    const int skipped = at.head_unit * plan.unit_heads;
    return {at.sequence * a.heads + at.kv_head * plan.group + skipped, min(plan.unit_heads, plan.group - skipped)};
}

// grid (plan.parts), block (32 * plan.warps)
template <typename Warp>
__global__ void __launch_bounds__(32 * MAX_WARPS, 1) decode_kernel(const DecodeArguments a, const Plan plan) {
    using T = typename Warp::Element;
    constexpr int ROW = Warp::COLS / 4;  // threads that a row of a state takes, four columns each
    extern __shared__ __align__(128) unsigned char shared[];
    launch_dependents();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int head_dim = a.layout.head_dim;
    const WorkList list = work_list(a, plan);
    const int part = static_cast<int>(blockIdx.x), begin = part * list.part_size;
    Segment at;
    if (!segment_at(at, list, begin)) return;
    const int end = min(begin + list.part_size, list.whole ? begin - at.tile + tiles_of(at.length) : list.total);

    // Reading ahead: `next` is the tile that this warp copied last, number next_number of the list. While the warp
    // works on tile `number` it is STAGES - 1 of the warp's tiles further.
    unsigned char* tiles = warp_tiles<Warp>(shared, warp);
    Segment next = at;
    next.tile += warp - plan.warps;
    int next_number = begin + warp - plan.warps;
    unsigned copied = 0;  // tokens of the latest tiles, 5 bits each, the last one lowest
    const auto copy_next = [&](int stage) {
        int tokens = 0;
        next_number += plan.warps;
        if (next_number < end) {
            advance(next, list, plan.warps);
            const int page = page_of(a.layout, next.sequence, next.tile * TILE);
            const int64_t first = row_of(a.layout, next.sequence, next.kv_head, next.tile * TILE, page) * head_dim;
            tokens = page == NO_PAGE ? 0 : min(TILE, next.length - next.tile * TILE);
            Warp::copy(tiles + stage * Warp::TILE_BYTES, static_cast<const T*>(a.k_cache) + first,
                       static_cast<const T*>(a.v_cache) + first, tokens, head_dim, plan.vectors);
        }
        copied = copied << 5 | static_cast<unsigned>(tokens);
        cp_async_commit();
    };

    // Segment by segment, of which this part has the tiles number `first` to `last` - 1. The first STAGES - 1 rounds
    // only copy.
    int number = begin + warp - (STAGES - 1) * plan.warps, stage = 0;
    for (int first = begin; first < end;) {
        const int last = min(end, first - at.tile + tiles_of(at.length));
        const SegmentHeads heads = heads_of(a, plan, at);
        Warp state;
        state.load_queries(static_cast<const T*>(a.query) + heads.first * head_dim, heads.count, head_dim);
#pragma unroll 1
        for (; number < last; number += plan.warps) {
            cp_async_wait<STAGES - 2>();
            __syncwarp();  // tile `number` is here, and the one before it is not needed any more
            const int tokens = copied >> 5 * (STAGES - 2) & 31;
            copy_next(stage == 0 ? STAGES - 1 : stage - 1);
            if (number >= begin)
                state.add_tile(tiles + stage * Warp::TILE_BYTES, tokens, heads.count, plan.scale_log2);
            stage = stage == STAGES - 1 ? 0 : stage + 1;
        }

        const auto states = warp_states<Warp>(shared, plan.warps, heads.count);
        state.store_state(states, warp);
        __syncthreads();
        const int segment_begin = first - at.tile;
        const bool begun_here = segment_begin >= begin;
        const bool alone = begun_here && segment_begin + tiles_of(at.length) <= end;
        for (int x = threadIdx.x; x < heads.count * ROW; x += 32 * plan.warps) {
            const int head = x / ROW, col = x % ROW * 4;
            State sum;
            for (int w = 0; w < plan.warps; ++w) sum.add(states.load(w, head, col));
            if (alone)
                store_output(static_cast<T*>(a.out) + (heads.first + head) * head_dim, col, head_dim, sum);
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

// One block per query head: grid (batch * heads). Adds up the states of the parts that have a share of its segment, and
// writes the zeros of an empty sequence. A thread has four columns of some of the parts:
//
//   threads      0 ... ROW - 1     ROW ... 2 ROW - 1     ...
//   parts      first, first + SLICES, ...  first + 1, ...          their sums are added in the end
template <typename T, int COLS>
__global__ void __launch_bounds__(MERGE_THREADS) merge_kernel(const DecodeArguments a, const Plan plan) {
    constexpr int ROW = COLS / 4, SLICES = MERGE_THREADS / ROW;
    __shared__ State of_thread[MERGE_THREADS];
    const int heads = static_cast<int>(a.heads), head = static_cast<int>(blockIdx.x) % heads;
    const WorkList list = work_list(a, plan);
    Segment segment;
    segment.sequence = static_cast<int>(blockIdx.x) / heads;
    segment.kv_head = head / plan.group;
    segment.head_unit = head % plan.group / plan.unit_heads;
    segment.length = list.length_of(segment.sequence);
    const int begin = number_of(list, segment), tiles = tiles_of(segment.length);
    const int first = begin / list.part_size, last = tiles == 0 ? -1 : (begin + tiles - 1) / list.part_size;
    wait_for_predecessor();
    if (first == last) return;  // that block has written the output

    const auto states = part_states<COLS>(a.workspace, plan);
    const int row = head % plan.group % plan.unit_heads, col = static_cast<int>(threadIdx.x) % ROW * 4;
    State sum;
#pragma unroll 4
    for (int part = first + static_cast<int>(threadIdx.x) / ROW; part <= last; part += SLICES)
        sum.add(states.load(2 * part + (part * list.part_size <= begin), row, col));
    of_thread[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= ROW) return;
#pragma unroll
    for (int i = 1; i < SLICES; ++i) sum.add(of_thread[threadIdx.x + i * ROW]);
    store_output(static_cast<T*>(a.out) + int64_t{blockIdx.x} * a.layout.head_dim, col, a.layout.head_dim, sum);
}

// ------------------------------------------------------------------------------------------------- 3. Launcher

// Whether the tensors begin at multiples of `bytes`.
inline bool all_aligned(const DecodeArguments& a, size_t bytes) {
    for (const void* pointer : {a.query, a.k_cache, a.v_cache})
        if (reinterpret_cast<uintptr_t>(pointer) % bytes != 0) return false;
    return true;
}

template <typename Warp>
Plan plan_decode(const DecodeArguments& a) {
    Plan plan = {};
    plan.group = static_cast<int>(a.heads / a.layout.kv_heads);
    plan.head_units = ceil_div(plan.group, Warp::HEADS);
    plan.unit_heads = ceil_div(plan.group, plan.head_units);
    plan.scale_log2 = a.scale * LOG2_E;  // softmax in base e of x is softmax in base 2 of log2(e) * x
    plan.vectors =
        a.layout.head_dim % Warp::VECTOR == 0 && all_aligned(a, Warp::VECTOR * sizeof(typename Warp::Element));

    // As many warps as let BLOCKS blocks, and one of the merge kernel, fit on a multiprocessor
    const size_t per_warp = bytes_per_warp<Warp>(plan.unit_heads);
    const size_t most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    const size_t room = (most - MERGE_THREADS * sizeof(State)) / BLOCKS - 1024;
    plan.warps = static_cast<int>(std::clamp<size_t>(room / per_warp, 1, MAX_WARPS));
    plan.shared_bytes = plan.warps * per_warp;

    const int64_t tiles = a.batch * a.layout.kv_heads * plan.head_units * ceil_div(a.layout.capacity, int64_t{TILE});
    if (tiles > MAX_TILES)
        throw std::invalid_argument("decode_attention has " + std::to_string(tiles) +
                                    " tiles of 16 tokens when all caches are full; at most 2^30 are supported");
    if (a.batch * a.heads > 0x7fffffff)
        throw std::invalid_argument("decode_attention has batch * heads = " + std::to_string(a.batch * a.heads) +
                                    "; at most 2^31 - 1 are supported: split the batch");
    plan.parts = static_cast<int>(std::clamp<int64_t>(
        tiles / LEAST_TILES, 1, BLOCKS * device_attribute(cudaDevAttrMultiProcessorCount)));
    return plan;
}

// Returns how many floats of workspace this takes; launches only if asked to.
template <typename Warp>
int64_t decode_with(const DecodeArguments& a, bool launch) {
    const Plan plan = plan_decode<Warp>(a);
    if (launch) {
        CUDA_CHECK(cudaFuncSetAttribute(decode_kernel<Warp>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(plan.shared_bytes)));
        decode_kernel<Warp><<<plan.parts, 32 * plan.warps, plan.shared_bytes, a.stream>>>(a, plan);
        CUDA_CHECK_LAUNCH();
        launch_after(merge_kernel<typename Warp::Element, Warp::COLS>, static_cast<unsigned>(a.batch * a.heads),
                     MERGE_THREADS, a.stream, a, plan);
    }
    return int64_t{2} * plan.parts * plan.unit_heads * (Warp::COLS + 2);
}
