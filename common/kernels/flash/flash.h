// flash.h - the attention launchers that binding.cpp calls.
//
//   FlashArguments     the forward pass: tensors, sizes, which keys a row sees, the options
//   FlashGradients     the backward pass
//   ForwardKernel      which kernel takes a forward pass: forward_kernel; flash_forward runs it
//   BackwardKernel     the same for a backward pass: backward_kernel, flash_backward
//   BlockLists         which blocks of keys a block of queries sees: block_forward, block_backward
//   flash_merge        flash_merge.cu: merges the results over two sets of keys
//   dropout_mask       flash_dropout_mask.cu: which weights a forward pass keeps
//
// Pointers are device pointers. Every function enqueues its kernels on `stream` and returns; anything that does not fit
// a grid or an architecture is refused with std::invalid_argument. Nothing else is checked here.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/attention_arguments.h"
#include "common/cuda/attention_mask.cuh"
#include "common/cuda/float_type.h"
#include "common/cuda/row_strides.h"
#include "common/kernels/flash/dropout.h"

// For kernels without a limit of their own; DENSE: for those that support none of the options
constexpr int MAX_HEAD_DIM = 256, MAX_DENSE_HEAD_DIM = 128;

// A batch of sequences is either a dimension of the tensors, or packed: the sequences follow each other in the row
// dimension, and sequence b has rows cu_seqlens[b] ... cu_seqlens[b + 1] - 1. Then S_q and S_k count the rows of all
// sequences together and the tensors have no batch dimension: its strides are 0.
//
//                       dense                               packed
//   query, out          [batch, heads, S_q, head_dim]       [S_q, heads, head_dim]
//   key, value          [batch, kv_heads, S_k, head_dim]    [S_k, kv_heads, head_dim]
//   lse                 [batch, heads, S_q]                 [heads, S_q]
struct FlashArguments : AttentionArguments {
    const int *cu_seqlens_q, *cu_seqlens_k;  // [batch + 1] of packed sequences, or both nullptr
    bool causal;                             // query i sees the keys j with j * key_step <= i + shift
    bool lower_right;                        // shift: keys - rows of the sequence; otherwise `diagonal`
    int64_t diagonal;                        //   not for packed sequences; S_q + diagonal <= MAX_POSITION
    int key_step;                            // 1 or more; 1 unless causal
    int64_t window_left, window_right;       // and i + shift - left <= j <= i + shift + right; -1: unbounded
    AttentionMask mask;                      // broadcasts to [batch, heads, S_q, S_k]; none for packed sequences
    float softcap;                           // scores -> softcap * tanh(score / softcap); 0: no softcap
    const float* sinks;                      // [heads], or nullptr
    Dropout dropout;
    RowStrides out_strides;
    FloatType type;
    bool tensor_cores;  // for float32; 16 bits always use them
    cudaStream_t stream;

    bool packed() const { return cu_seqlens_q != nullptr; }
    // Neither packed nor using any option.
    bool is_dense() const {
        return !packed() && window_left < 0 && window_right < 0 && softcap == 0 && sinks == nullptr &&
               dropout.seed == nullptr;
    }
    bool hides_keys() const {
        return packed() || causal || window_left >= 0 || window_right >= 0 || mask.kind != MaskKind::NONE;
    }
    int64_t matrices() const { return (packed() ? 1 : batch) * heads; }  // in query, out and lse
};

//   WGMMA          flash_attention_wgmma.cu: dense; flash_attention_wgmma_options.cuh: options; 16 bits, Hopper GPUs
//   MMA            flash_attention_mma.cuh: everything, 16 bits, rows that are multiples of 16 bytes
//   WGMMA_3XFP16   flash_attention_wgmma_3xfp16.cu: dense, float32, Hopper GPUs; its workspace: hopper_split.h
//   SPLIT_FP16     flash_attention_3xfp16.cu: dense, float32
//   FP32           flash_attention_fp32.cu: dense, float32 without tensor cores
//   PLAIN          flash_attention_plain.cu: everything
enum class ForwardKernel { WGMMA, MMA, WGMMA_3XFP16, SPLIT_FP16, FP32, PLAIN };
ForwardKernel forward_kernel(const FlashArguments& arguments);
// workspace: for WGMMA_3XFP16, 16-byte aligned
void flash_forward(const FlashArguments& arguments, void* workspace);

// The implementations, each for what it supports. The first ones return false, with nothing done, if they do not
// support these arguments or this GPU; dry: only return the answer.
bool wgmma_forward_dense(const FlashArguments& arguments, bool dry);
bool wgmma_forward_fp16(const FlashArguments& arguments, bool dry);
bool wgmma_forward_bf16(const FlashArguments& arguments, bool dry);
bool mma_forward_fp16(const FlashArguments& arguments, bool dry);
bool mma_forward_bf16(const FlashArguments& arguments, bool dry);
bool hopper_takes_fp32(const FlashArguments& arguments);
void hopper_forward_fp32(const FlashArguments& arguments, void* workspace);
void flash_forward_3xfp16(const FlashArguments& arguments);
void flash_forward_fp32(const FlashArguments& arguments);
void plain_forward(const FlashArguments& arguments);

// The gradients of sum(grad_out * out). Scores are recomputed from query, key and lse; no buffer is [S_q, S_k].
struct FlashGradients {
    FlashArguments forward;  // the arguments of the forward pass; out and lse hold its results
    const void* grad_out;    // shaped like query
    RowStrides grad_out_strides;
    void* grad_query;             // shaped like query, with out's strides
    void *grad_key, *grad_value;  // shaped like key
    RowStrides grad_key_strides;  // for both
    float* grad_sinks;            // [heads]; zeros without sinks
    bool deterministic;           // accumulates grad_query in a fixed order, so that it is bitwise reproducible
    float* workspace;             // uninitialized; backward_workspace() words
};

//   WGMMA   flash_backward_wgmma.cuh: 16 bits, Hopper GPUs
//   MMA     flash_backward_mma.cuh: 16 bits, rows that are multiples of 16 bytes
//   FP32    flash_backward_fp32.cu: dense, float32 without tensor cores
//   PLAIN   flash_backward_plain.cu: everything
enum class BackwardKernel { WGMMA, MMA, FP32, PLAIN };
BackwardKernel backward_kernel(const FlashGradients& gradients);
int64_t backward_workspace(const FlashGradients& gradients, BackwardKernel kernel);
void flash_backward(const FlashGradients& gradients, BackwardKernel kernel);

// Like those of the forward pass.
bool wgmma_backward_fp16(const FlashGradients& gradients, bool dry);
bool wgmma_backward_bf16(const FlashGradients& gradients, bool dry);
bool wgmma_backward_wide_fp16(const FlashGradients& gradients, bool dry);  // head_dim 129 ... 256
bool wgmma_backward_wide_bf16(const FlashGradients& gradients, bool dry);
bool mma_backward_fp16(const FlashGradients& gradients, bool dry);
bool mma_backward_bf16(const FlashGradients& gradients, bool dry);
void flash_backward_fp32(const FlashGradients& gradients);
void plain_backward(const FlashGradients& gradients);

// Query i sees key j only if j / block is among the first counts[head, i / block] entries of columns[head, i / block];
// other masking still applies. S_q and S_k are multiples of block, sequences are not packed and head_dim is at most
// MAX_BLOCK_HEAD_DIM.
struct BlockLists {
    const int* counts;   // [heads, S_q / block]
    const int* columns;  // [heads, S_q / block, S_k / block], ascending
    int block;           // 32, 64, 96 or 128
};
constexpr int MAX_BLOCK_HEAD_DIM = 128;

void block_forward(const FlashArguments& arguments, const BlockLists& lists);
// transposed: uninitialized, heads * (S_k / block) * (1 + S_q / block) ints
void block_backward(const FlashGradients& gradients, const BlockLists& lists, int* transposed);

// Attention over some keys (part), to be merged into attention over others (out) using the logsumexp.
struct MergeArguments {
    void* out;  // [batch, heads, rows, head_dim], read and written; stride 1 along head_dim
    RowStrides out_strides;
    float* lse;  // [batch, heads, rows], read and written
    RowStrides lse_strides;
    const void* part;       // [batch, heads, rows, head_dim], contiguous
    const float* part_lse;  // [batch, heads, rows], contiguous
    int64_t batch, heads, rows;
    int head_dim;
    FloatType out_type, part_type;  // out's is part's, or float32
    cudaStream_t stream;
};

void flash_merge(const MergeArguments& arguments);

// kept [batch, heads, S_q, S_k]: which weights a forward pass with this seed and probability keeps; for packed
// sequences, S_q and S_k are those of the longest.
struct DropoutMaskArguments {
    bool* kept;
    int64_t batch, heads, S_q, S_k;
    Dropout dropout;
    cudaStream_t stream;
};

void dropout_mask(const DropoutMaskArguments& arguments);
