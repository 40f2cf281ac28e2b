// Two pairs of tiles in shared memory: while one is multiplied, the next one is on its way through registers, and
// one barrier per step is enough. 32 x 32 elements of C per block of 16 x 16 threads, each with a square of 2 x 2.
#include <algorithm>

#include "common/cuda/check.h"
#include "task2/given/attention_kernel.h"

constexpr int BM = 32, BK = 16;

struct NextTiles {
    float a[2], b[2];
};

// This thread's entries of the next tiles: column k of the rows ty and ty + 16.
__device__ NextTiles fetch(const float* a, const float* b, int M, int N, int K, int row, int col, int k) {
    NextTiles next;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        next.a[i] = row + 16 * i < M && k < K ? __ldg(a + static_cast<size_t>(row + 16 * i) * K + k) : 0.0f;
        next.b[i] = col + 16 * i < N && k < K ? __ldg(b + static_cast<size_t>(col + 16 * i) * K + k) : 0.0f;
    }
    return next;
}

__global__ void nt_buffered_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c,
                                   int64_t first_matrix, int M, int N, int K) {
    __shared__ float sa[2][BM][BK + 1], sb[2][BM][BK + 1];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int64_t matrix = first_matrix + blockIdx.z;
    a += matrix * M * K;
    b += matrix * N * K;
    c += matrix * M * N;
    const int row0 = blockIdx.x * BM, col0 = blockIdx.y * BM;

    float c00 = 0.0f, c01 = 0.0f, c10 = 0.0f, c11 = 0.0f;
    NextTiles next = fetch(a, b, M, N, K, row0 + ty, col0 + ty, tx);
    int buffer = 0;
    for (int k0 = 0; k0 < K; k0 += BK, buffer ^= 1) {
        sa[buffer][ty][tx] = next.a[0];
        sa[buffer][ty + 16][tx] = next.a[1];
        sb[buffer][ty][tx] = next.b[0];
        sb[buffer][ty + 16][tx] = next.b[1];
        __syncthreads();  // whoever is here has read the other buffer, which the next step writes
        if (k0 + BK < K) next = fetch(a, b, M, N, K, row0 + ty, col0 + ty, k0 + BK + tx);
        for (int k = 0; k < BK; ++k) {
            const float a0 = sa[buffer][ty][k], a1 = sa[buffer][ty + 16][k];
            const float b0 = sb[buffer][tx][k], b1 = sb[buffer][tx + 16][k];
            c00 += a0 * b0;
            c01 += a0 * b1;
            c10 += a1 * b0;
            c11 += a1 * b1;
        }
    }
    const auto store = [&](int row, int col, float value) {
        if (row < M && col < N) c[static_cast<size_t>(row) * N + col] = value;
    };
    store(row0 + ty, col0 + tx, c00);
    store(row0 + ty, col0 + tx + 16, c01);
    store(row0 + ty + 16, col0 + tx, c10);
    store(row0 + ty + 16, col0 + tx + 16, c11);
}

// More matrices than z has blocks: several launches.
void gemm_nt(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K, cudaStream_t stream) {
    for (int64_t first = 0; first < batch; first += MAX_GRID_YZ) {
        const unsigned matrices = static_cast<unsigned>(std::min<int64_t>(batch - first, MAX_GRID_YZ));
        const dim3 grid(ceil_div(M, BM), ceil_div(N, BM), matrices);
        nt_buffered_kernel<<<grid, dim3(16, 16), 0, stream>>>(a, b, c, first, M, N, K);
        CUDA_CHECK_LAUNCH();
    }
}
