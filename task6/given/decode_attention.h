// decode_attention.h - what decode_attention.cu provides to binding.cpp.
//
// All floats are float32; everything is contiguous and in device memory:
//
//   k_cache, v_cache     [batch, kv_heads, max_seq_len, head_dim]
//   key, value           [batch, kv_heads, new_tokens, head_dim]
//   query, out           [batch, heads, head_dim]    one token per sequence; heads is a multiple of kv_heads
//   positions, lengths   int32 [batch]
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

constexpr int MAX_HEAD_DIM = 128;

// Writes token t of sequence b to slot positions[b] + t of the sequence's caches. A sequence whose tokens do
// not all fit, because positions[b] is outside 0 .. max_seq_len - new_tokens, is left unchanged; the others
// are written.
void update_cache(float* k_cache, float* v_cache, const float* key, const float* value, const int* positions,
                  int64_t batch, int64_t kv_heads, int64_t max_seq_len, int64_t new_tokens, int head_dim,
                  cudaStream_t stream);

// out = softmax(scale * query @ K^T) @ V over the slots 0 .. lengths[b] - 1; query head h reads K/V head
// h / (heads / kv_heads). Lengths are clamped to 0 .. max_seq_len; a length of 0 gives zeros.
void decode_attention(const float* query, const float* k_cache, const float* v_cache, const int* lengths,
                      float* out, int64_t batch, int64_t heads, int64_t kv_heads, int64_t max_seq_len,
                      int head_dim, float scale, cudaStream_t stream);

// The same, split into parts ("split-KV"). Part p of sequence b is the keys p c .. min((p + 1) c, length) - 1 with
// c = ceil(length / splits): outs receives the attention to these keys alone, lse the logsumexp of their scores. The
// lse of a part without keys is -infinity, and its output need not be read. batch * heads * splits < 2^31.
//
//   outs     [splits, batch * heads, head_dim]
//   lse      [splits, batch * heads]
void decode_attention_split(const float* query, const float* k_cache, const float* v_cache, const int* lengths,
                            float* outs, float* lse, int64_t batch, int64_t heads, int64_t kv_heads,
                            int64_t max_seq_len, int64_t splits, int head_dim, float scale, cudaStream_t stream);
