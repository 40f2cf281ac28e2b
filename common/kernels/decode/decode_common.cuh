// decode_common.cuh - what the two kernels of decoding share (decode_cluster.cuh, decode_list.cuh).
//
//   HeadUnits, SegmentHeads    which query heads are computed together
//   TileRing                   a warp's tiles on their way from global to shared memory
//   warp_states                where the warps of a block leave their states
//   query_of                   where its queries are
//   inputs_aligned             what can be copied in pieces
//
// A tile is 16 tokens of one K/V head, which one warp takes at once. A segment is all tiles of one K/V head of one
// sequence, with the query heads that read it: those of the group, or of a part of it (a unit) if they are more than a
// warp takes at once.
//
// Decoding reads every key and value once and does next to nothing with it: the time is that of the memory. What it
// takes to keep that busy:
//
//   enough reads on their way     each warp has a ring of 2 or 3 tiles in shared memory, into which it copies
//                                 asynchronously: while it computes one tile, the next ones are on their way
//   of whole lines                a warp copies 512 neighboring bytes with one instruction
//   and nothing to wait for       warps meet only where a segment ends; page numbers are read one tile ahead
//
// A warp is MmaWarp or SimtWarp.
#pragma once
#include <cstdint>

#include "common/cuda/alignment.h"
#include "common/cuda/attention_states.cuh"
#include "common/cuda/check.h"
#include "common/cuda/cp_async.cuh"
#include "common/kernels/decode/cache_layout.cuh"

constexpr int MAX_WARPS = 8;  // of a block

struct HeadUnits {
    int group;       // query heads that share a K/V head
    int unit_heads;  // query heads of a segment, at most
    int count;       // segments that a group makes
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

// STAGES tiles: one in use, the others on their way. Which tile comes next is the owner's business. It copies
// STAGES - 1 of them to begin with, and then, tile by tile,
//
//     ring.wait(); ring.copy(...) or ring.copy_nothing(); compute ring.tile(), ring.tokens(); ring.advance();
template <typename Warp, int STAGES>
struct TileRing {
    using T = typename Warp::Element;
    static constexpr int BYTES = STAGES * Warp::TILE_BYTES;

    unsigned char* tiles;  // [STAGES][TILE_BYTES], shared
    int used = 0, filled = 0;
    unsigned copied = 0;  // tokens of the latest tiles, 5 bits each, the last one lowest

    // Starts copying the tile from this slot on; `page` as page_number() gave it. What is no page has no tokens.
    __device__ __forceinline__ void copy(const DecodeArguments& a, int64_t sequence, int64_t kv_head, int slot,
                                         int page, int length, bool vectors) {
        const int64_t from = row_of(a.layout, sequence, kv_head, slot, page) * a.layout.head_dim;
        const int count = is_page(a.layout, page) ? min(TILE, length - slot) : 0;
        Warp::copy(tiles + filled * Warp::TILE_BYTES, static_cast<const T*>(a.k_cache) + from,
                   static_cast<const T*>(a.v_cache) + from, count, a.layout.head_dim, vectors);
        close(count);
    }
    __device__ __forceinline__ void copy_nothing() { close(0); }

    // Until the oldest tile is here, and the warp has done with the one before it, whose place is filled next.
    __device__ __forceinline__ void wait() const {
        cp_async_wait<STAGES - 2>();
        __syncwarp();
    }
    // The oldest tile, after the next one has been started.
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

// States that a query head has, of four columns each.
template <typename Warp>
constexpr int ROW = Warp::COLS / 4;

// The states of the warps: o [warps][heads][COLS + 4], m and l [warps][heads]. The 4 floats after each row let the
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

// Whether the tensors that are read begin at multiples of `bytes`.
inline bool inputs_aligned(const DecodeArguments& a, size_t bytes) {
    return all_aligned({a.query, a.k_cache, a.v_cache}, bytes);
}
