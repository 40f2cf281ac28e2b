// gemm.h - the GEMM launcher, implemented in gemm.cu and called by binding.cpp.
//
// Pointers are float32 device pointers, shapes have their contiguous dimension last, the kernel is enqueued on
// `stream`, and nothing is checked here.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

constexpr int MAX_GEMM_SIZE = 2147483520;   // M, N, K: 2^31 - 128; fits an int even when rounded up to a tile
constexpr int64_t MAX_GEMM_N = 65535 * 64;  // gridDim.y tiles of at least 64 columns

// c[i] = a[i] @ b[i]                  a [batch, M, K], b [batch, K, N], c [batch, M, N]
// with b_transposed: a[i] @ b[i]^T    b [batch, N, K]
//
// step: which version, for `python -m task2.benchmark --steps`. 1 applies the first change listed at the top of
// gemm.cu, 2 the first two; GEMM_STEPS all of them.
constexpr int GEMM_STEPS = 4;
void gemm(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K, bool b_transposed, int step,
          cudaStream_t stream);
