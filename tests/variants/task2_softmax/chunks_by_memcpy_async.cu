// The row comes to shared memory in chunks of 256, two at a time: the next one is on its way (cooperative groups'
// memcpy_async) while the threads read the current one, and in the last pass write y. Its waits synchronize the block.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>

#include "common/cuda/check.h"
#include "task2/given/attention_kernel.h"

constexpr int CHUNK = 256;  // entries, and threads of a block

template <typename Entry>
__device__ void for_each_entry(const float* row, int cols, Entry entry) {
    __shared__ float chunks[2][CHUNK];
    const auto block = cooperative_groups::this_thread_block();
    const auto start = [&](int begin) {
        cooperative_groups::memcpy_async(block, chunks[begin / CHUNK % 2], row + begin,
                                         sizeof(float) * min(CHUNK, cols - begin));
    };
    start(0);
    for (int begin = 0; begin < cols; begin += CHUNK) {
        if (begin + CHUNK < cols) {
            start(begin + CHUNK);
            cooperative_groups::wait_prior<1>(block);
        } else {
            cooperative_groups::wait(block);
        }
        const int c = begin + threadIdx.x;
        if (c < cols) entry(c, chunks[begin / CHUNK % 2][threadIdx.x]);
        block.sync();  // before the chunk is replaced
    }
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
