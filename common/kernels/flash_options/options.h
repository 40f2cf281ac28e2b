// options.h - the launchers of attention with options, which binding.cpp calls.
//
//   OptionsArguments    the forward pass: tensors, sizes, the options
//   OptionsGradients    the backward pass
//   BlockLists          which blocks of keys a block of queries sees
//   options_forward     options_forward.cu
//   options_forward_fp16, options_forward_bf16    of which it takes what they take: files of these names
//   options_backward    options_backward.cu
//   options_backward_fp16, options_backward_bf16; hopper_backward_fp16, hopper_backward_bf16
//   block_forward, block_backward    the same of listed blocks
//   dropout_mask        options_dropout.cu: which weights a forward pass keeps
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
#include "common/kernels/flash/dropout.h"

constexpr int MAX_OPTIONS_HEAD_DIM = 256;

// A batch of sequences is either a dimension of the tensors, or they stand one behind the other in the dimension of
// rows: sequence b has the rows cu_seqlens[b] ... cu_seqlens[b + 1] - 1. Then S_q and S_k are the rows of all
// sequences together and the tensors have no dimension of batches: its strides are 0.
//
//                       dense                               packed
//   query, out          [batch, heads, S_q, head_dim]       [S_q, heads, head_dim]
//   key, value          [batch, kv_heads, S_k, head_dim]    [S_k, kv_heads, head_dim]
//   lse                 [batch, heads, S_q]                 [heads, S_q]
struct OptionsArguments : AttentionArguments {
    const int *cu_seqlens_q, *cu_seqlens_k;  // [batch + 1] of packed sequences, both or none
    bool causal;                             // query i sees the keys j <= i,
    bool lower_right;                        //   or j <= i + shift with shift = keys - rows of its sequence
    int64_t window_left, window_right;       // and i + shift - left <= j <= i + shift + right; -1: no such end
    AttentionMask mask;                      // broadcasts to [batch, heads, S_q, S_k]; none for packed sequences
    float softcap;                           // scores -> softcap * tanh(score / softcap); 0: as they are
    const float* sinks;                      // [heads], or nullptr
    Dropout dropout;
    RowStrides out_strides;
    FloatType type;
    cudaStream_t stream;
};

void options_forward(const OptionsArguments& arguments);
// The same of 16 bits, if the rows lie in pieces of 16 bytes and the GPU has the shared memory for it: whether it did
bool options_forward_fp16(const OptionsArguments& arguments);
bool options_forward_bf16(const OptionsArguments& arguments);
// The kernel for Hopper GPUs: false, with nothing done, if it does not take these arguments or this GPU; dry: only the
// answer
bool options_forward_wgmma_fp16(const OptionsArguments& arguments, bool dry);
bool options_forward_wgmma_bf16(const OptionsArguments& arguments, bool dry);
inline bool options_forward_wgmma(const OptionsArguments& a, bool dry) {
    if (a.type == FloatType::FLOAT16) return options_forward_wgmma_fp16(a, dry);
    return a.type == FloatType::BFLOAT16 && options_forward_wgmma_bf16(a, dry);
}

// The gradients of sum(grad_out * out). Scores are computed again from query, key and lse; nothing is [S_q, S_k].
struct OptionsGradients {
    OptionsArguments forward;  // as the forward pass had it; out and lse hold its results
    const void* grad_out;      // of query's shape
    RowStrides grad_out_strides;
    void* grad_query;               // of query's shape, strides as out's
    void *grad_key, *grad_value;    // of key's shape
    RowStrides grad_key_strides;    // of both
    float* grad_sinks;              // [heads]; zeros without sinks
    float* delta;                   // of lse's shape, not initialised: sum over head_dim of grad_out * out
    bool deterministic;             // grad_query has the same bits every time
    float* workspace;               // of options_workspace() floats, not initialised; nullptr where it says 0
    const int* again;               // set inside: 0 in it: compute nothing; else only elements that are NaN so far. nullptr: all
};

void options_backward(const OptionsGradients& gradients);
// The gradient of the sinks from delta and lse, options_sinks.cu
void options_sinks(const OptionsGradients& gradients);
// How much memory the kernel for Hopper GPUs needs, options_backward_wgmma.cuh; 0: it does not take these, whose
// workspaces are not looked at
int64_t options_workspace(const OptionsGradients& gradients);
int64_t hopper_workspace_fp16(const OptionsGradients& gradients);
int64_t hopper_workspace_bf16(const OptionsGradients& gradients);
// dQ, dK, dV and delta of what it takes: where it notes that there is a NaN
const int* hopper_backward_fp16(const OptionsGradients& gradients);
const int* hopper_backward_bf16(const OptionsGradients& gradients);
// dQ, dK and dV of 16 bits from delta, if they take it: whether they did
bool options_backward_fp16(const OptionsGradients& gradients);
bool options_backward_bf16(const OptionsGradients& gradients);

// Query i sees key j only if j / block is among the first counts[head, i / block] numbers of columns[head, i / block];
// what hides keys besides still does. S_q and S_k are multiples of block, the sequences are not packed and head_dim is
// at most MAX_BLOCK_HEAD_DIM.
struct BlockLists {
    const int* counts;   // [heads, S_q / block]
    const int* columns;  // [heads, S_q / block, S_k / block], ascending
    int block;           // 32, 64, 96 or 128
};
constexpr int MAX_BLOCK_HEAD_DIM = 128;

void block_forward(const OptionsArguments& arguments, const BlockLists& lists);
// transposed: not initialised, heads * (S_k / block) * (1 + S_q / block) numbers
void block_backward(const OptionsGradients& gradients, const BlockLists& lists, int* transposed);

// kept [batch, heads, S_q, S_k]: what a forward pass with these numbers does; S_q and S_k of the longest sequence if
// they are packed.
struct DropoutMaskArguments {
    bool* kept;
    int64_t batch, heads, S_q, S_k;
    Dropout dropout;
    cudaStream_t stream;
};

void dropout_mask(const DropoutMaskArguments& arguments);
