// Rows are read 16 bytes at a time (four floats, or eight of the 16-bit types) where they begin at a multiple of
// 16; the query's row is in shared memory, one block per query. The exponentials are powers of two.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/cuda/check.h"
#include "common/cuda/logarithms.h"
#include "task1/given/naive_attention.h"

template <typename T>
struct alignas(16) Pack {
    T values[16 / sizeof(T)];
};

template <typename T>
__device__ float dot_row(const float* x, const T* y, int64_t length) {
    constexpr int WIDTH = 16 / sizeof(T);
    float sum = 0.0f;
    int64_t i = 0;
    if (reinterpret_cast<uintptr_t>(y) % 16 == 0) {
        for (; i + WIDTH <= length; i += WIDTH) {
            const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(y + i);
            for (int j = 0; j < WIDTH; ++j) sum += x[i + j] * static_cast<float>(pack.values[j]);
        }
    }
    for (; i < length; ++i) sum += x[i] * static_cast<float>(y[i]);
    return sum;
}

template <typename T>
__global__ void scores_of_query(const T* query, const T* key, float* scores, int64_t S_q, int64_t S_k, int64_t head_dim,
                                float scale, bool causal, AttentionMask mask) {
    extern __shared__ float query_row[];
    const int64_t row = blockIdx.x, head = row / S_q, q = row % S_q;
    for (int64_t d = threadIdx.x; d < head_dim; d += blockDim.x) {
        query_row[d] = static_cast<float>(query[row * head_dim + d]) * scale;
    }
    __syncthreads();
    for (int64_t k = threadIdx.x; k < S_k; k += blockDim.x) {
        const bool hidden = causal && k > q;
        const float score = hidden ? -INFINITY : dot_row(query_row, key + (head * S_k + k) * head_dim, head_dim);
        scores[row * S_k + k] = masked_score(score, mask, head, q, k);
    }
}

__global__ void softmax_in_base_2(const float* scores, float* weights, int64_t rows, int64_t cols) {
    const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float* in = scores + row * cols;
    float* out = weights + row * cols;
    float m = -INFINITY;
    for (int64_t k = 0; k < cols; ++k) m = in[k] > m ? in[k] : m;
    if (m == -INFINITY) {
        for (int64_t k = 0; k < cols; ++k) out[k] = 0.0f;
        return;
    }
    float sum = 0.0f;
    for (int64_t k = 0; k < cols; ++k) sum += out[k] = exp2f((in[k] - m) * LOG2_E);
    for (int64_t k = 0; k < cols; ++k) out[k] /= sum;
}

template <typename T>
__global__ void output_of_query(const float* weights, const T* value, T* out, int64_t S_q, int64_t S_k,
                                int64_t head_dim) {
    __shared__ float some_weights[64];
    const int64_t row = blockIdx.x, head = row / S_q;
    for (int64_t first = 0; first < head_dim; first += blockDim.x) {
        const int64_t d = first + threadIdx.x;
        float sum = 0.0f;
        for (int64_t k0 = 0; k0 < S_k; k0 += 64) {
            __syncthreads();
            if (threadIdx.x < 64 && k0 + threadIdx.x < S_k) {
                some_weights[threadIdx.x] = weights[row * S_k + k0 + threadIdx.x];
            }
            __syncthreads();
            for (int i = 0; i < 64 && k0 + i < S_k && d < head_dim; ++i) {
                sum += some_weights[i] * static_cast<float>(value[(head * S_k + k0 + i) * head_dim + d]);
            }
        }
        if (d < head_dim) out[row * head_dim + d] = static_cast<T>(sum);
    }
}

template <typename T>
void launch_scores(const T* query, const T* key, float* scores, int64_t batch_heads, int64_t S_q, int64_t S_k,
                   int64_t head_dim, float scale, bool causal, AttentionMask mask, cudaStream_t stream) {
    const size_t bytes = head_dim * sizeof(float);
    scores_of_query<<<static_cast<unsigned>(batch_heads * S_q), 96, bytes, stream>>>(query, key, scores, S_q, S_k,
                                                                                     head_dim, scale, causal, mask);
    CUDA_CHECK_LAUNCH();
}

void launch_softmax(const float* scores, float* weights, int64_t rows, int64_t cols, cudaStream_t stream) {
    softmax_in_base_2<<<static_cast<unsigned>(ceil_div(rows, 256)), 256, 0, stream>>>(scores, weights, rows, cols);
    CUDA_CHECK_LAUNCH();
}

template <typename T>
void launch_output(const float* weights, const T* value, T* out, int64_t batch_heads, int64_t S_q, int64_t S_k,
                   int64_t head_dim, cudaStream_t stream) {
    output_of_query<<<static_cast<unsigned>(batch_heads * S_q), 128, 0, stream>>>(weights, value, out, S_q, S_k,
                                                                                  head_dim);
    CUDA_CHECK_LAUNCH();
}
