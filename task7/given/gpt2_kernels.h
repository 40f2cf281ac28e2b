// gpt2_kernels.h - the launchers of task 7: what gpt2_kernels.cu provides and binding.cpp calls.
//
// All pointers are to contiguous, row-major float32 in device memory (the last dimension varies fastest). Every
// function launches its kernel on `stream` and returns without waiting for it. Nothing is checked here: binding.cpp
// rejects sizes beyond the limits.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

constexpr int64_t MAX_ROWS = int64_t{1} << 31;       // of layernorm: 8 to a block, at most 2^31 - 1 blocks
constexpr int64_t MAX_ELEMENTS = int64_t{1} << 38;   // of bias_gelu: 256 to a block

// sum = x + residual (sum = x if residual is nullptr), out = layernorm of each row of sum:
//
//     out[r, c] = (sum[r, c] - mean[r]) / sqrt(variance[r] + eps) * weight[c] + bias[c]
//
// mean and variance are per row; the variance is the mean of the squared deviations from the mean.
//     x, residual, out, sum [rows, width]; weight, bias [width]
void layernorm(const float* x, const float* residual, const float* weight, const float* bias, float* out, float* sum,
               int64_t rows, int width, float eps, cudaStream_t stream);

// out[r, c] = gelu(x[r, c] + bias[c]), with GPT-2's gelu(x) = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
//     x, out [rows, width]; bias [width]
void bias_gelu(const float* x, const float* bias, float* out, int64_t rows, int width, cudaStream_t stream);
