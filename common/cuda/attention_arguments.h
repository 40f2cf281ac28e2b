// attention_arguments.h - the arguments shared by the launchers of all dense and sparse attention kernels.
//
//   AttentionArguments         tensors, sizes, scale; attention_arguments() of attention_binding.h fills it
//   MAX_POSITION               the largest position of a row or a key
//
// Pointers are device pointers.
#pragma once
#include <cstdint>

#include "common/cuda/row_strides.h"

constexpr int64_t MAX_POSITION = 0x7fffff00;  // fits an int even when rounded up to a tile

// out = softmax(scale * query @ key^T, masked) @ value
//
// Query head h uses key head h / (heads / kv_heads): grouped-query attention if kv_heads < heads (a multiple). A query
// that sees no key gets zeros and lse -infinity.
struct AttentionArguments {
    const void* query;  // [batch, heads, S_q, head_dim]
    const void* key;    // [batch, kv_heads, S_k, head_dim]
    const void* value;  // [batch, kv_heads, S_k, head_dim]
    void* out;          // [batch, heads, S_q, head_dim], contiguous
    float* lse;         // [batch, heads, S_q], contiguous: natural log(sum over keys of exp(score)); or nullptr
    RowStrides query_strides, key_strides, value_strides;
    int64_t batch, heads, kv_heads, S_q, S_k;
    int head_dim;  // 1 or more
    float scale;
};
