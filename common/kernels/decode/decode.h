// decode.h - the launchers of decoding over a KV cache that binding.cpp calls.
//
//   CacheLayout       where the keys and values of a token are: contiguous caches or pages
//   UpdateArguments   new tokens -> their slots                                  cache.cu
//   RotaryArguments   the same, with queries and keys rotated by their positions   rotary_cache.cu
//   DecodeArguments   one query per sequence over its cached tokens              decode_simt.cu, decode_mma.cu
//
// The files, from the outside in: decode_cluster.cuh and decode_list.cuh (the kernels, for short and for long caches),
// decode_work.cuh (which block does what in the latter), decode_common.cuh (loading tiles), decode_mma.cuh and
// decode_simt.cuh (one warp, with and without tensor cores), attention_states.cuh (partial results and merging them),
// cache_layout.cuh (where a token is), cluster.cuh.
//
// Pointers are device pointers. Every function enqueues its kernels on `stream` and returns; anything that does not fit
// a grid is refused with std::invalid_argument. Nothing else is checked here. No value on the device is read on the
// host, and no launch depends on one: everything can be captured in a CUDA graph once and replayed with other lengths,
// positions and block tables. The kernels use programmatic dependent launch, both as the dependent and as the primary
// (common/cuda/dependent_launch.cuh).
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "common/cuda/float_type.h"
#include "common/cuda/row_strides.h"

constexpr int MAX_HEAD_DIM = 128;
constexpr int MIN_PAGE_SIZE = 16, MAX_PAGE_SIZE = 256;  // tokens per page, a power of two

// The row of slot s of a sequence, 0 <= s < capacity:
//
//   contiguous   cache [batch, kv_heads, capacity, head_dim]       row s of the sequence's own part
//   paged        cache [pages, kv_heads, page_size, head_dim]      row s % page_size of page
//                                                                  block_table[sequence, s / page_size]
struct CacheLayout {
    int64_t kv_heads;
    int64_t capacity;        // slots per sequence: max_seq_len, or page_size * max_pages
    const int* block_table;  // [batch, max_pages]; nullptr: contiguous
    int64_t pages;           // in the whole cache; numbers outside 0 .. pages - 1 are not pages
    int head_dim;            // 1 .. MAX_HEAD_DIM
    int page_bits;           // page_size = 1 << page_bits
};

// Token t of sequence b goes to slot positions[b] + t. A sequence whose new tokens do not all fit, because positions[b]
// is outside 0 .. capacity - new_tokens, is left unchanged; a token whose block table entry is not a page is skipped.
struct UpdateArguments {
    CacheLayout layout;
    void *k_cache, *v_cache;
    const void *key, *value;  // [batch, kv_heads, new_tokens, head_dim]
    RowStrides key_strides, value_strides;
    const int* positions;  // [batch]
    int64_t batch, new_tokens;
    int element_bytes;  // 2 or 4
    cudaStream_t stream;
};

void launch_update_cache(const UpdateArguments& arguments);

// The first left_padding[b] tokens of sequence b are padding, clamped to 0 .. new_tokens. Token t after them goes to
// slot s = positions[b] + t - left_padding[b], with its key rotated by row s of cos and sin, and so is its query.
// Queries of padding are returned as zeros, and so are all queries of a sequence whose tokens do not all fit below the
// capacity and below longest. Neither writes to the caches, nor does a token whose block table entry is not a page.
struct RotaryArguments {
    CacheLayout layout;
    void *k_cache, *v_cache;
    const void *query, *key, *value;  // [batch, heads, new_tokens, head_dim], [batch, kv_heads, new_tokens, head_dim]
    RowStrides query_strides, key_strides, value_strides;
    void* out;                // [batch, heads, new_tokens, head_dim], contiguous
    const int* positions;     // [batch]
    const int* left_padding;  // [batch]; nullptr: zeros
    const float *cos, *sin;   // [longest, rotary_dim / 2]
    int64_t batch, heads, new_tokens, longest;
    int rotary_dim;  // even, 2 .. head_dim
    bool interleaved;
    cudaStream_t stream;
};

void launch_update_cache_rotary(const RotaryArguments& arguments, FloatType type);

// out = softmax(scale * query @ K^T) @ V over the first lengths[b] slots of sequence b; query head h reads K/V head
// h / (heads / kv_heads). Lengths are clamped to 0 .. capacity; with a length of 0 the output is 0. A token whose block
// table entry is not a page is left out.
struct DecodeArguments {
    CacheLayout layout;
    const void* query;              // [batch, heads, head_dim], rows contiguous
    RowStrides query_strides;
    const void *k_cache, *v_cache;  // see CacheLayout
    const int* lengths;             // [batch]
    void* out;                      // [batch, heads, head_dim]
    int64_t batch, heads;           // heads is a multiple of kv_heads
    float scale;
    float* workspace;  // decode_workspace() floats, uninitialized
    cudaStream_t stream;
};

// The number of workspace floats that launch_decode() needs for these arguments; `out` and `workspace` may still be
// unset.
int64_t decode_workspace(const DecodeArguments& arguments, FloatType type);
void launch_decode(const DecodeArguments& arguments, FloatType type);
