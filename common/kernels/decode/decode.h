// decode.h - the launchers of decoding over a KV cache, which binding.cpp calls.
//
//   CacheLayout       where the keys and values of a token are: contiguous caches or pages
//   UpdateArguments   new tokens -> their slots                                  cache.cu
//   RotaryArguments   the same, with queries and keys rotated by their positions   rotary_cache.cu
//   DecodeArguments   one query per sequence over its cached tokens              decode_simt.cu, decode_mma.cu
//
// What decoding consists of, from the outside inwards: decode_cluster.cuh and decode_list.cuh (the kernels, for short
// and for long caches), decode_work.cuh (which block does what in the latter), decode_common.cuh (tiles on their way),
// decode_mma.cuh and decode_simt.cuh (one warp, with and without tensor cores), attention_states.cuh (partial results
// and their sums), cache_layout.cuh (where a token is), cluster.cuh.
//
// Pointers are to the memory of the device. Every function puts its kernels on `stream` and returns; what does not
// fit a grid is refused with std::invalid_argument, and nothing else is checked here. No value that is on the device
// is read on the host, and no launch depends on one: all of it can be captured in a CUDA graph once and replayed with
// other lengths, positions and block tables. The kernels start while the one before in the stream still ends
// (common/cuda/dependent_launch.cuh), and let the next one do so.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "common/cuda/float_type.h"
#include "common/cuda/row_strides.h"

constexpr int MAX_HEAD_DIM = 128;
constexpr int MIN_PAGE_SIZE = 16, MAX_PAGE_SIZE = 256;  // tokens of a page, a power of two

// Where slot s of a sequence is, 0 <= s < capacity:
//
//   contiguous   cache [batch, kv_heads, capacity, head_dim]       row s of the sequence's own part
//   paged        cache [pages, kv_heads, page_size, head_dim]      row s % page_size of page
//                                                                  block_table[sequence, s / page_size]
struct CacheLayout {
    int64_t kv_heads;
    int64_t capacity;        // slots of a sequence: max_seq_len, or page_size * max_pages
    const int* block_table;  // [batch, max_pages]; nullptr: contiguous
    int64_t pages;           // of the whole cache; a number outside 0 .. pages - 1 is no page
    int head_dim;            // 1 .. MAX_HEAD_DIM
    int page_bits;           // page_size = 1 << page_bits
};

// Token t of sequence b goes to slot positions[b] + t. A sequence whose new tokens do not all fit, because positions[b]
// is outside 0 .. capacity - new_tokens, is left as it is; so is a token whose block table entry is no page.
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
// slot s = positions[b] + t - left_padding[b], its key rotated by row s of cos and sin, and so is its query. The query
// of padding comes back as zeros, and so do all queries of a sequence whose tokens do not all fit: below the capacity
// and below longest. Nothing of either is written into the caches; nor is a token whose block table entry is no page.
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
// table entry is no page is left out.
struct DecodeArguments {
    CacheLayout layout;
    const void* query;              // [batch, heads, head_dim], rows contiguous
    RowStrides query_strides;
    const void *k_cache, *v_cache;  // see CacheLayout
    const int* lengths;             // [batch]
    void* out;                      // [batch, heads, head_dim]
    int64_t batch, heads;           // heads is a multiple of kv_heads
    float scale;
    float* workspace;  // decode_workspace() floats, not initialized
    cudaStream_t stream;
};

// How many floats of workspace launch_decode() needs for these arguments; `out` and `workspace` may still be missing.
int64_t decode_workspace(const DecodeArguments& arguments, FloatType type);
void launch_decode(const DecodeArguments& arguments, FloatType type);
