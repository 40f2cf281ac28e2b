#pragma once
#include "deep/warp_sum.cuh"

template <int THREADS>
__global__ void reduce_sum(const float* in, float* out, int n) {
    __shared__ float partial[THREADS / 32];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += THREADS) sum += in[i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = warp_sum(threadIdx.x < THREADS / 32 ? partial[threadIdx.x] : 0.0f);
        if (threadIdx.x == 0) *out = sum;
    }
}
