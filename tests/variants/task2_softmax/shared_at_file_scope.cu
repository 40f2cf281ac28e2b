// A block per row. Its shared memory is declared outside of the kernel: an extern array and a static variable, which a
// helper and the kernel use. A parameter of another function has the same name.
#include "common/cuda/check.h"
#include "task2/given/attention_kernel.h"

constexpr int THREADS = 128;

extern __shared__ float parts[];
__shared__ float whole[1];

template <typename Combine>
__device__ float combined(float mine, Combine combine) {
    parts[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        whole[0] = parts[0];
        for (int i = 1; i < THREADS; ++i) whole[0] = combine(whole[0], parts[i]);
    }
    __syncthreads();
    const float result = whole[0];
    __syncthreads();  // before the next call writes
    return result;
}

__device__ float ratio(float part, float whole) { return whole > 0.0f ? part / whole : 0.0f; }

__global__ void softmax_shared_kernel(const float* x, float* y, int cols) {
    const float* in = x + static_cast<size_t>(blockIdx.x) * cols;
    float* out = y + static_cast<size_t>(blockIdx.x) * cols;
    float largest = -INFINITY, sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += THREADS) largest = fmaxf(largest, in[c]);
    largest = combined(largest, [](float a, float b) { return fmaxf(a, b); });
    const float shift = largest == -INFINITY ? 0.0f : largest;
    for (int c = threadIdx.x; c < cols; c += THREADS) sum += expf(in[c] - shift);
    combined(sum, [](float a, float b) { return a + b; });
    for (int c = threadIdx.x; c < cols; c += THREADS) out[c] = ratio(expf(in[c] - shift), whole[0]);
}

void softmax(const float* x, float* y, int64_t rows, int cols, cudaStream_t stream) {
    softmax_shared_kernel<<<static_cast<unsigned>(rows), THREADS, THREADS * sizeof(float), stream>>>(x, y, cols);
    CUDA_CHECK_LAUNCH();
}
