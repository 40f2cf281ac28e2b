// One warp per row, eight rows per block: shuffles in place of shared memory, and not a single barrier.
#include "common/cuda/check.h"
#include "task2/given/attention_kernel.h"

constexpr int WARPS_PER_BLOCK = 8;

__device__ float max_of_warp(float v) {
    for (int offset = 16; offset > 0; offset >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, offset));
    return v;
}

__device__ float sum_of_warp(float v) {
    for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffff, v, offset);
    return v;
}

__global__ void softmax_warp_kernel(const float* x, float* y, int64_t rows, int cols) {
    const int64_t row = blockIdx.x * int64_t{WARPS_PER_BLOCK} + threadIdx.y;
    if (row >= rows) return;
    x += row * cols;
    y += row * cols;
    float largest = -INFINITY;
    for (int c = threadIdx.x; c < cols; c += 32) largest = fmaxf(largest, x[c]);
    largest = max_of_warp(largest);
    if (largest == -INFINITY) {
        for (int c = threadIdx.x; c < cols; c += 32) y[c] = 0.0f;
        return;
    }
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += 32) sum += expf(x[c] - largest);
    sum = sum_of_warp(sum);
    for (int c = threadIdx.x; c < cols; c += 32) y[c] = expf(x[c] - largest) / sum;
}

void softmax(const float* x, float* y, int64_t rows, int cols, cudaStream_t stream) {
    const int64_t blocks = ceil_div(rows, int64_t{WARPS_PER_BLOCK});
    softmax_warp_kernel<<<static_cast<unsigned>(blocks), dim3(32, WARPS_PER_BLOCK), 0, stream>>>(x, y, rows, cols);
    CUDA_CHECK_LAUNCH();
}
