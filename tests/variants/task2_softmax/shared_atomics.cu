// A grid of at most 1024 blocks strides over the rows; maximum and sum of a row are found by atomics in shared
// memory (a float's bits order like an integer's once those of negative numbers are turned over).
#include <algorithm>

#include "common/cuda/check.h"
#include "task2/given/attention_kernel.h"

__device__ int ordered(float f) {
    const int bits = __float_as_int(f);
    return bits >= 0 ? bits : bits ^ 0x7fffffff;
}

__device__ float unordered(int bits) { return __int_as_float(bits >= 0 ? bits : bits ^ 0x7fffffff); }

__global__ void softmax_atomic_kernel(const float* x, float* y, int64_t rows, int cols) {
    __shared__ int max_bits;
    __shared__ float sum;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        if (threadIdx.x == 0) {
            max_bits = ordered(-INFINITY);
            sum = 0.0f;
        }
        __syncthreads();
        float mine = -INFINITY;
        for (int c = threadIdx.x; c < cols; c += blockDim.x) mine = fmaxf(mine, x[row * cols + c]);
        atomicMax(&max_bits, ordered(mine));
        __syncthreads();
        float m = unordered(max_bits);
        if (m == -INFINITY) m = 0.0f;
        float part = 0.0f;
        for (int c = threadIdx.x; c < cols; c += blockDim.x) part += expf(x[row * cols + c] - m);
        atomicAdd(&sum, part);
        __syncthreads();
        const float l = sum;
        for (int c = threadIdx.x; c < cols; c += blockDim.x) {
            y[row * cols + c] = l > 0.0f ? expf(x[row * cols + c] - m) / l : 0.0f;
        }
        __syncthreads();  // before the next row's first write
    }
}

void softmax(const float* x, float* y, int64_t rows, int cols, cudaStream_t stream) {
    const int blocks = static_cast<int>(std::min<int64_t>(rows, 1024));
    const int threads = cols <= 64 ? 64 : 192;
    softmax_atomic_kernel<<<blocks, threads, 0, stream>>>(x, y, rows, cols);
    CUDA_CHECK_LAUNCH();
}
