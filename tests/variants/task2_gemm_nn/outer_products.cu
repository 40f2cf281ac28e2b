// 64 x 32 elements of C per block of 64 threads, 8 x 4 of them per thread: for every k an outer product of 8
// entries of A and 4 of B, held in registers. The tile sizes are template parameters; shared memory is dynamic.
#include <algorithm>

#include "common/cuda/check.h"
#include "task2/given/attention_kernel.h"

template <int TILE_M, int TILE_N, int TILE_K, int PER_M, int PER_N>
struct Shape {
    static constexpr int BX = TILE_N / PER_N, BY = TILE_M / PER_M, THREADS_IN_BLOCK = BX * BY;
    static constexpr int BYTES = (TILE_M + TILE_N) * TILE_K * sizeof(float);

    // to[k][i] = from[i * step_i + k * step_k], or 0
    template <int WIDTH>
    static __device__ void copy(float* to, const float* from, size_t step_i, size_t step_k, int left_i, int left_k) {
        for (int n = threadIdx.x; n < WIDTH * TILE_K; n += THREADS_IN_BLOCK) {
            const int i = n % WIDTH, k = n / WIDTH;
            to[n] = i < left_i && k < left_k ? from[i * step_i + k * step_k] : 0.0f;
        }
    }

    static __device__ void run(const float* a, const float* b, float* c, int M, int N, int K, int row0, int col0) {
        extern __shared__ float memory[];
        float *a_tile = memory, *b_tile = memory + TILE_M * TILE_K;
        const int tx = threadIdx.x % BX, ty = threadIdx.x / BX;
        float sums[PER_M][PER_N] = {};
        for (int k0 = 0; k0 < K; k0 += TILE_K) {
            copy<TILE_M>(a_tile, a + static_cast<size_t>(row0) * K + k0, K, 1, M - row0, K - k0);
            copy<TILE_N>(b_tile, b + static_cast<size_t>(k0) * N + col0, 1, N, N - col0, K - k0);
            __syncthreads();
            for (int k = 0; k < TILE_K; ++k) {
                float x[PER_M], y[PER_N];
#pragma unroll
                for (int i = 0; i < PER_M; ++i) x[i] = a_tile[k * TILE_M + ty + i * BY];
#pragma unroll
                for (int j = 0; j < PER_N; ++j) y[j] = b_tile[k * TILE_N + tx + j * BX];
#pragma unroll
                for (int i = 0; i < PER_M; ++i) {
#pragma unroll
                    for (int j = 0; j < PER_N; ++j) sums[i][j] += x[i] * y[j];
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < PER_M; ++i) {
#pragma unroll
            for (int j = 0; j < PER_N; ++j) {
                const int row = row0 + ty + i * BY, col = col0 + tx + j * BX;
                if (row < M && col < N) c[static_cast<size_t>(row) * N + col] = sums[i][j];
            }
        }
    }
};

using Chosen = Shape<64, 32, 16, 8, 4>;

__global__ void __launch_bounds__(Chosen::THREADS_IN_BLOCK)
    nn_outer_kernel(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K) {
    for (int64_t i = blockIdx.z; i < batch; i += gridDim.z) {
        Chosen::run(a + i * M * K, b + i * K * N, c + i * M * N, M, N, K, blockIdx.x * 64, blockIdx.y * 32);
    }
}

void gemm_nn(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K, cudaStream_t stream) {
    const dim3 grid((M + 63u) / 64, (N + 31u) / 32, static_cast<unsigned>(std::min<int64_t>(batch, 65535)));
    nn_outer_kernel<<<grid, Chosen::THREADS_IN_BLOCK, Chosen::BYTES, stream>>>(a, b, c, batch, M, N, K);
    CUDA_CHECK_LAUNCH();
}
