// 64 x 64 elements of C per block and 4 x 4 per thread, in registers. Both operands are turned over on their way
// into shared memory, so that a thread reads its four rows and its four columns as one float4 each.
#include <algorithm>

#include "common/cuda/check.h"
#include "task2/given/attention_kernel.h"

namespace tile {
constexpr int MN = 64;  // rows and columns
constexpr int K = 8;    // depth
constexpr int STRIDE = MN + 4;
}  // namespace tile

__device__ __forceinline__ void fill(float (*to)[tile::STRIDE], const float* from, int rows, int depth, int first_row,
                                     int first_k) {
    for (int i = threadIdx.x; i < tile::MN * tile::K; i += 256) {
        const int r = i / tile::K, k = i % tile::K;
        float value = 0.0f;
        if (first_row + r < rows && first_k + k < depth) {
            value = from[static_cast<int64_t>(first_row + r) * depth + first_k + k];
        }
        to[k][r] = value;
    }
}

__global__ void __launch_bounds__(256)
    nt_register_kernel(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K) {
    __shared__ __align__(16) float a_k[tile::K][tile::STRIDE];
    __shared__ __align__(16) float b_k[tile::K][tile::STRIDE];
    const int m0 = blockIdx.x * tile::MN, n0 = blockIdx.y * tile::MN;
    const int tm = threadIdx.x / 16 * 4, tn = threadIdx.x % 16 * 4;
    for (int64_t i = blockIdx.z; i < batch; i += gridDim.z) {
        float sums[4][4] = {};
        for (int k0 = 0; k0 < K; k0 += tile::K) {
            __syncthreads();
            fill(a_k, a + i * M * K, M, K, m0, k0);
            fill(b_k, b + i * N * K, N, K, n0, k0);
            __syncthreads();
#pragma unroll
            for (int k = 0; k < tile::K; ++k) {
                const float4 x = *reinterpret_cast<const float4*>(&a_k[k][tm]);
                const float4 y = *reinterpret_cast<const float4*>(&b_k[k][tn]);
                const float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
                for (int r = 0; r < 4; ++r) {
#pragma unroll
                    for (int s = 0; s < 4; ++s) sums[r][s] += xs[r] * ys[s];
                }
            }
        }
        for (int r = 0; r < 4; ++r) {
            for (int s = 0; s < 4; ++s) {
                if (m0 + tm + r < M && n0 + tn + s < N) c[(i * M + m0 + tm + r) * N + n0 + tn + s] = sums[r][s];
            }
        }
    }
}

void gemm_nt(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K, cudaStream_t stream) {
    const unsigned matrices = static_cast<unsigned>(std::min<int64_t>(batch, 8192));
    const dim3 grid(ceil_div(M, tile::MN), ceil_div(N, tile::MN), matrices);
    nt_register_kernel<<<grid, 256, 0, stream>>>(a, b, c, batch, M, N, K);
    CUDA_CHECK_LAUNCH();
}
