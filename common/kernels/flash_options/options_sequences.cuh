// options_sequences.cuh - which rows of which sequence a block has, packed or not.
//
//   Sequence         how many rows and keys it has, where they begin; as a Band, which keys a row sees
//   Place            a tile of rows (or of keys) of a sequence
//   place_of_block   the Place of this block
//   row_at           where a row lies in a tensor; number_at: its number in lse
//   tiles_of         host: how many tiles there are at most
//
// Packed sequences are told by numbers in the memory of the device, which the host does not wait for: it launches as many
// blocks as there can be tiles, and a block looks for the sequence that its tile belongs to. Those that find none leave.
// Numbers that are no boundaries (beyond the end, falling) give wrong results, but lead nobody out of the tensors.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/check.h"
#include "common/kernels/flash/attention_policies.cuh"
#include "common/kernels/flash_options/options.h"

struct Sequence : Band<int64_t> {
    int number;                    // in the batch
    int64_t first_row, first_key;  // where it begins in packed tensors; 0 in others

    __device__ __forceinline__ Sequence(const OptionsArguments& a, int number) : number(number) {
        first_row = first_key = 0;
        int rows = static_cast<int>(a.S_q), keys = static_cast<int>(a.S_k);
        if (a.cu_seqlens_q != nullptr) {
            rows = rows_of(a.cu_seqlens_q, number, a.S_q, first_row);
            keys = rows_of(a.cu_seqlens_k, number, a.S_k, first_key);
        }
        set(rows, keys, a.causal, a.lower_right, a.window_left, a.window_right);
    }
};

struct Place {
    int head, number, start;  // number: of the sequence, -1 if there is no such tile; start: the tile's first row in it
};

inline int64_t tiles_of(int64_t batch, int64_t length, bool packed, int tile) {
    return packed ? length / tile + batch : batch * ceil_div(length, int64_t{tile});
}

// Block x of heads * tiles; the last tiles of a head come first: under a causal mask their rows see most keys.
//   cu_seqlens, length: of rows or of keys
__device__ __forceinline__ Place place_of_block(const int* cu_seqlens, int64_t length, int64_t batch, int tile) {
    const bool packed = cu_seqlens != nullptr;
    const int64_t tiles = packed ? length / tile + batch : batch * ceil_div(length, int64_t{tile});
    const int head = static_cast<int>(blockIdx.x / tiles);
    int64_t left = tiles - 1 - blockIdx.x % tiles;
    if (!packed) {
        const int64_t each = ceil_div(length, int64_t{tile});
        return {head, static_cast<int>(left / each), static_cast<int>(left % each) * tile};
    }
    for (int number = 0; number < batch; ++number) {
        const int64_t rows = min(int64_t{cu_seqlens[number + 1]}, length) - max(cu_seqlens[number], 0);
        const int64_t own = rows > 0 ? ceil_div(rows, int64_t{tile}) : 0;
        if (left < own) return {head, number, static_cast<int>(left) * tile};
        left -= own;
    }
    return {head, -1, 0};
}

template <typename T>
__device__ __forceinline__ T* row_at(T* tensor, const RowStrides& strides, int number, int64_t head, int64_t row) {
    return tensor + number * strides.batch + head * strides.head + row * strides.row;
}

__device__ __forceinline__ int64_t number_at(const OptionsArguments& a, const Sequence& s, int64_t head, int row) {
    const int64_t matrix = a.cu_seqlens_q != nullptr ? head : s.number * a.heads + head;
    return matrix * a.S_q + s.first_row + row;
}
