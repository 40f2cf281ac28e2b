// flash_keys.cuh - which keys a query may see and which queries a key, apart from the mask tensor.
//
//   position_of(a, row)             a row's position, in the keys' coordinates
//   keys_seen<NEXT>(a, position)    the number of keys (the first ones) that a row at this position sees
//   first_row_of(a, key)            the first row that sees the key
//
// Rows and keys are counted from the first of their head; rows past S_q, up to the end of a tile, are allowed.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/key_positions.cuh"
#include "common/kernels/flash/flash.h"

// Without a causal mask all rows see all keys: their position is after the last one.
__device__ __forceinline__ int64_t position_of(const FlashArguments& a, int64_t row) {
    return a.causal ? row + a.diagonal : a.S_k;
}

// NEXT: key_step is 1. Loops that are short of registers use this instance, which has no division.
template <bool NEXT>
__device__ __forceinline__ int keys_seen(const FlashArguments& a, int64_t position) {
    const int64_t keys = keys_up_to(position, NEXT ? 1 : a.key_step);
    return static_cast<int>(keys < a.S_k ? keys : a.S_k);
}

// S_q or more if no row sees it.
__device__ __forceinline__ int64_t first_row_of(const FlashArguments& a, int64_t key) {
    const int64_t row = a.causal ? key * a.key_step - a.diagonal : 0;
    return row > 0 ? row : 0;
}
