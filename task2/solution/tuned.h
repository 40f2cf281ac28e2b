// tuned.h - the launchers of the tuned kernels: what softmax_tuned.cu and gemm_tuned.cu provide and binding.cpp calls.
//
// Pointers are to float32 in the memory of the device, shapes have their contiguous dimension last, every function puts
// its kernel on `stream` and returns, and nothing is checked here.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

constexpr int MAX_TUNED_COLS = 2147450880;        // 2^31 - 32768: rounded up to a chunk still an int
constexpr int MAX_TUNED_GEMM_SIZE = 2147483520;   // M, N, K: 2^31 - 128; rounded up to a tile still an int
constexpr int64_t MAX_TUNED_GEMM_N = 65535 * 64;  // gridDim.y tiles of at least 64 columns

// y[r, :] = softmax(x[r, :])          x, y [rows, cols]; y may be x; rows <= 2^31 - 1
// A row that is -inf throughout gives zeros.
//
// step: which version, for `python -m task2.benchmark --steps`. 1 has the first change of the list at the head of
// softmax_tuned.cu, 2 the first two; SOFTMAX_STEPS has them all.
constexpr int SOFTMAX_STEPS = 3;
void softmax_tuned(const float* x, float* y, int64_t rows, int cols, int step, cudaStream_t stream);

// c[i] = a[i] @ b[i]                  a [batch, M, K], b [batch, K, N], c [batch, M, N]
// with b_transposed: a[i] @ b[i]^T    b [batch, N, K]
//
// step: as above, 1 .. GEMM_STEPS.
constexpr int GEMM_STEPS = 4;
void gemm_tuned(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K, bool b_transposed,
                int step, cudaStream_t stream);
