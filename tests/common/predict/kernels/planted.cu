// planted.cu - kernels whose bound is known, and the same with a planted slowness: PLANTED in compare_predictions.py pairs
// them.
#include "timed.cuh"

__global__ void copy(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}
__global__ void copy_uncoalesced(const float* x, float* y, int n) {  // neighbors are 32 floats apart
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int from = i % (n / 32) * 32 + i / (n / 32);
    if (i < n) y[from] = x[from];
}
__global__ void copy_small_blocks(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}
__global__ void copy_low_occupancy(const float* x, float* y, int n) {  // launched with much shared memory
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}
__global__ void copy_one_block(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i];
}

template <int COLUMNS>
__device__ void transpose_tile(const float* x, float* y, int rows) {
    __shared__ float tile[32][COLUMNS];
    const int column = blockIdx.x * 32 + threadIdx.x;
    for (int r = threadIdx.y; r < 32; r += 8) tile[r][threadIdx.x] = x[(blockIdx.y * 32 + r) * rows + column];
    __syncthreads();
    const int out = blockIdx.y * 32 + threadIdx.x;
    for (int r = threadIdx.y; r < 32; r += 8) y[(blockIdx.x * 32 + r) * rows + out] = tile[threadIdx.x][r];
}
__global__ void transpose(const float* x, float* y, int rows) { transpose_tile<33>(x, y, rows); }
__global__ void transpose_conflicts(const float* x, float* y, int rows) { transpose_tile<32>(x, y, rows); }
__global__ void transpose_uncoalesced(const float* x, float* y, int rows) {
    const int column = blockIdx.x * 32 + threadIdx.x;
    for (int r = threadIdx.y; r < 32; r += 8) y[column * rows + blockIdx.y * 32 + r] = x[(blockIdx.y * 32 + r) * rows + column];
}

__global__ void fma_chain(const float* x, float* y, int steps) {
    float a = x[threadIdx.x];
    for (int i = 0; i < steps; ++i) a = a * a + 0.5f;
    y[blockIdx.x * blockDim.x + threadIdx.x] = a;
}
__global__ void fma_one_warp(const float* x, float* y, int steps) {
    float a = x[threadIdx.x];
    for (int i = 0; i < steps; ++i) a = a * a + 0.5f;
    y[blockIdx.x * blockDim.x + threadIdx.x] = a;
}

template <int TILE>
__device__ void multiply(const float* a, const float* b, float* c, int n) {
    __shared__ float as[TILE][TILE], bs[TILE][TILE];
    const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int k = 0; k < n; k += TILE) {
        as[y][x] = a[row * n + k + x];
        bs[y][x] = b[(k + y) * n + column];
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += as[y][i] * bs[i][x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
__global__ void matmul_32(const float* a, const float* b, float* c, int n) { multiply<32>(a, b, c, n); }
__global__ void matmul_8(const float* a, const float* b, float* c, int n) { multiply<8>(a, b, c, n); }

__global__ void row_sum(const float* x, float* y, int columns) {  // a tree in shared memory
    __shared__ float part[256];
    float sum = 0;
    for (int i = threadIdx.x; i < columns; i += 256) sum += x[size_t(blockIdx.x) * columns + i];
    part[threadIdx.x] = sum;
    for (int half = 128; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}
__global__ void row_sum_barriers(const float* x, float* y, int columns) {  // the tree after every 256 numbers
    __shared__ float part[256];
    float sum = 0;
    for (int i = threadIdx.x; i < columns; i += 256) {
        part[threadIdx.x] = x[size_t(blockIdx.x) * columns + i];
        for (int half = 128; half; half /= 2) {
            __syncthreads();
            if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        }
        __syncthreads();
        if (threadIdx.x == 0) sum += part[0];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

int main(int argc, char** argv) {
    const int n = size_of(argc, argv);  // 2^20, 2^22, 2^24
    int rows = 1;
    while (rows * rows < n) rows *= 2;
    float *x = floats(n), *y = floats(n), *z = floats(n);
    const int shared = 96 << 10;
    cudaFuncSetAttribute(copy_low_occupancy, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    const dim3 tiles(rows / 32, rows / 32), tile(32, 8);
    TIMED(copy, n / 256, 256, 0, x, y, n);
    TIMED(copy_uncoalesced, n / 256, 256, 0, x, y, n);
    TIMED(copy_small_blocks, n / 32, 32, 0, x, y, n);
    TIMED(copy_low_occupancy, n / 128, 128, shared, x, y, n);
    TIMED(copy_one_block, 1, 1024, 0, x, y, n);
    TIMED(transpose, tiles, tile, 0, x, y, rows);
    TIMED(transpose_conflicts, tiles, tile, 0, x, y, rows);
    TIMED(transpose_uncoalesced, tiles, tile, 0, x, y, rows);
    TIMED(fma_chain, n / 1024, 1024, 0, x, y, 1024);
    TIMED(fma_one_warp, 1, 32, 0, x, y, n / 64);
    const int edge = rows / 2;
    TIMED(matmul_32, dim3(edge / 32, edge / 32), dim3(32, 32), 0, x, y, z, edge);
    TIMED(matmul_8, dim3(edge / 8, edge / 8), dim3(8, 8), 0, x, y, z, edge);
    TIMED(row_sum, n / 4096, 256, 0, x, y, 4096);
    TIMED(row_sum_barriers, n / 4096, 256, 0, x, y, 4096);
    return cudaDeviceSynchronize();
}
