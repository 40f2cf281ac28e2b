// flash.h - the launchers of dense attention, which binding.cpp calls.
//
//   FlashArguments    the forward pass: tensors, sizes, what hides which keys
//   FlashGradients    the backward pass
//   flash_forward_*   flash_attention_mma.cu (fp16, bf16), flash_attention_fp32.cu, flash_attention_3xfp16.cu (fp32)
//   hopper_forward    flash_attention_wgmma.cu (fp16, bf16 on compute capability 9.0); hopper_takes: what it takes
//   hopper_forward_fp32   flash_attention_wgmma_3xfp16.cu (fp32 on compute capability 9.0); hopper_takes_fp32: as above
//   flash_backward_*  flash_backward_mma.cu (fp16, bf16), flash_backward_fp32.cu
//   hopper_backward   flash_backward_wgmma.cu (fp16, bf16 on compute capability 9.0); hopper_backward_takes: as above
//   flash_merge       flash_merge.cu: results over two sets of keys -> one
//
// Pointers are to the memory of the device. Every function puts its kernels on `stream` and returns; what does not
// fit a grid or an architecture is refused with std::invalid_argument, and nothing else is checked here.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/attention_arguments.h"
#include "common/cuda/attention_mask.cuh"
#include "common/cuda/float_type.h"
#include "common/cuda/row_strides.h"

constexpr int MAX_HEAD_DIM = 128;

// Which keys a query sees: with `causal`, query i may see key j when j * key_step <= i + diagonal. Diagonal 0 aligns
// the mask to the top left, S_k - S_q to the bottom right, and -key_offset serves keys that stand at key_offset + j *
// key_step. head_dim is 1 .. MAX_HEAD_DIM.
struct FlashArguments : AttentionArguments {
    bool causal;
    int64_t diagonal;    // S_q + diagonal <= MAX_POSITION
    int key_step;        // 1 or more; 1 unless causal
    AttentionMask mask;  // broadcasts to [batch, heads, S_q, S_k]
    cudaStream_t stream;
};

void flash_forward_fp32(const FlashArguments& arguments);
void flash_forward_3xfp16(const FlashArguments& arguments);  // float32 in and out, on tensor cores
void flash_forward_fp16(const FlashArguments& arguments);
void flash_forward_bf16(const FlashArguments& arguments);

// The kernel for Hopper GPUs. False, with nothing done, if it does not take these arguments or this GPU; the two above
// take all. hopper_takes gives the same answer, and never does anything.
bool hopper_forward(const FlashArguments& arguments, bool bfloat16);
bool hopper_takes(const FlashArguments& arguments, bool bfloat16);

// The same for float32, of what hopper_takes_fp32 says. workspace: not initialised, begins at a multiple of 16 bytes;
// its size: hopper_split.h.
bool hopper_takes_fp32(const FlashArguments& arguments);
void hopper_forward_fp32(const FlashArguments& arguments, void* workspace);

// The gradients of sum(grad_out * out). Scores are computed again from query, key and lse; nothing is [S_q, S_k].
struct FlashGradients {
    FlashArguments forward;  // as the forward pass had it; out and lse hold its results
    const void* grad_out;    // [batch, heads, S_q, head_dim]
    RowStrides grad_out_strides;
    void* grad_query;  // [batch, heads, S_q, head_dim], contiguous
    void* grad_key;    // [batch, kv_heads, S_k, head_dim], contiguous
    void* grad_value;  // [batch, kv_heads, S_k, head_dim], contiguous
    bool deterministic;  // grad_query is summed up in a fixed order, so that it has the same bits every time
    // Workspaces, not initialised; sizes: flash_host.h
    float* delta;           // [batch, heads, S_q]: sum over head_dim of grad_out * out
    float* grad_query_sum;  // nullptr for float32 inputs
    int* turns;             // the same
};

void flash_backward_fp32(const FlashGradients& gradients);
void flash_backward_fp16(const FlashGradients& gradients);
void flash_backward_bf16(const FlashGradients& gradients);

// As hopper_forward and hopper_takes. Workspaces are not looked at by the second.
bool hopper_backward(const FlashGradients& gradients, bool bfloat16);
bool hopper_backward_takes(const FlashGradients& gradients, bool bfloat16);

// Attention over some keys, into which attention over others is merged by the logsumexp.
struct MergeArguments {
    void* out;  // [batch, heads, rows, head_dim], read and written; columns are neighbours
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
