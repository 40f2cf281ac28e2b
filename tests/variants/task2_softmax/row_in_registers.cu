// The row is read once and kept in registers, as many entries per thread as the row needs (a template parameter);
// only rows of over 4096 entries are read again. 256 threads, tree in shared memory without a special case for its
// end.
#include "common/cuda/check.h"
#include "task2/given/attention_kernel.h"

constexpr int NT = 256;

// Keeps the entries tid, tid + NT, ... of a row.
template <int N>
struct Kept {
    float values[N];
    __device__ void load(const float* row, int cols) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            int c = threadIdx.x + i * NT;
            values[i] = c < cols ? row[c] : -INFINITY;
        }
    }
};

__device__ float tree(float* buffer, float mine, bool is_max) {
    buffer[threadIdx.x] = mine;
    for (int stride = NT >> 1; stride >= 1; stride >>= 1) {
        __syncthreads();
        if (threadIdx.x < stride) {
            float other = buffer[threadIdx.x + stride];
            buffer[threadIdx.x] = is_max ? fmaxf(buffer[threadIdx.x], other) : buffer[threadIdx.x] + other;
        }
    }
    __syncthreads();
    return buffer[0];
}

template <int N>
__global__ void __launch_bounds__(NT) softmax_kept_kernel(const float* x, float* y, int cols) {
    __shared__ float buffer_max[NT], buffer_sum[NT];  // two, so that no barrier is needed between the reductions
    size_t offset = size_t(blockIdx.x) * cols;
    Kept<N> row;
    row.load(x + offset, cols);
    float m = row.values[0];
#pragma unroll
    for (int i = 1; i < N; i++) m = fmaxf(m, row.values[i]);
    m = tree(buffer_max, m, true);
    m = m == -INFINITY ? 0.f : m;
    float total = 0.f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        row.values[i] = expf(row.values[i] - m);
        total += row.values[i];
    }
    total = tree(buffer_sum, total, false);
    float inv = total == 0.f ? 0.f : 1.f / total;
#pragma unroll
    for (int i = 0; i < N; i++) {
        int c = threadIdx.x + i * NT;
        if (c < cols) y[offset + c] = row.values[i] * inv;
    }
}

__global__ void __launch_bounds__(NT) softmax_long_kernel(const float* x, float* y, int cols) {
    __shared__ float buffer_max[NT], buffer_sum[NT];
    size_t offset = size_t(blockIdx.x) * cols;
    float m = -INFINITY, total = 0.f;
    // every thread has a piece of neighboring entries
    int piece = ceil_div(cols, NT), begin = threadIdx.x * piece, end = min(cols, begin + piece);
    for (int c = begin; c < end; c++) m = fmaxf(m, x[offset + c]);
    m = tree(buffer_max, m, true);
    m = m == -INFINITY ? 0.f : m;
    for (int c = begin; c < end; c++) total += expf(x[offset + c] - m);
    total = tree(buffer_sum, total, false);
    for (int c = begin; c < end; c++) y[offset + c] = total == 0.f ? 0.f : expf(x[offset + c] - m) / total;
}

void softmax(const float* x, float* y, int64_t rows, int cols, cudaStream_t stream) {
    auto kernel = softmax_long_kernel;
    if (cols <= 4 * NT) {
        kernel = softmax_kept_kernel<4>;
    } else if (cols <= 16 * NT) {
        kernel = softmax_kept_kernel<16>;
    }
    kernel<<<unsigned(rows), NT, 0, stream>>>(x, y, cols);
    CUDA_CHECK_LAUNCH();
}
