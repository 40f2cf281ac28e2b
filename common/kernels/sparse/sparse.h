// sparse.h - the launchers of sparse attention that binding.cpp calls.
//
//   SparseArguments        tensors, sizes, which keys a query sees
//   sparse_forward_*       sparse_attention_mma.cu (fp16, bf16)
//   hopper_forward         sparse_attention_wgmma.cu (fp16, bf16 on compute capability 9.0)
//   compress_block_mask    compress_block_mask.cu
//
// Pointers are device pointers. Every function enqueues its kernels on `stream` and returns; anything that does not fit
// a grid or an architecture is refused with std::invalid_argument. Nothing else is checked here.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/attention_arguments.h"

constexpr int MAX_HEAD_DIM = 128;

// Which keys a query sees: key n = 0 .. S_k - 1 is at position p = key_offset + n * key_step. Query i sees it
//
//   unless causal and p > i,   unless window > 0 and |i - p| >= window,   and, with counts and columns,
//   only if n / block is among the first counts[head, i / block] entries of columns[head, i / block].
//
// Block lists require key_step 1, key_offset 0 and no window. head_dim is 1 .. MAX_HEAD_DIM.
struct SparseArguments : AttentionArguments {
    // Strided attention: only the strided keys are given; key and value point to the first of them and their strides
    // lead to the next. Otherwise 1 and 0.
    int64_t key_step, key_offset;
    bool causal;
    int64_t window;  // 0: none
    // Block-sparse attention; nullptr, nullptr and 0 otherwise. The same for every batch. What invalid indices hide is
    // unspecified, but nothing outside the tensors is read.
    const int* counts;   // [heads, S_q / block]
    const int* columns;  // [heads, S_q / block, S_k / block]
    int block;           // 32, 64, 96 or 128; divides S_q and S_k
    cudaStream_t stream;
};

void sparse_forward_fp16(const SparseArguments& arguments);
void sparse_forward_bf16(const SparseArguments& arguments);

// False, with nothing done, if it does not support these arguments or this GPU.
bool hopper_forward(const SparseArguments& arguments, bool bfloat16);

// Lists the true blocks of every row of a mask: columns holds their indices in ascending order, then -1.
//
//   block_mask [rows][k_blocks]     counts [rows]     columns [rows][k_blocks]; rows = heads * q_blocks
void compress_block_mask(const bool* block_mask, int* counts, int* columns, int64_t rows, int64_t k_blocks,
                         cudaStream_t stream);
