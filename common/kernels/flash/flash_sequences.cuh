// flash_sequences.cuh - which rows of which sequence a block has, packed or not, and which keys they see.
//
//   Sequence         its rows and keys and where they start; which keys a row sees, apart from the mask tensor
//   Place            a tile of rows (or of keys) of a sequence
//   place_of_block   the Place of this block
//   row_at           a row's index in a tensor; number_at: its index in lse
//   sequence_of      which packed sequence a row belongs to
//   PaddedRows       where the rows of a sequence are in the backward pass's workspaces
//   tiles_of         host: an upper bound on the number of tiles
//
// Where packed sequences begin is known only on the device, and the host does not synchronize to find out: it launches
// an upper bound of blocks, and each block searches for the sequence that its tile belongs to. Blocks that find none
// exit. Invalid offsets (past the end, decreasing) give wrong results, but no access outside the tensors.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/key_positions.cuh"
#include "common/kernels/flash/attention_policies.cuh"
#include "common/kernels/flash/flash.h"

struct Sequence : Band<int64_t> {
    int number;                    // index in the batch
    int step;                      // key j is at position j * step; other than 1 only under a causal mask, without windows
    int64_t first_row, first_key;  // where it starts in packed tensors; 0 otherwise

    __device__ __forceinline__ Sequence(const FlashArguments& a, int number) : number(number), step(a.key_step) {
        first_row = first_key = 0;
        int rows = static_cast<int>(a.S_q), keys = static_cast<int>(a.S_k);
        if (a.cu_seqlens_q != nullptr) {
            rows = rows_of(a.cu_seqlens_q, number, a.S_q, first_row);
            keys = rows_of(a.cu_seqlens_k, number, a.S_k, first_key);
        }
        set(rows, keys, a.causal, a.lower_right, a.window_left, a.window_right);
        if (a.causal && !a.lower_right && a.window_left < 0 && a.window_right < 0) highest = a.diagonal;
    }

    __device__ __forceinline__ int end_of_keys(int row) const {
        if (step == 1) return Band::end_of_keys(row);
        return row < rows ? within(keys_up_to(row + highest, step), keys) : 0;
    }
    __device__ __forceinline__ int first_row_of(int key) const { return within(int64_t{key} * step - highest, rows); }
    // All rows if keys are `step` apart: then there is no window.
    __device__ __forceinline__ int end_of_rows(int key) const { return step == 1 ? Band::end_of_rows(key) : rows; }
};

struct Place {
    int head, number, start;  // number: of the sequence, -1 if there is no such tile; start: the tile's first row in it
};

inline int64_t tiles_of(int64_t batch, int64_t length, bool packed, int tile) {
    return packed ? length / tile + batch : batch * ceil_div(length, int64_t{tile});
}

// Block x of heads * tiles_of(...). The tiles of a head are consecutive, so that they find the same tensors in the L2
// cache, and so are heads that share K and V.
//   cu_seqlens, length: of rows or of keys
//   last_first: a sequence's last tiles come first; under a causal mask their rows see the most keys
__device__ __forceinline__ Place place_of_block(const int* cu_seqlens, int64_t length, int64_t batch, int64_t heads,
                                                int tile, bool last_first) {
    if (cu_seqlens == nullptr) {
        const unsigned each = static_cast<unsigned>(ceil_div(length, int64_t{tile}));
        const unsigned matrix = blockIdx.x / each, in_matrix = blockIdx.x % each;
        const unsigned number = matrix / static_cast<unsigned>(heads);
        return {static_cast<int>(matrix % static_cast<unsigned>(heads)), static_cast<int>(number),
                static_cast<int>((last_first ? each - 1 - in_matrix : in_matrix) * tile)};
    }
    const int64_t tiles = length / tile + batch;
    const int head = static_cast<int>(blockIdx.x / tiles);
    int64_t left = blockIdx.x % tiles, ignored;
    for (int number = 0; number < batch; ++number) {
        const int own = ceil_div(rows_of(cu_seqlens, number, length, ignored), tile);
        if (left < own) return {head, number, static_cast<int>(last_first ? own - 1 - left : left) * tile};
        left -= own;
    }
    return {head, -1, 0};
}

template <typename T>
__device__ __forceinline__ T* row_at(T* tensor, const RowStrides& strides, int64_t number, int64_t head, int64_t row) {
    return tensor + number * strides.batch + head * strides.head + row * strides.row;
}

__device__ __forceinline__ int64_t matrix_of(const FlashArguments& a, int number, int head) {
    return a.cu_seqlens_q != nullptr ? head : number * a.heads + head;
}
__device__ __forceinline__ int64_t number_at(const FlashArguments& a, const Sequence& s, int head, int row) {
    return matrix_of(a, s.number, head) * a.S_q + s.first_row + row;
}

// The last sequence that begins at or before `place`, where sequence b begins at begin(b).
template <typename F>
__device__ __forceinline__ int sequence_of(int batch, int place, F begin) {
    int low = 0, high = batch - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (begin(middle) <= place)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// A head's rows in the workspaces (dQ's sum, lse and delta): every packed sequence starts at a multiple of a tile of
// rows, so a tile belongs to one sequence. There are `count` rows, whatever cu_seqlens holds.
struct PaddedRows {
    const int* cu_seqlens;  // nullptr: not packed
    int batch, S_q, tile;   // tile: in rows, a power of two

    int64_t count() const {
        return cu_seqlens != nullptr ? int64_t{S_q} / tile * tile + int64_t{batch} * tile
                                     : ceil_div(int64_t{S_q}, int64_t{tile}) * tile;
    }
    // first_row: of sequence `number`, in the tensors
    __device__ __forceinline__ int start(int number, int first_row) const {
        return cu_seqlens == nullptr ? 0 : (first_row & -tile) + number * tile;
    }
    // The row in the tensors, or -1 if none.   number: of its sequence; not set if not packed
    __device__ __forceinline__ int row_at(int padded, int& number) const {
        if (cu_seqlens == nullptr) return padded < S_q ? padded : -1;
        number = sequence_of(batch, padded, [&](int b) { return start(b, min(max(cu_seqlens[b], 0), S_q)); });
        int first;
        const int rows = rows_of(cu_seqlens, number, S_q, first), row = padded - start(number, first);
        return row >= 0 && row < rows ? first + row : -1;
    }
};
