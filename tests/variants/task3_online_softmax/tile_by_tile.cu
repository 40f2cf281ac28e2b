// As FlashAttention does it: the block goes through the row in tiles of 512 columns, finds a tile's maximum
// together, and then all threads rescale their sums. One running maximum for the block, in place of one per thread.
#include "common/cuda/check.h"
#include "common/cuda/warp.cuh"
#include "task3/given/online_softmax.h"

constexpr int COLUMNS = 512, LANES = 256;

template <bool MAX>
__device__ float over_block(float value, float* scratch) {
    value = MAX ? warp_max(value) : warp_sum(value);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    value = scratch[0];
    for (int i = 1; i < LANES / 32; ++i) value = MAX ? fmaxf(value, scratch[i]) : value + scratch[i];
    __syncthreads();
    return value;
}

__global__ void online_tiles_kernel(const float* x, float* y, float* lse, int64_t cols) {
    __shared__ float scratch[LANES / 32];
    __shared__ float tile[COLUMNS];
    x += blockIdx.x * cols;
    y += blockIdx.x * cols;
    float running = -INFINITY, sum = 0.0f;
    for (int64_t start = 0; start < cols; start += COLUMNS) {
        float largest = -INFINITY;
        for (int i = threadIdx.x; i < COLUMNS; i += LANES) {
            tile[i] = start + i < cols ? x[start + i] : -INFINITY;
            largest = fmaxf(largest, tile[i]);
        }
        largest = fmaxf(running, over_block<true>(largest, scratch));
        if (largest == -INFINITY) continue;  // for all threads alike
        sum *= expf(running - largest);
        running = largest;
        for (int i = threadIdx.x; i < COLUMNS; i += LANES) sum += expf(tile[i] - running);
    }
    sum = over_block<false>(sum, scratch);
    const float log_sum = running == -INFINITY ? -INFINITY : running + logf(sum);
    if (threadIdx.x == 0) lse[blockIdx.x] = log_sum;
    for (int64_t c = threadIdx.x; c < cols; c += LANES) y[c] = sum > 0.0f ? expf(x[c] - running) / sum : 0.0f;
}

void online_softmax(const float* x, float* y, float* lse, int64_t rows, int64_t cols, cudaStream_t stream) {
    online_tiles_kernel<<<static_cast<unsigned>(rows), LANES, 0, stream>>>(x, y, lse, cols);
    CUDA_CHECK_LAUNCH();
}
