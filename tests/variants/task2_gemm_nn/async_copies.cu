// Three pairs of tiles in shared memory, filled by cp.async (cuda_pipeline.h) two steps ahead of their
// use, with one barrier per step. 32 x 64 elements of C per block, a row of eight per thread.
#include <cuda_pipeline.h>

#include <algorithm>

#include "common/cuda/check.h"
#include "task2/given/attention_kernel.h"

constexpr int BM = 32, BN = 64, BK = 16, STAGES = 3;

__global__ void __launch_bounds__(256)
    nn_async_kernel(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K) {
    __shared__ __align__(16) float a_tile[STAGES][BM][BK + 1];
    __shared__ __align__(16) float b_tile[STAGES][BK][BN];
    const int row0 = blockIdx.x * BM, col0 = blockIdx.y * BN, t = threadIdx.x;
    const int row = t / 8, col = t % 8;  // columns col, col + 8, ...
    const int steps = ceil_div(K, BK);
    for (int64_t i = blockIdx.z; i < batch; i += gridDim.z) {
        const float *a_matrix = a + i * M * K, *b_matrix = b + i * K * N;
        const auto start = [&](int step) {
            const int stage = step % STAGES, k0 = step * BK;
            for (int e = t; step < steps && e < BM * BK; e += 256) {
                const int r = row0 + e / BK, k = k0 + e % BK;
                const bool inside = r < M && k < K;
                __pipeline_memcpy_async(&a_tile[stage][e / BK][e % BK],
                                        inside ? a_matrix + static_cast<int64_t>(r) * K + k : a_matrix, 4,
                                        inside ? 0 : 4);
            }
            for (int e = t; step < steps && e < BK * BN; e += 256) {
                const int k = k0 + e / BN, n = col0 + e % BN;
                const bool inside = k < K && n < N;
                __pipeline_memcpy_async(&b_tile[stage][e / BN][e % BN],
                                        inside ? b_matrix + static_cast<int64_t>(k) * N + n : b_matrix, 4,
                                        inside ? 0 : 4);
            }
            __pipeline_commit();  // an empty group after the last step
        };
        float sums[8] = {};
        start(0);
        start(1);
        for (int step = 0; step < steps; ++step) {
            __pipeline_wait_prior(1);
            __syncthreads();  // the tiles are there for all, and those of the step before have been read
            start(step + 2);
            const int stage = step % STAGES;
#pragma unroll
            for (int k = 0; k < BK; ++k) {
                const float x = a_tile[stage][row][k];
#pragma unroll
                for (int j = 0; j < 8; ++j) sums[j] += x * b_tile[stage][k][col + 8 * j];
            }
        }
        __pipeline_wait_prior(0);
        __syncthreads();
        for (int j = 0; j < 8; ++j) {
            const int n = col0 + col + 8 * j;
            if (row0 + row < M && n < N) c[(i * M + row0 + row) * N + n] = sums[j];
        }
    }
}

void gemm_nn(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K, cudaStream_t stream) {
    const dim3 grid(ceil_div(M, BM), ceil_div(N, BN), static_cast<unsigned>(std::min<int64_t>(batch, 65535)));
    nn_async_kernel<<<grid, 256, 0, stream>>>(a, b, c, batch, M, N, K);
    CUDA_CHECK_LAUNCH();
}
