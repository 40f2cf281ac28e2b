// sparse.h - the launchers of task 5's tuned kernels, which binding.cpp calls.
//
//   SparseArguments        tensors, sizes, which keys a query sees
//   sparse_forward_*       sparse_attention_mma.cu (fp16, bf16)
//   hopper_forward         sparse_attention_wgmma.cu (fp16, bf16 on compute capability 9.0)
//   compress_block_mask    compress_block_mask.cu
//
// Pointers are to the memory of the device. Every function puts its kernels on `stream` and returns; what does not
// fit a grid or an architecture is refused with std::invalid_argument, and nothing else is checked here.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/row_strides.h"

constexpr int MAX_HEAD_DIM = 128;

// out = softmax(scale * query @ key^T, hidden keys left out) @ value
//
// Query head h uses key head h / (heads / kv_heads): grouped-query attention when kv_heads < heads (a multiple).
// Key n = 0 .. S_k - 1 stands at position p = key_offset + n * key_step. Query i sees it
//
//   unless causal and p > i,   unless window > 0 and |i - p| >= window,   and, with counts and columns,
//   only if n / block is among the first counts[head, i / block] numbers of columns[head, i / block].
//
// Lists of blocks go with key_step 1, key_offset 0 and no window. A query that sees no key gets zeros and lse
// -infinity.
struct SparseArguments {
    const void* query;  // [batch, heads, S_q, head_dim]
    const void* key;    // [batch, kv_heads, S_k, head_dim]
    const void* value;  // [batch, kv_heads, S_k, head_dim]
    void* out;          // [batch, heads, S_q, head_dim], contiguous
    float* lse;         // [batch, heads, S_q], contiguous: natural log(sum over keys of exp(score)); or nullptr
    RowStrides query_strides, key_strides, value_strides;
    int64_t batch, heads, kv_heads, S_q, S_k;
    int head_dim;  // 1 .. MAX_HEAD_DIM
    float scale;
    // Strided attention: the keys are the strided ones alone, key and value begin with the first of them and their
    // strides lead to the next. Otherwise 1 and 0.
    int64_t key_step, key_offset;
    bool causal;
    int64_t window;  // 0: none
    // Block-sparse attention; nullptr, nullptr and 0 otherwise. The same for every batch. Numbers that are no block of
    // keys (a caller's mistake) hide keys at will, but nothing outside the tensors is read.
    const int* counts;   // [heads, S_q / block]
    const int* columns;  // [heads, S_q / block, S_k / block]
    int block;           // 32, 64, 96 or 128; divides S_q and S_k
    cudaStream_t stream;
};

void sparse_forward_fp16(const SparseArguments& arguments);
void sparse_forward_bf16(const SparseArguments& arguments);

// False, with nothing done, if it does not take these arguments or this GPU.
bool hopper_forward(const SparseArguments& arguments, bool bfloat16);

// The true blocks of every row of a mask, one after the other: columns holds their numbers in ascending order, then -1.
//
//   block_mask [rows][k_blocks]     counts [rows]     columns [rows][k_blocks]; rows = heads * q_blocks
void compress_block_mask(const bool* block_mask, int* counts, int* columns, int64_t rows, int64_t k_blocks,
                         cudaStream_t stream);
