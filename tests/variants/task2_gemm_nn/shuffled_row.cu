// One warp per row of C and 32 columns: each lane reads one entry of A and passes it to the others by a shuffle, so
// that neither operand goes through shared memory. Kahan's compensated sum in place of a plain one.
#include <algorithm>

#include "common/cuda/check.h"
#include "common/cuda/warp.cuh"
#include "task2/given/attention_kernel.h"

__global__ void nn_shuffle_kernel(const float* a, const float* b, float* c, int64_t pieces, int M, int N, int K) {
    const int lane = threadIdx.x & 31;
    const int64_t pieces_per_row = (N + 31) / 32;
    const int64_t warps = (int64_t{gridDim.x} * blockDim.x) >> 5;
    for (int64_t p = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) >> 5; p < pieces; p += warps) {
        const int64_t row = p / pieces_per_row;
        const int64_t col = p % pieces_per_row * 32 + lane;
        const float* b_column = b + row / M * K * N + (col < N ? col : 0);  // lanes without a column repeat one
        float sum = 0.0f, lost = 0.0f;
        for (int k0 = 0; k0 < K; k0 += 32) {
            const float mine = k0 + lane < K ? a[row * K + k0 + lane] : 0.0f;
            const int steps = min(32, K - k0);
            for (int k = 0; k < steps; ++k) {
                const float product = __shfl_sync(FULL_WARP, mine, k) * b_column[static_cast<int64_t>(k0 + k) * N];
                const float y = product - lost, t = sum + y;
                lost = (t - sum) - y;
                sum = t;
            }
        }
        if (col < N) c[row * N + col] = sum;
    }
}

void gemm_nn(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K, cudaStream_t stream) {
    const int64_t pieces = batch * M * ceil_div(N, 32);
    const unsigned blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(pieces, int64_t{4}), 1 << 18));
    nn_shuffle_kernel<<<blocks, 128, 0, stream>>>(a, b, c, pieces, M, N, K);
    CUDA_CHECK_LAUNCH();
}
