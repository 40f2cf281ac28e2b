// plain_walks.cuh - which tiles a block visits: all between two ends, or those of listed blocks.
//
//   AllTiles                  every tile in which some row sees some key
//   ListedTiles               those of them that are in listed blocks
//
// Both provide walks: more() says whether there is another tile, start() where it starts in its sequence, left() how
// many rows there are from there on, and advance() moves to the next.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_sequences.cuh"

struct AllTiles {
    template <int TILE>
    struct Walk {
        int at, end;
        __device__ __forceinline__ bool more() const { return at < end; }
        __device__ __forceinline__ int start() const { return at; }
        __device__ __forceinline__ int left() const { return end - at; }
        __device__ __forceinline__ void advance() { at += TILE; }
    };
    // Over the keys that any of `rows` rows from place.start on sees.
    template <int B_c>
    __device__ __forceinline__ Walk<B_c> keys(const Sequence& s, const Place& place, int rows) const {
        return {s.first_key_of(place.start) / B_c * B_c, s.end_of_keys(place.start + rows - 1)};
    }
    // Over the rows of a head that see any of `keys` keys from place.start on.
    template <int B_r>
    __device__ __forceinline__ Walk<B_r> rows(const Sequence& s, const Place& place, int keys, int /*head*/) const {
        return {s.first_row_of(place.start) / B_r * B_r, s.end_of_rows(place.start + keys - 1)};
    }
};

// Invalid counts and indices are clamped: what they hide is unspecified, but nothing outside of the tensors is read. A
// tile divides a block.
struct ListedTiles {
    BlockLists of_rows, of_keys;  // of_keys: transposed, plain_transpose.cuh
    int q_blocks, k_blocks;

    template <int TILE>
    struct Walk {
        const int* list;
        int number, count, most;  // in the list; number of blocks that exist
        int block, part, end;     // rows of a block; where in the block the tile starts; from where on nothing is seen
        __device__ __forceinline__ bool more() const { return number < count && start() < end; }
        __device__ __forceinline__ int start() const {
            return static_cast<int>(min(static_cast<unsigned>(list[number]), most - 1u)) * block + part;
        }
        __device__ __forceinline__ int left() const { return TILE; }
        __device__ __forceinline__ void advance() {
            part += TILE;
            if (part == block) part = 0, ++number;
        }
    };
    // Tiles of a list of at most `most` blocks, up to `end`; those that end at or before `begin` are skipped.
    template <int TILE>
    static __device__ __forceinline__ Walk<TILE> walk(const BlockLists& lists, int64_t row, int most, int begin,
                                                      int end) {
        const int count = min(max(lists.counts[row], 0), most);
        Walk<TILE> w = {lists.columns + row * most, 0, count, most, lists.block, 0, end};
        while (w.more() && w.start() + TILE <= begin) w.advance();
        return w;
    }
    template <int B_c>
    __device__ __forceinline__ Walk<B_c> keys(const Sequence& s, const Place& place, int rows) const {
        return walk<B_c>(of_rows, int64_t{place.head} * q_blocks + place.start / of_rows.block, k_blocks,
                         s.first_key_of(place.start), s.end_of_keys(place.start + rows - 1));
    }
    template <int B_r>
    __device__ __forceinline__ Walk<B_r> rows(const Sequence& s, const Place& place, int keys, int head) const {
        return walk<B_r>(of_keys, int64_t{head} * k_blocks + place.start / of_keys.block, q_blocks,
                         s.first_row_of(place.start), s.end_of_rows(place.start + keys - 1));
    }
};
