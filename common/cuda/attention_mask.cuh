// attention_mask.cuh - the optional `mask` argument of an attention operator, as a kernel sees it.
//
//   AttentionMask     where the mask is and how to step through it; attention_binding.h makes one of a tensor
//   masked_score()    a score -> the score with the mask applied
//   mask_from()       the mask as a block sees it: from its own head, row and key on
//   in_log2()         a bias, or a score with one, in units of log2(e), where kernels take powers of two
//
// A mask says which key each query may look at. Two kinds, as PyTorch's attn_mask:
//
//   BOOL     true: look; false: do not, the score becomes -infinity and the softmax makes it 0
//   FLOAT    added to the score; -infinity forbids, other numbers (a bias for the distance, say) make a key count
//            more or less
//
// Every mask broadcasts to [batch, heads, S_q, S_k]: along a dimension in which it has size 1 all entries share the
// same value. Nothing is copied for that. The stride of a dimension says how many elements are between two neighbors
// along it, and a stride of 0 stays at the same element:
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
    int64_t heads = 1;           // kernels count batch * heads in one number; this takes it apart
    int64_t batch_stride = 0, head_stride = 0, query_stride = 0, key_stride = 0;  // in elements
};

// The score of (query q, key k) of matrix `batch_head` (= batch * heads + head), scaled already, with the mask applied.
__device__ __forceinline__ float masked_score(float score, const AttentionMask& mask, int64_t batch_head, int64_t q,
                                              int64_t k) {
    if (mask.kind == MaskKind::NONE) return score;
    const int64_t batch = batch_head / mask.heads, head = batch_head % mask.heads;
    const int64_t at =
        batch * mask.batch_stride + head * mask.head_stride + q * mask.query_stride + k * mask.key_stride;
    if (mask.kind == MaskKind::BOOL) return static_cast<const bool*>(mask.data)[at] ? score : -INFINITY;
    const float bias = static_cast<const float*>(mask.data)[at];
    return bias == -INFINITY ? bias : score + bias;  // whatever score is: a hidden key may hold NaN
}

// The mask from (batch, head, q, k) on: masked_score(score, mask_from(...), 0, i, j) takes its element (q + i, k + j).
__device__ __forceinline__ AttentionMask mask_from(AttentionMask mask, int64_t batch, int64_t head, int64_t q = 0,
                                                   int64_t k = 0) {
    const int64_t at =
        batch * mask.batch_stride + head * mask.head_stride + q * mask.query_stride + k * mask.key_stride;
    mask.data = static_cast<const char*>(mask.data) + at * (mask.kind == MaskKind::BOOL ? sizeof(bool) : sizeof(float));
    mask.heads = 1;
    return mask;
}

// x * log2(e). Models hide keys by the smallest float, too, and that must stay finite: a row of nothing else sees all of
// them alike, and gets the mean of V. So numbers from 2^126 on in magnitude are multiplied by less beyond it. Differences
// among these are still so large that a power of 2 of one is 0 or infinity.
__device__ __forceinline__ float in_log2(float x) {
    constexpr float LARGE = 0x1p126f;
    if (fabsf(x) <= LARGE || fabsf(x) == INFINITY || x != x) return x * LOG2_E;
    return copysignf(LARGE * LOG2_E + (fabsf(x) - LARGE) * 0.75f, x);
}
