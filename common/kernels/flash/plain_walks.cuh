// plain_walks.cuh - which tiles a block goes through: all between two ends, or those of the blocks in a list.
//
//   AllTiles                  every tile in which some row sees some key
//   ListedTiles               of these the ones that lie in listed blocks
//
// Both give walks: more() tells whether there is another tile, start() where it begins in its sequence, left() how many
// rows there are from there on, and advance() leads to the next.
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
    // Of the keys that one of `rows` rows from place.start on sees.
    template <int B_c>
    __device__ __forceinline__ Walk<B_c> keys(const Sequence& s, const Place& place, int rows) const {
        return {s.first_key_of(place.start) / B_c * B_c, s.end_of_keys(place.start + rows - 1)};
    }
    // Of the rows of a head that see one of `keys` keys from place.start on.
    template <int B_r>
    __device__ __forceinline__ Walk<B_r> rows(const Sequence& s, const Place& place, int keys, int /*head*/) const {
        return {s.first_row_of(place.start) / B_r * B_r, s.end_of_rows(place.start + keys - 1)};
    }
};

// Numbers that a caller has got wrong are brought into range: they hide at will, and nothing outside of the tensors is
// read. A tile divides a block.
struct ListedTiles {
    BlockLists of_rows, of_keys;  // of_keys: transposed, plain_transpose.cuh
    int q_blocks, k_blocks;

    template <int TILE>
    struct Walk {
        const int* list;
        int number, count, most;  // in the list; blocks that there are
        int block, part, end;     // rows of a block; where in the block the tile begins; where nothing is seen any more
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
    // Tiles of a list of `most` at most, which ends before `end`; those that end at or before `begin` are left out.
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
