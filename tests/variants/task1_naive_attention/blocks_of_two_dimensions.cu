// Blocks of 16 x 16 threads over queries and keys (or columns), all tiles counted along x, and a softmax with one
// block per row and a tree in shared memory, in place of one thread per row.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/cuda/check.h"
#include "task1/given/naive_attention.h"

constexpr int SIDE = 16;

struct Place {
    int64_t head, row, col;
};

// Which element of [heads, rows, cols] this thread has; it may be outside.
__device__ Place my_place(int64_t rows, int64_t cols) {
    const int64_t row_tiles = ceil_div(rows, SIDE), col_tiles = ceil_div(cols, SIDE), tile = blockIdx.x;
    return {tile / col_tiles / row_tiles, tile / col_tiles % row_tiles * SIDE + threadIdx.y,
            tile % col_tiles * SIDE + threadIdx.x};
}

static unsigned tiles(int64_t heads, int64_t rows, int64_t cols) {
    return static_cast<unsigned>(heads * ceil_div(rows, SIDE) * ceil_div(cols, SIDE));
}

template <typename T>
__global__ void scores_2d(const T* query, const T* key, float* scores, int64_t S_q, int64_t S_k, int64_t head_dim,
                          float scale, bool causal, AttentionMask mask) {
    const auto [head, q, k] = my_place(S_q, S_k);
    if (q < S_q && k < S_k) {
        const T* a = &query[(head * S_q + q) * head_dim];
        const T* b = &key[(head * S_k + k) * head_dim];
        float sum = 0.0f;
        for (int d = 0; d < head_dim; ++d) sum = fmaf(static_cast<float>(a[d]), static_cast<float>(b[d]), sum);
        const float score = masked_score(scale * sum, mask, head, q, k);
        scores[(head * S_q + q) * S_k + k] = causal && q < k ? -INFINITY : score;
    }
}

template <int BLOCK>
__global__ void softmax_block(const float* scores, float* weights, int64_t rows, int64_t cols) {
    __shared__ float s[BLOCK];
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const float* in = scores + row * cols;
        float m = -INFINITY, sum = 0.0f;
        for (int64_t k = threadIdx.x; k < cols; k += BLOCK) m = fmaxf(m, in[k]);
        s[threadIdx.x] = m;
        for (int n = BLOCK / 2; n > 0; n /= 2) {
            __syncthreads();
            if (threadIdx.x < n) s[threadIdx.x] = fmaxf(s[threadIdx.x], s[threadIdx.x + n]);
        }
        __syncthreads();
        m = s[0] == -INFINITY ? 0.0f : s[0];
        __syncthreads();
        for (int64_t k = threadIdx.x; k < cols; k += BLOCK) sum += expf(in[k] - m);
        s[threadIdx.x] = sum;
        for (int n = BLOCK / 2; n > 0; n /= 2) {
            __syncthreads();
            if (threadIdx.x < n) s[threadIdx.x] += s[threadIdx.x + n];
        }
        __syncthreads();
        sum = s[0];
        __syncthreads();
        for (int64_t k = threadIdx.x; k < cols; k += BLOCK) {
            weights[row * cols + k] = sum == 0.0f ? 0.0f : expf(in[k] - m) / sum;
        }
    }
}

template <typename T>
__global__ void output_2d(const float* weights, const T* value, T* out, int64_t S_q, int64_t S_k, int64_t head_dim) {
    const auto [head, q, d] = my_place(S_q, head_dim);
    if (q >= S_q || d >= head_dim) return;
    float sum = 0.0f;
    for (int64_t k = 0; k < S_k; ++k) {
        sum += weights[(head * S_q + q) * S_k + k] * static_cast<float>(value[(head * S_k + k) * head_dim + d]);
    }
    out[(head * S_q + q) * head_dim + d] = static_cast<T>(sum);
}

template <typename T>
void launch_scores(const T* query, const T* key, float* scores, int64_t batch_heads, int64_t S_q, int64_t S_k,
                   int64_t head_dim, float scale, bool causal, AttentionMask mask, cudaStream_t stream) {
    scores_2d<T><<<tiles(batch_heads, S_q, S_k), dim3(SIDE, SIDE), 0, stream>>>(query, key, scores, S_q, S_k, head_dim,
                                                                               scale, causal, mask);
    CUDA_CHECK_LAUNCH();
}

void launch_softmax(const float* scores, float* weights, int64_t rows, int64_t cols, cudaStream_t stream) {
    const unsigned blocks = static_cast<unsigned>(rows < 65535 ? rows : 65535);
    softmax_block<64><<<blocks, 64, 0, stream>>>(scores, weights, rows, cols);
    CUDA_CHECK_LAUNCH();
}

template <typename T>
void launch_output(const float* weights, const T* value, T* out, int64_t batch_heads, int64_t S_q, int64_t S_k,
                   int64_t head_dim, cudaStream_t stream) {
    output_2d<T><<<tiles(batch_heads, S_q, head_dim), dim3(SIDE, SIDE), 0, stream>>>(weights, value, out, S_q, S_k,
                                                                                   head_dim);
    CUDA_CHECK_LAUNCH();
}
