// C is set to 0, and then several blocks along K add their parts to it by atomicAdd: in whatever order they come.
#include <algorithm>

#include "common/cuda/check.h"
#include "task2/given/attention_kernel.h"

constexpr int SIDE = 16;
constexpr int DEPTH = 64;  // of the products that one block adds up

__global__ void nn_partial_kernel(const float* a, const float* b, float* c, int64_t tiles, int M, int N, int K,
                                  int tiles_m, int tiles_n, int parts) {
    __shared__ float ta[SIDE][SIDE], tb[SIDE][SIDE];
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int64_t rest = tile;
        const int part = rest % parts;
        rest /= parts;
        const int col = rest % tiles_n * SIDE + x;
        rest /= tiles_n;
        const int row = rest % tiles_m * SIDE + y;
        const int64_t matrix = rest / tiles_m;
        const int64_t behind = (part + int64_t{1}) * DEPTH;
        const int k_end = behind < K ? static_cast<int>(behind) : K;
        float sum = 0.0f;
        for (int k = part * DEPTH; k < k_end; k += SIDE) {
            ta[y][x] = row < M && k + x < k_end ? a[(matrix * M + row) * K + k + x] : 0.0f;
            tb[y][x] = col < N && k + y < k_end ? b[(matrix * K + k + y) * N + col] : 0.0f;
            __syncthreads();
            for (int i = 0; i < SIDE; ++i) sum += ta[y][i] * tb[i][x];
            __syncthreads();
        }
        if (row < M && col < N) atomicAdd(&c[(matrix * M + row) * N + col], sum);
    }
}

void gemm_nn(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K, cudaStream_t stream) {
    CUDA_CHECK(cudaMemsetAsync(c, 0, sizeof(float) * batch * M * N, stream));
    const int tiles_m = ceil_div(M, SIDE), tiles_n = ceil_div(N, SIDE), parts = ceil_div(K, DEPTH);
    const int64_t tiles = batch * tiles_m * tiles_n * parts;
    const unsigned blocks = static_cast<unsigned>(std::min<int64_t>(tiles, MAX_GRID_X));
    nn_partial_kernel<<<blocks, SIDE * SIDE, 0, stream>>>(a, b, c, tiles, M, N, K, tiles_m, tiles_n, parts);
    CUDA_CHECK_LAUNCH();
}
