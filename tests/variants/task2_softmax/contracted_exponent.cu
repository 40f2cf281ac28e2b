// exp2f(x * log2(e) - max * log2(e)), written without fmaf: nvcc makes one multiply-add of it, which rounds once,
// and so the exponent is as exact as x - max. 64 threads per row, shuffles.
#include "common/cuda/check.h"
#include "common/cuda/logarithms.h"
#include "common/cuda/warp.cuh"
#include "task2/given/attention_kernel.h"

__global__ void softmax_contracted_kernel(const float* x, float* y, int cols) {
    __shared__ float maxima[2], sums[2];
    x += int64_t{blockIdx.x} * cols;
    y += int64_t{blockIdx.x} * cols;
    float m = -INFINITY, l = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 64) m = fmaxf(m, x[i]);
    m = warp_max(m);
    if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = m;
    __syncthreads();
    m = fmaxf(maxima[0], maxima[1]);
    const float max_scaled = m == -INFINITY ? 0.0f : m * LOG2_E;
    for (int i = threadIdx.x; i < cols; i += 64) l += exp2f(x[i] * LOG2_E - max_scaled);
    l = warp_sum(l);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = l;
    __syncthreads();
    l = sums[0] + sums[1];
    const float factor = l == 0.0f ? 0.0f : 1.0f / l;
    for (int i = threadIdx.x; i < cols; i += 64) y[i] = exp2f(x[i] * LOG2_E - max_scaled) * factor;
}

void softmax(const float* x, float* y, int64_t rows, int cols, cudaStream_t stream) {
    softmax_contracted_kernel<<<static_cast<unsigned>(rows), 64, 0, stream>>>(x, y, cols);
    CUDA_CHECK_LAUNCH();
}
