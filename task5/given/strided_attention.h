// strided_attention.h - what strided_attention.cu provides to binding.cpp.
//
// All tensors are float32, contiguous, in device memory:
//
//   query, out   [batch * heads, S_q, head_dim]
//   key, value   [batch * heads, S_k, head_dim]
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

constexpr int MAX_HEAD_DIM = 128;

// out = softmax(scale * query @ K^T) @ V for each head, where K and V are the rows offset, offset + stride,
// offset + 2 * stride, ... < S_k of key and value. head_dim is 1 .. MAX_HEAD_DIM, stride 1 .. S_k, offset
// 0 .. stride - 1, every size at least 1. With `causal`, query i sees only the strided keys at positions j <= i. A
// query that sees no key gets zeros. No other row of key and value is read; there is no workspace. Throws
// std::runtime_error if CUDA rejects the launch.
void custom_strided_attention(const float* query, const float* key, const float* value, float* out,
                              int64_t batch_heads, int64_t S_q, int64_t S_k, int head_dim, int64_t stride,
                              int64_t offset, bool causal, float scale, cudaStream_t stream);
