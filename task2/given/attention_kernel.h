// attention_kernel.h - the launchers of task 2: what attention_kernel.cu provides and binding.cpp calls.
//
// All pointers are to contiguous, row-major float32 in device memory (the last dimension varies fastest).
// Every function launches its kernels on `stream` and returns without waiting for them. Nothing is checked
// here: binding.cpp rejects sizes beyond the limits.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/attention_mask.cuh"

constexpr int MAX_SOFTMAX_COLS = 65536;
constexpr int64_t MAX_ROW_BLOCKS = 2147483647;  // 2^31 - 1: gridDim.x, one block per row
constexpr int64_t MAX_GEMM_SIZE = 2147483616;   // M, N, K: 2^31 - 32; still an int when rounded up to a tile
constexpr int64_t MAX_GEMM_N = 65535 * 32;      // gridDim.y tiles of 32 columns

// sums[r] = the sum of x[r, :]        x [rows, cols], sums [rows]
void row_sum(const float* x, float* sums, int64_t rows, int cols, cudaStream_t stream);

// y[r, :] = softmax(x[r, :])          x, y [rows, cols]; y may be x
// A row that is all -inf (everything masked) gives zeros.
void softmax(const float* x, float* y, int64_t rows, int cols, cudaStream_t stream);

// c[i] = a[i] @ b[i]                  a [batch, M, K], b [batch, K, N], c [batch, M, N]
void gemm_nn(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K,
             cudaStream_t stream);

// c[i] = a[i] @ b[i]^T                a [batch, M, K], b [batch, N, K], c [batch, M, N]
void gemm_nt(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K,
             cudaStream_t stream);

// scores = mask(scores * scale); causal: scores[:, q, k] = -inf where k > q          scores [batch_heads, S_q, S_k]
void scale_and_mask(float* scores, int64_t batch_heads, int S_q, int S_k, float scale, bool causal, AttentionMask mask,
                    cudaStream_t stream);

// out = softmax(mask(query @ key^T * scale)) @ value, for each of the batch * heads heads
//     query, out [batch_heads, S_q, head_dim]
//     key, value [batch_heads, S_k, head_dim]
//     scores     [batch_heads, S_q, S_k]       workspace; holds the attention weights afterward
// A query that may see no key gets zeros.
void custom_attention(const float* query, const float* key, const float* value, float* scores, float* out,
                      int64_t batch_heads, int S_q, int S_k, int head_dim, float scale, bool causal,
                      AttentionMask mask, cudaStream_t stream);
