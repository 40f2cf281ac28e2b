// exp2f(x * log2(e) - max * log2(e)) in place of expf(x - max), as FlashAttention's kernels write it: one
// multiply-add (fmaf) and one instruction for the power per entry. Four rows per block, 64 threads each.
#include "common/cuda/check.h"
#include "common/cuda/logarithms.h"
#include "task2/given/attention_kernel.h"

constexpr int ROWS_PER_BLOCK = 4, COLUMN_THREADS = 64;

__global__ void softmax_base_2_kernel(const float* x, float* y, int64_t rows, int cols) {
    __shared__ float halves[ROWS_PER_BLOCK][2][2];
    const int64_t row = int64_t(blockIdx.x) * ROWS_PER_BLOCK + threadIdx.y;
    const bool exists = row < rows;  // no early return: the barriers below are for the whole block
    const float* in = x + (exists ? row * cols : 0);
    float* out = y + (exists ? row * cols : 0);
    const int n = exists ? cols : 0;
    const int half = threadIdx.x / 32;

    float m = -INFINITY;
    for (int i = threadIdx.x; i < n; i += COLUMN_THREADS) m = fmaxf(m, in[i]);
    for (int lanes = 1; lanes < 32; lanes *= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, lanes));
    if (threadIdx.x % 32 == 0) halves[threadIdx.y][0][half] = m;
    __syncthreads();
    m = fmaxf(halves[threadIdx.y][0][0], halves[threadIdx.y][0][1]);
    const float shift = m == -INFINITY ? 0.0f : m * LOG2_E;

    float l = 0.0f;
    for (int i = threadIdx.x; i < n; i += COLUMN_THREADS) l += exp2f(fmaf(in[i], LOG2_E, -shift));
    for (int lanes = 1; lanes < 32; lanes *= 2) l += __shfl_xor_sync(~0u, l, lanes);
    if (threadIdx.x % 32 == 0) halves[threadIdx.y][1][half] = l;
    __syncthreads();
    l = halves[threadIdx.y][1][0] + halves[threadIdx.y][1][1];
    for (int i = threadIdx.x; i < n; i += COLUMN_THREADS) {
        out[i] = l == 0.0f ? 0.0f : exp2f(fmaf(in[i], LOG2_E, -shift)) / l;
    }
}

void softmax(const float* x, float* y, int64_t rows, int cols, cudaStream_t stream) {
    const unsigned blocks = static_cast<unsigned>((rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK);
    softmax_base_2_kernel<<<blocks, dim3(COLUMN_THREADS, ROWS_PER_BLOCK), 0, stream>>>(x, y, rows, cols);
    CUDA_CHECK_LAUNCH();
}
