// flash_attention.h - what flash_attention.cu provides to binding.cpp.
//
// All tensors are float32, contiguous, in device memory:
//
//   query, out   [batch * heads, S_q, head_dim]
//   key, value   [batch * heads, S_k, head_dim]
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

constexpr int MAX_HEAD_DIM = 128;

// out = softmax(scale * query @ key^T) @ value for each head; head_dim is 1 .. MAX_HEAD_DIM, every size at
// least 1. With `causal`, query i sees key j when j <= i + diagonal: diagonal = 0 aligns the mask to the top left,
// S_k - S_q to the bottom right. Without `causal`, diagonal is ignored. A query that sees no key gets zeros.
// No workspace: no other device memory is read or written. Throws std::runtime_error if CUDA rejects the
// launch.
void custom_flash_attention(const float* query, const float* key, const float* value, float* out,
                            int64_t batch_heads, int64_t S_q, int64_t S_k, int head_dim, float scale,
                            bool causal, int64_t diagonal, cudaStream_t stream);
