// attention_mask.cuh - the optional `mask` argument of an attention operator, as kernels take it.
//
//   AttentionMask     pointer and strides of the mask; attention_binding.h makes one from a tensor
//   masked_score()    applies the mask to a score
//   mask_from()       the mask with its origin moved to a block's head, row and key
//   in_log2()         multiplies a bias, or a score with one, by log2(e), for kernels that use exp2
//
// A mask says which keys each query may attend to. Two kinds, as in PyTorch's attn_mask:
//
//   BOOL     true: attend; false: the score becomes -infinity and its weight 0
//   FLOAT    added to the score; -infinity hides a key, other values (a distance bias, say) raise or lower its weight
//
// Every mask broadcasts to [batch, heads, S_q, S_k]: along a dimension of size 1, all entries share one value. Nothing
// is copied: the stride of such a dimension is 0, so every index along it refers to the same element.
//
//   shape of the mask       strides: batch, head, query, key
//   [S_q, S_k]                       0      0     S_k    1        one mask for all
//   [batch, 1, 1, S_k]               S_k    0     0      1        each sequence hides its own padding
//   [batch, heads, S_q, S_k]         heads * S_q * S_k, S_q * S_k, S_k, 1
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "common/cuda/logarithms.h"

enum class MaskKind { NONE, BOOL, FLOAT };

struct AttentionMask {
    MaskKind kind = MaskKind::NONE;
    const void* data = nullptr;  // bool or float elements
    int64_t heads = 1;           // kernels use one index for batch * heads; this splits it
    int64_t batch_stride = 0, head_stride = 0, query_stride = 0, key_stride = 0;  // in elements
};

// The scaled score of (query q, key k) in matrix `batch_head` (= batch * heads + head), with the mask applied.
__device__ __forceinline__ float masked_score(float score, const AttentionMask& mask, int64_t batch_head, int64_t q,
                                              int64_t k) {
    if (mask.kind == MaskKind::NONE) return score;
    const int64_t batch = batch_head / mask.heads, head = batch_head % mask.heads;
    const int64_t at =
        batch * mask.batch_stride + head * mask.head_stride + q * mask.query_stride + k * mask.key_stride;
    if (mask.kind == MaskKind::BOOL) return static_cast<const bool*>(mask.data)[at] ? score : -INFINITY;
    const float bias = static_cast<const float*>(mask.data)[at];
    return bias == -INFINITY ? bias : score + bias;  // whatever the score: a hidden key may hold NaN
}

// The mask with its origin at (batch, head, q, k): masked_score(score, mask_from(...), 0, i, j) uses element
// (q + i, k + j).
__device__ __forceinline__ AttentionMask mask_from(AttentionMask mask, int64_t batch, int64_t head, int64_t q = 0,
                                                   int64_t k = 0) {
    const int64_t at =
        batch * mask.batch_stride + head * mask.head_stride + q * mask.query_stride + k * mask.key_stride;
    mask.data = static_cast<const char*>(mask.data) + at * (mask.kind == MaskKind::BOOL ? sizeof(bool) : sizeof(float));
    mask.heads = 1;
    return mask;
}

// x * log2(e). Models also hide keys by adding the lowest finite float. That must stay finite: a row in which every key
// is hidden this way attends to all of them equally and gets the mean of V. So beyond 2^126 in magnitude the slope is
// lower. Differences between such values are still so large that exp2 of one is 0 or infinity.
__device__ __forceinline__ float in_log2(float x) {
    constexpr float LARGE = 0x1p126f;
    if (fabsf(x) <= LARGE || fabsf(x) == INFINITY || x != x) return x * LOG2_E;
    return copysignf(LARGE * LOG2_E + (fabsf(x) - LARGE) * 0.75f, x);
}
