// Blocks of 16 x 16 threads, each with one element of C; both tiles are in shared memory as in global memory (B is
// not turned over: the loop over k runs along its rows). All tiles of all matrices are counted along x.
#include "common/cuda/check.h"
#include "task2/given/attention_kernel.h"

#define EDGE 16

__global__ void nt_square_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int M,
                                 int N, int K, unsigned tiles_m, unsigned tiles_n) {
    __shared__ float as[EDGE][EDGE + 1];
    __shared__ float bs[EDGE][EDGE + 1];
    const unsigned tile = blockIdx.x % (tiles_m * tiles_n);
    const size_t matrix = blockIdx.x / (tiles_m * tiles_n);
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row0 = tile / tiles_n * EDGE, col0 = tile % tiles_n * EDGE;
    a += matrix * M * K;
    b += matrix * N * K;
    c += matrix * M * N;

    float acc = 0;
    for (int start = 0; start < K; start += EDGE) {
        as[ty][tx] = row0 + ty < M && start + tx < K ? a[size_t(row0 + ty) * K + start + tx] : 0.f;
        bs[ty][tx] = col0 + ty < N && start + tx < K ? b[size_t(col0 + ty) * K + start + tx] : 0.f;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < EDGE; ++k) acc += as[ty][k] * bs[tx][k];
        __syncthreads();
    }
    if (row0 + ty < M && col0 + tx < N) c[size_t(row0 + ty) * N + col0 + tx] = acc;
}

void gemm_nt(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K, cudaStream_t stream) {
    const unsigned tiles_m = ceil_div(M, EDGE), tiles_n = ceil_div(N, EDGE);
    const unsigned blocks = grid_blocks(batch * tiles_m * tiles_n, "gemm_nt");
    nt_square_kernel<<<blocks, dim3(EDGE, EDGE), 0, stream>>>(a, b, c, M, N, K, tiles_m, tiles_n);
    CUDA_CHECK_LAUNCH();
}
