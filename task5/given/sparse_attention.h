// sparse_attention.h - what sparse_attention.cu provides to binding.cpp.
//
// All tensors are contiguous, in device memory; query, key, value and out are float32:
//
//   query, out   [batch * heads, S_q, head_dim]       head_dim is 1 .. MAX_HEAD_DIM, every size at least 1
//   key, value   [batch * heads, S_k, head_dim]
//
// Each computes out = softmax(scale * query @ key^T) @ value for each head, over the keys that a query sees; a query
// that sees none gets zeros. There is no workspace. All throw std::runtime_error if CUDA rejects the launch.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

// Query i sees the keys j with |i - j| < window and, with `causal`, j <= i. window is 1 .. max(S_q, S_k).
void custom_sliding_window_attention(const float* query, const float* key, const float* value, float* out,
                                     int64_t batch_heads, int64_t S_q, int64_t S_k, int head_dim, int64_t window,
                                     bool causal, float scale, cudaStream_t stream);

// Compresses the rows of a block mask:
//
//   mask      [rows, k_blocks]   true: the block is attended to
//   counts    [rows]             the number of true blocks in each row
//   columns   [rows, k_blocks]   their indices in ascending order, then -1
//
// It does not synchronize with the GPU, so it can be captured in a CUDA graph.
void custom_compress_block_mask(const bool* mask, int* counts, int* columns, int64_t rows, int k_blocks,
                                cudaStream_t stream);

// Query i sees key j when columns[head][i / block] lists j / block and, with `causal`, j <= i. S_q and S_k are
// multiples of block; block is 32, 64, 96 or 128. The lists are the same for every batch entry:
//
//   counts    [heads, S_q / block]                 as custom_compress_block_mask writes them; an invalid
//   columns   [heads, S_q / block, S_k / block]    block index is skipped, a count is clamped to S_k / block
void custom_block_sparse_attention(const float* query, const float* key, const float* value, float* out,
                                   const int* counts, const int* columns, int64_t batch_heads, int heads,
                                   int64_t S_q, int64_t S_k, int head_dim, int block, bool causal, float scale,
                                   cudaStream_t stream);
