// softmax.h - the launcher of the softmax: what softmax.cu provides and binding.cpp calls.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

constexpr int MAX_COLS = 2147450880;  // 2^31 - 32768: rounded up to a chunk still an int

// y[r, :] = softmax(x[r, :])          x, y [rows, cols] float32 in the device's memory; y may be x; rows <= 2^31 - 1
// A row that is -inf throughout gives zeros. The kernel is put on `stream`, and nothing is checked here.
//
// step: which version, for `python -m task2.benchmark --steps`. 1 has the first change of the list at the head of
// softmax.cu, 2 the first two; SOFTMAX_STEPS has them all.
constexpr int SOFTMAX_STEPS = 3;
void softmax(const float* x, float* y, int64_t rows, int cols, int step, cudaStream_t stream);
