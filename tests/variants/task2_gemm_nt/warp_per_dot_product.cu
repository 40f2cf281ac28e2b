// One warp per element of C: its lanes share K, by float4 where both rows begin at a multiple of 16 bytes, and add
// up by shuffles. What K leaves over the vectors is taken one by one.
#include <algorithm>

#include "common/cuda/check.h"
#include "task2/given/attention_kernel.h"

__device__ __forceinline__ bool on_16_bytes(const float* p) { return reinterpret_cast<size_t>(p) % 16 == 0; }

__device__ float warp_dot(const float* x, const float* y, int length) {
    const int lane = threadIdx.x;
    float sum = 0.0f;
    int done = 0;
    if (on_16_bytes(x) && on_16_bytes(y)) {
        done = length / 4 * 4;
        for (int i = 4 * lane; i < done; i += 128) {
            const float4 p = *reinterpret_cast<const float4*>(x + i), q = *reinterpret_cast<const float4*>(y + i);
            sum += p.x * q.x + p.y * q.y + (p.z * q.z + p.w * q.w);
        }
    }
    for (int i = done + lane; i < length; i += 32) sum += x[i] * y[i];
    sum += __shfl_down_sync(0xffffffff, sum, 16);
    sum += __shfl_down_sync(0xffffffff, sum, 8);
    sum += __shfl_down_sync(0xffffffff, sum, 4);
    sum += __shfl_down_sync(0xffffffff, sum, 2);
    sum += __shfl_down_sync(0xffffffff, sum, 1);
    return sum;  // in lane 0
}

__global__ void nt_warp_kernel(const float* a, const float* b, float* c, int64_t elements, int M, int N, int K) {
    const int64_t warps = int64_t{gridDim.x} * blockDim.y;
    for (int64_t e = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; e < elements; e += warps) {
        const int64_t row = e / N, col = e % N, matrix = row / M;
        const float result = warp_dot(a + row * K, b + (matrix * N + col) * K, K);
        if (threadIdx.x == 0) c[e] = result;
    }
}

void gemm_nt(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K, cudaStream_t stream) {
    const int64_t elements = batch * M * N;
    const unsigned blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(elements, int64_t{8}), 1 << 20));
    nt_warp_kernel<<<blocks, dim3(32, 8), 0, stream>>>(a, b, c, elements, M, N, K);
    CUDA_CHECK_LAUNCH();
}
