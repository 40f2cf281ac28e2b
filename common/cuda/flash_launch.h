// flash_launch.h - what the launchers of the tuned attention kernels ask before they launch.
//
//   require_bfloat16      refuses a GPU whose tensor cores have no bfloat16
//   check_row_count       refuses more rows than the kernels count
//   grid_of               a number of blocks, refused if a grid cannot have so many
//   in_pieces             whether rows may be read and written 16 bytes at a time
//
// Arguments: a kernel's, with query, key, value, out, their RowStrides (out is contiguous), S_q, S_k and head_dim.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "common/cuda/check.h"
#include "common/cuda/row_strides.h"

inline void require_bfloat16() {
    const int major = device_attribute(cudaDevAttrComputeCapabilityMajor);
    if (major < 8)
        throw std::invalid_argument("query is bfloat16, and the GPU has compute capability " + std::to_string(major) +
                                    "." + std::to_string(device_attribute(cudaDevAttrComputeCapabilityMinor)) +
                                    "; bfloat16 needs 8.0 or higher: use float16");
}

// Positions within a sequence are ints; rounded up to a tile they still are.
template <typename Arguments>
void check_row_count(const Arguments& a) {
    constexpr int64_t MAX_ROWS = 0x7fffff00;
    if (a.S_q > MAX_ROWS || a.S_k > MAX_ROWS)
        throw std::invalid_argument("S_q is " + std::to_string(a.S_q) + " and S_k " + std::to_string(a.S_k) +
                                    "; they must be at most " + std::to_string(MAX_ROWS));
}

inline unsigned grid_of(int64_t blocks) {
    if (blocks > 0x7fffffff)
        throw std::invalid_argument("query and key need " + std::to_string(blocks) +
                                    " blocks; a grid has at most 2^31 - 1: split the batch");
    return static_cast<unsigned>(blocks);
}

// T: the type of the elements.
template <typename T>
bool in_pieces(const void* data, RowStrides strides = {}) {
    constexpr int64_t PIECE = 16 / sizeof(T);
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && strides.batch % PIECE == 0 && strides.head % PIECE == 0 &&
           strides.row % PIECE == 0;
}

// All tensors of the forward pass.
template <typename T, typename Arguments>
    requires requires(const Arguments& a) { a.query_strides; }
bool in_pieces(const Arguments& a) {
    return a.head_dim % (16 / sizeof(T)) == 0 && in_pieces<T>(a.query, a.query_strides) &&
           in_pieces<T>(a.key, a.key_strides) && in_pieces<T>(a.value, a.value_strides) && in_pieces<T>(a.out);
}
