// naive_attention.h - the launch functions of task 1: what naive_attention.cu provides and binding.cpp calls.
//
//   query, out        [batch_heads, S_q, head_dim]     T: float, __half or __nv_bfloat16; batch_heads = batch * heads
//   key, value        [batch_heads, S_k, head_dim]     T
//   scores, weights   [batch_heads, S_q, S_k]          float
//
// All pointers are to contiguous, row-major device memory (the last dimension varies fastest). Every
// function launches its kernels on `stream` and returns without waiting for them. Nothing is checked here: binding.cpp
// checks the arguments first.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/attention_mask.cuh"

constexpr int THREADS = 256;                                    // per block
constexpr int64_t MAX_THREADS = int64_t(2147483647) * THREADS;  // a grid has at most 2^31 - 1 blocks

// scores = mask(query @ key^T * scale); causal: -inf where key k comes after query q (k > q).
// mask: see attention_mask.cuh.
template <typename T>
void launch_scores(const T* query, const T* key, float* scores, int64_t batch_heads, int64_t S_q, int64_t S_k,
                   int64_t head_dim, float scale, bool causal, AttentionMask mask, cudaStream_t stream);

// weights[r, :] = softmax(scores[r, :])          scores, weights [rows, cols]; weights may be scores
// A row that is all -inf (a query that may see no key) gives zeros.
void launch_softmax(const float* scores, float* weights, int64_t rows, int64_t cols, cudaStream_t stream);

// out = weights @ value
template <typename T>
void launch_output(const float* weights, const T* value, T* out, int64_t batch_heads, int64_t S_q, int64_t S_k,
                   int64_t head_dim, cudaStream_t stream);

// out = softmax(mask(query @ key^T * scale)) @ value; scores is a workspace and holds the weights afterward.
template <typename T>
void naive_attention(const T* query, const T* key, const T* value, float* scores, T* out, int64_t batch_heads,
                     int64_t S_q, int64_t S_k, int64_t head_dim, float scale, bool causal, AttentionMask mask,
                     cudaStream_t stream);
