// decode_common.cuh - shared by the two decode kernels (decode_cluster.cuh, decode_list.cuh).
//
//   HeadUnits, SegmentHeads    which query heads are computed together
//   TileRing                   a warp's tiles in flight from global to shared memory
//   warp_states                where the warps of a block leave their states
//   query_of                   a segment's queries
//   inputs_aligned             whether inputs can be copied in vectors
//
// A tile is 16 tokens of one K/V head, which one warp processes at once. A segment is all tiles of one K/V head of one
// sequence, with the query heads that read it: those of the group, or a part of it (a unit) if there are more than a
// warp processes at once.
//
// Decoding reads every key and value once and computes almost nothing: it is memory-bound. To saturate memory:
//
//   enough loads in flight        each warp has a ring of 2 or 3 tiles in shared memory, filled by asynchronous copies:
//                                 while it computes one tile, the next ones are in flight
//   whole cache lines             a warp copies 512 contiguous bytes with one instruction
//   no waiting                    warps synchronize only at the end of a segment; page numbers are read one tile ahead
//
// A warp is MmaWarp or SimtWarp.
#pragma once
#include <cstdint>

#include "common/cuda/alignment.h"
#include "common/cuda/attention_states.cuh"
#include "common/cuda/check.h"
#include "common/cuda/cp_async.cuh"
#include "common/kernels/decode/cache_layout.cuh"

constexpr int MAX_WARPS = 8;  // per block

struct HeadUnits {
    int group;       // query heads that share a K/V head
    int unit_heads;  // query heads per segment, at most
    int count;       // segments per group
};

inline HeadUnits head_units_of(const DecodeArguments& a, int most) {
    const int group = static_cast<int>(a.heads / a.layout.kv_heads), count = ceil_div(group, most);
    return {group, ceil_div(group, count), count};
}

// The query heads of a segment: rows of out.
struct SegmentHeads {
    int64_t first;
    int count;
};
__device__ __forceinline__ SegmentHeads heads_of(const DecodeArguments& a, const HeadUnits& units, int sequence,
                                                 int kv_head, int unit) {
    const int skipped = unit * units.unit_heads;
    return {sequence * a.heads + kv_head * units.group + skipped, min(units.unit_heads, units.group - skipped)};
}

// The first query of a segment.
template <typename T>
__device__ __forceinline__ const T* query_of(const DecodeArguments& a, int sequence, const SegmentHeads& heads) {
    return static_cast<const T*>(a.query) + sequence * a.query_strides.batch +
           (heads.first - sequence * a.heads) * a.query_strides.head;
}

// STAGES tiles: one in use, the others in flight. The owner decides which tile comes next. It first copies STAGES - 1
// of them, and then, tile by tile,
//
//     ring.wait(); ring.copy(...) or ring.copy_nothing(); compute ring.tile(), ring.tokens(); ring.advance();
template <typename Warp, int STAGES>
struct TileRing {
    using T = typename Warp::Element;
    static constexpr int BYTES = STAGES * Warp::TILE_BYTES;

    unsigned char* tiles;  // [STAGES][TILE_BYTES], shared
    int used = 0, filled = 0;
    unsigned copied = 0;  // token counts of the latest tiles, 5 bits each, the last one lowest

    // Starts copying the tile that begins at this slot; `page` from page_number(). An invalid page has no tokens.
    __device__ __forceinline__ void copy(const DecodeArguments& a, int64_t sequence, int64_t kv_head, int slot,
                                         int page, int length, bool vectors) {
        const int64_t from = row_of(a.layout, sequence, kv_head, slot, page) * a.layout.head_dim;
        const int count = is_page(a.layout, page) ? min(TILE, length - slot) : 0;
        Warp::copy(tiles + filled * Warp::TILE_BYTES, static_cast<const T*>(a.k_cache) + from,
                   static_cast<const T*>(a.v_cache) + from, count, a.layout.head_dim, vectors);
        close(count);
    }
    __device__ __forceinline__ void copy_nothing() { close(0); }

    // Waits until the oldest tile has arrived and the warp is done with the previous one, whose stage is filled next.
    __device__ __forceinline__ void wait() const {
        cp_async_wait<STAGES - 2>();
        __syncwarp();
    }
    // The oldest tile, after the copy of the next one has been started.
    __device__ __forceinline__ const unsigned char* tile() const { return tiles + used * Warp::TILE_BYTES; }
    __device__ __forceinline__ int tokens() const { return copied >> 5 * (STAGES - 1) & 31; }
    __device__ __forceinline__ void advance() { used = used == STAGES - 1 ? 0 : used + 1; }

private:
    __device__ __forceinline__ void close(int count) {
        cp_async_commit();
        copied = copied << 5 | static_cast<unsigned>(count);
        filled = filled == STAGES - 1 ? 0 : filled + 1;
    }
};

// States per query head, of four columns each.
template <typename Warp>
constexpr int ROW = Warp::COLS / 4;

// The states of the warps: o [warps][heads][COLS + 4], m and l [warps][heads]. 4 floats of padding per row make the
// rows of a state start at different banks.
template <typename Warp>
constexpr int STATE_STRIDE = Warp::COLS + 4;

template <typename Warp>
constexpr size_t state_bytes(int heads) {
    return heads * (STATE_STRIDE<Warp> * sizeof(float) + sizeof(float2));
}
template <typename Warp>
__device__ __forceinline__ attention::StateArray<STATE_STRIDE<Warp>> warp_states(void* shared, int warps, int heads) {
    float* o = static_cast<float*>(shared);
    return {o, reinterpret_cast<float2*>(o + warps * heads * STATE_STRIDE<Warp>), heads};
}

// Whether the input tensors are aligned to `bytes`.
inline bool inputs_aligned(const DecodeArguments& a, size_t bytes) {
    return all_aligned({a.query, a.k_cache, a.v_cache}, bytes);
}
