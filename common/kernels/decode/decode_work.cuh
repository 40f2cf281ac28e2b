// decode_work.cuh - the work distribution of decode_list.cuh: the work of a whole batch as one list, split evenly.
//
//   WorkList, cut       the list and where it is split
//   Segment             a position in it: segment_at, advance
//
// All segments of all sequences (defined in decode_common.cuh) are in one list, which is split into parts of the same
// number of tiles, one for each block:
//
//     sequence      0 (40 tokens)         1 (9)    2 (70 tokens)
//     K/V head      0       1             0   1    0            1
//     tiles       | 0 1 2 | 0 1 2       | 0 | 0  | 0 1 2 3 4  | 0 1 2 3 4 |
//     part          0 0 0   0 1 1         1   1    2 2 2 2 3    3 3 3 4 4           parts of 4
//
// So the number of sequences, their lengths and their heads do not matter: all blocks read the same amount. If a split
// falls inside a segment, several blocks share its softmax, and their states are merged at the end
// (attention_states.cuh). The host need not know any length: the number of blocks is fixed, and each finds the start of
// its part on the device.
//
// A block that has shares of two segments has to write two results. If all sequences are equally long (a single one, in
// particular), splits inside a segment and segment ends can be aligned: then every segment gets whole parts, the last
// of which may be a little shorter.
#pragma once
#include "common/cuda/check.h"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/decode/cache_layout.cuh"

constexpr int LEAST_TILES = 8;          // per part: fewer are not worth a block
constexpr int64_t MAX_TILES = 1 << 30;  // in the list: they are counted as int

// Tiles of `length` tokens.
__device__ __forceinline__ int tiles_of(int length) { return ceil_div(length, TILE); }

struct WorkList {
    const int* lengths;  // [batch]
    int batch, kv_heads;
    int head_units;  // segments per K/V head
    int capacity;    // tokens per sequence

    // Set by cut()
    int total;      // tiles
    int part_size;  // tiles
    bool whole;     // every segment gets whole parts

    __device__ __forceinline__ int length_of(int sequence) const { return min(max(lengths[sequence], 0), capacity); }
    __device__ __forceinline__ int units() const { return kv_heads * head_units; }
    // The length of a segment in the list: its tiles, or slightly more.
    __device__ __forceinline__ int places_of(int length) const {
        return whole ? ceil_div(tiles_of(length), part_size) * part_size : tiles_of(length);
    }
};

// Splits the list into at most `most` parts. All lanes of a warp call.
__device__ __forceinline__ void cut(WorkList& list, int most) {
    int tiles = 0, longest = 0;
    NO_UNROLL
    for (int i = threadIdx.x % 32; i < list.batch; i += 32) {
        const int more = tiles_of(list.length_of(i));
        tiles += more;
        longest = max(longest, more);
    }
    UNROLL
    for (int distance = 16; distance > 0; distance /= 2) {
        tiles += __shfl_xor_sync(FULL_WARP, tiles, distance);
        longest = max(longest, __shfl_xor_sync(FULL_WARP, longest, distance));
    }
    list.total = tiles * list.units();
    list.part_size = max(LEAST_TILES, ceil_div(list.total, most));
    list.whole = false;
    if (tiles != list.batch * longest || tiles == 0) return;
    // All are equally long: round up to the next size with whole parts per segment, or whole segments per part
    const bool several = list.part_size <= longest;
    const int size = several ? ceil_div(longest, longest / list.part_size)
                             : ceil_div(list.part_size, longest) * longest;
    if (size > list.part_size + list.part_size / 16 + 1) return;
    list.part_size = size;
    list.whole = several;
}

// A position in the list.
struct Segment {
    int sequence, kv_head, head_unit;
    int length;  // tokens of the sequence
    int tile;    // in this segment
};

// Inclusive prefix sum over the lanes: lane i gets the sum of the values of lanes 0 .. i.
__device__ __forceinline__ int warp_inclusive_sum(int value) {
    const int lane = threadIdx.x % 32;
    UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(FULL_WARP, value, distance);
        if (lane >= distance) value += other;
    }
    return value;
}

// The position with this index; false if the list ends before it. All lanes of a warp call.
__device__ __forceinline__ bool segment_at(Segment& at, const WorkList& list, int number) {
    int before = 0;  // positions, per head unit, of the sequences passed so far
    NO_UNROLL
    for (int first = 0; first < list.batch; first += 32) {
        const int sequence = first + static_cast<int>(threadIdx.x) % 32;
        const int length = sequence < list.batch ? list.length_of(sequence) : 0;
        const int sum = before + warp_inclusive_sum(list.places_of(length));
        const unsigned beyond = __ballot_sync(FULL_WARP, sum * list.units() > number);
        if (beyond) {
            const int lane = __ffs(static_cast<int>(beyond)) - 1;  // the first sequence that ends after it
            at.sequence = first + lane;
            at.length = __shfl_sync(FULL_WARP, length, lane);
            const int places = list.places_of(at.length);
            const int rest = number - (__shfl_sync(FULL_WARP, sum, lane) - places) * list.units();
            const int unit = rest / places;
            at.kv_head = unit / list.head_units;
            at.head_unit = unit % list.head_units;
            at.tile = rest % places;
            return true;
        }
        before = __shfl_sync(FULL_WARP, sum, 31);
    }
    return false;
}

// The index of the first position of a segment. All lanes of a warp call.
__device__ __forceinline__ int number_of(const WorkList& list, const Segment& segment) {
    int before = 0;
    NO_UNROLL
    for (int i = threadIdx.x % 32; i < segment.sequence; i += 32) before += list.places_of(list.length_of(i));
    UNROLL
    for (int distance = 16; distance > 0; distance /= 2) before += __shfl_xor_sync(FULL_WARP, before, distance);
    const int unit = segment.kv_head * list.head_units + segment.head_unit;
    return before * list.units() + unit * list.places_of(segment.length);
}

// Moves `steps` positions forward in the list, to a tile that must exist; not called if segments get whole parts.
__device__ __forceinline__ void advance(Segment& at, const WorkList& list, int steps) {
    at.tile += steps;
    while (at.tile >= tiles_of(at.length)) {
        at.tile -= tiles_of(at.length);
        if (++at.head_unit < list.head_units) continue;
        at.head_unit = 0;
        if (++at.kv_head < list.kv_heads) continue;
        at.kv_head = 0;
        do at.length = list.length_of(++at.sequence);
        while (at.length == 0);
    }
}
