// flash_launch.h - checks that the launchers of the fast attention kernels make before launching.
//
//   require_bfloat16      refuses a GPU whose tensor cores have no bfloat16
//   check_row_count       refuses more rows than the kernels can index
//   in_pieces             whether rows may be read and written in 16-byte accesses
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "common/cuda/alignment.h"
#include "common/cuda/attention_arguments.h"
#include "common/cuda/check.h"
#include "common/cuda/row_strides.h"

inline void require_bfloat16() {
    const int major = device_attribute(cudaDevAttrComputeCapabilityMajor);
    if (major < 8)
        throw std::invalid_argument("query is bfloat16, and the GPU has compute capability " + std::to_string(major) +
                                    "." + std::to_string(device_attribute(cudaDevAttrComputeCapabilityMinor)) +
                                    "; bfloat16 needs 8.0 or higher: use float16");
}

// Positions within a sequence are ints, even when rounded up to a tile.
inline void check_row_count(const AttentionArguments& a) {
    if (a.S_q > MAX_POSITION || a.S_k > MAX_POSITION)
        throw std::invalid_argument("S_q is " + std::to_string(a.S_q) + " and S_k " + std::to_string(a.S_k) +
                                    "; they must be at most " + std::to_string(MAX_POSITION));
}

// T: the element type.
template <typename T>
bool in_pieces(const void* data, RowStrides strides = {}) {
    constexpr int64_t PIECE = 16 / sizeof(T);
    return all_aligned({data}) && strides.batch % PIECE == 0 && strides.head % PIECE == 0 && strides.row % PIECE == 0;
}

// All tensors of the forward pass.
template <typename T>
bool in_pieces(const AttentionArguments& a) {
    return a.head_dim % (16 / sizeof(T)) == 0 && in_pieces<T>(a.query, a.query_strides) &&
           in_pieces<T>(a.key, a.key_strides) && in_pieces<T>(a.value, a.value_strides) && in_pieces<T>(a.out);
}
