// The row comes to shared memory in chunks of 256, through a cuda::pipeline of two stages that the block shares: no
// __syncthreads() in the passes over the row, where each thread waits for a stage and releases it.
#include <cooperative_groups.h>
#include <cuda/pipeline>

#include "common/cuda/check.h"
#include "task2/given/attention_kernel.h"

#pragma nv_diag_suppress static_var_with_dynamic_init

constexpr int CHUNK = 256;  // entries, and threads of a block

template <typename Entry>
__device__ void for_each_entry(const float* row, int cols, Entry entry) {
    __shared__ float chunks[2][CHUNK];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    const auto block = cooperative_groups::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    int next = 0;
    for (int begin = 0; begin < cols; begin += CHUNK) {
        for (; next < cols && next < begin + 2 * CHUNK; next += CHUNK) {
            pipe.producer_acquire();
            const int size = min(CHUNK, cols - next);
            cuda::memcpy_async(block, chunks[next / CHUNK % 2], row + next, sizeof(float) * size, pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        const int c = begin + threadIdx.x;
        if (c < cols) entry(c, chunks[begin / CHUNK % 2][threadIdx.x]);
        pipe.consumer_release();
    }
    block.sync();  // before another pipeline takes the same state
}

// The parts of all threads in one, for all threads.
template <typename Combine>
__device__ float combined(float mine, Combine combine) {
    __shared__ float parts[CHUNK];
    parts[threadIdx.x] = mine;
    __syncthreads();
    for (unsigned active = CHUNK / 2; active > 0; active /= 2) {
        if (threadIdx.x < active) parts[threadIdx.x] = combine(parts[threadIdx.x], parts[threadIdx.x + active]);
        __syncthreads();
    }
    const float all = parts[0];
    __syncthreads();
    return all;
}

__global__ void __launch_bounds__(CHUNK) softmax_chunks_kernel(const float* x, float* y, int cols) {
    const float* in = x + static_cast<size_t>(blockIdx.x) * cols;
    float* out = y + static_cast<size_t>(blockIdx.x) * cols;
    float largest = -INFINITY, sum = 0.0f;
    for_each_entry(in, cols, [&](int, float value) { largest = fmaxf(largest, value); });
    largest = combined(largest, [](float a, float b) { return fmaxf(a, b); });
    const float shift = largest == -INFINITY ? 0.0f : largest;
    for_each_entry(in, cols, [&](int, float value) { sum += expf(value - shift); });
    sum = combined(sum, [](float a, float b) { return a + b; });
    const float factor = sum > 0.0f ? 1.0f / sum : 0.0f;
    for_each_entry(in, cols, [&](int c, float value) { out[c] = expf(value - shift) * factor; });
}

void softmax(const float* x, float* y, int64_t rows, int cols, cudaStream_t stream) {
    softmax_chunks_kernel<<<static_cast<unsigned>(rows), CHUNK, 0, stream>>>(x, y, cols);
    CUDA_CHECK_LAUNCH();
}
