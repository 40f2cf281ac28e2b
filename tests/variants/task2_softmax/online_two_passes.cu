// Two passes in place of three: each thread carries maximum and sum along (the online softmax), one merge per
// block. 512 threads; within a warp by shuffles, between warps through shared memory.
#include "common/cuda/check.h"
#include "task2/given/attention_kernel.h"

struct Running {
    float max, sum;
};

__device__ Running merged(Running a, Running b) {
    const float max = fmaxf(a.max, b.max);
    if (max == -INFINITY) return {max, 0.0f};
    return {max, a.sum * __expf(a.max - max) + b.sum * __expf(b.max - max)};
}

__device__ Running merged_in_warp(Running r) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const Running other = {__shfl_down_sync(0xffffffff, r.max, offset),
                               __shfl_down_sync(0xffffffff, r.sum, offset)};
        r = merged(r, other);
    }
    return r;  // complete in lane 0
}

template <int BLOCK>
__global__ void softmax_online_kernel(const float* x, float* y, int cols) {
    __shared__ Running of_warp[BLOCK / 32];
    const float* in = &x[static_cast<size_t>(blockIdx.x) * cols];
    float* out = &y[static_cast<size_t>(blockIdx.x) * cols];

    Running r = {-INFINITY, 0.0f};
    for (int c = threadIdx.x; c < cols; c += BLOCK) r = merged(r, {in[c], 1.0f});
    r = merged_in_warp(r);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = r;
    __syncthreads();
    if (threadIdx.x < 32) {
        r = threadIdx.x < BLOCK / 32 ? of_warp[threadIdx.x] : Running{-INFINITY, 0.0f};
        __syncwarp();
        r = merged_in_warp(r);
        if (threadIdx.x == 0) of_warp[0] = r;
    }
    __syncthreads();
    const Running row = of_warp[0];
    const float factor = row.sum > 0.0f ? 1.0f / row.sum : 0.0f;
    const float shift = row.sum > 0.0f ? row.max : 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) out[c] = __expf(in[c] - shift) * factor;
}

void softmax(const float* x, float* y, int64_t rows, int cols, cudaStream_t stream) {
    softmax_online_kernel<512><<<static_cast<unsigned>(rows), 512, 0, stream>>>(x, y, cols);
    CUDA_CHECK_LAUNCH();
}
