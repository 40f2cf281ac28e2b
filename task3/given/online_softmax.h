// online_softmax.h - the launchers of task 3: what online_softmax.cu provides and binding.cpp calls.
//
// All pointers are to contiguous, row-major float32 in device memory (the last dimension varies fastest).
// Every function launches its kernel on `stream` and returns without waiting for it. Nothing is checked here:
// binding.cpp rejects sizes beyond the limits.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

constexpr int MERGE_WARPS = 4;                      // merge_states: rows per block
constexpr int MERGE_COLS = 64;                      // and columns
constexpr int64_t MAX_SOFTMAX_ROWS = 2147483647;    // 2^31 - 1: gridDim.x, one block per row
constexpr int64_t MAX_MERGE_ROWS = MAX_SOFTMAX_ROWS * MERGE_WARPS;
constexpr int64_t MAX_MERGE_HEAD_DIM = 65535 * MERGE_COLS;  // 65,535: gridDim.y

// y[r, :] = softmax(x[r, :])                    x, y [rows, cols]
// lse[r]  = log(sum over c of exp(x[r, c]))     lse [rows]
// A row that is all -inf (everything masked) gives zeros in y and -inf in lse.
void online_softmax(const float* x, float* y, float* lse, int64_t rows, int64_t cols, cudaStream_t stream);

// Merges the attention outputs over `parts` disjoint sets of keys. Their order does not
// matter, and the result can itself be one part of another merge.
//
//   outs [parts, rows, head_dim]   the output of each part: softmax over its keys, times their values
//   lse [parts, rows]              the logsumexp of its scores; -inf where the row saw no key of the part, in
//                                  which case its output is not read
//   out [rows, head_dim]           the output over the keys of all parts; zeros where the row saw no key at all
//   merged_lse [rows]              the logsumexp of all scores; -inf where the row saw no key at all
void merge_states(const float* outs, const float* lse, float* out, float* merged_lse, int64_t parts,
                  int64_t rows, int64_t head_dim, cudaStream_t stream);
