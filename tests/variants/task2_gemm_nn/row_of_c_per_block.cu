// A block has one row of C and 128 of its columns: pieces of the row of A in shared memory, B straight from global
// memory (neighboring threads read neighboring columns). The blocks stride over all rows of all matrices.
#include <algorithm>

#include "common/cuda/check.h"
#include "task2/given/attention_kernel.h"

constexpr int COLUMNS = 128, PIECE = 256;

__global__ void nn_row_kernel(const float* a, const float* b, float* c, int64_t all_rows, int M, int N, int K) {
    __shared__ float piece[PIECE];
    const int col = blockIdx.y * COLUMNS + threadIdx.x;
    for (int64_t row = blockIdx.x; row < all_rows; row += gridDim.x) {
        const float* b_matrix = b + row / M * K * N;
        float sum = 0.0f;
        for (int k0 = 0; k0 < K; k0 += PIECE) {
            const int length = min(PIECE, K - k0);
            __syncthreads();
            for (int k = threadIdx.x; k < length; k += COLUMNS) piece[k] = a[row * K + k0 + k];
            __syncthreads();
            if (col < N) {
                for (int k = 0; k < length; ++k) sum += piece[k] * b_matrix[static_cast<size_t>(k0 + k) * N + col];
            }
        }
        if (col < N) c[row * N + col] = sum;
    }
}

void gemm_nn(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K, cudaStream_t stream) {
    const dim3 blocks(static_cast<unsigned>(std::min<int64_t>(batch * M, 1 << 20)), ceil_div(N, COLUMNS));
    nn_row_kernel<<<blocks, COLUMNS, 0, stream>>>(a, b, c, batch * M, M, N, K);
    CUDA_CHECK_LAUNCH();
}
