// At most 512 blocks of 128 threads for any size: every thread strides over the elements that are its own. The
// softmax divides by the sum at the end instead of multiplying by its inverse.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/cuda/check.h"
#include "task1/given/naive_attention.h"

#define FOR_EACH(i, n)                                                                         \
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < (n); i += int64_t(gridDim.x) * blockDim.x)

template <typename T>
__global__ void strided_scores(const T* query, const T* key, float* scores, int64_t batch_heads, int64_t S_q,
                               int64_t S_k, int64_t head_dim, float scale, bool causal, AttentionMask mask) {
    FOR_EACH(i, batch_heads * S_q * S_k) {
        int64_t row = i / S_k, k = i - row * S_k, head = row / S_q, q = row - head * S_q;
        float result = -INFINITY;
        if (!causal || k <= q) {
            float dot = 0;
            for (int64_t d = head_dim - 1; d >= 0; d--) {
                dot += float(query[row * head_dim + d]) * float(key[(head * S_k + k) * head_dim + d]);
            }
            result = masked_score(dot * scale, mask, head, q, k);
        }
        scores[i] = result;
    }
}

__global__ void strided_softmax(const float* scores, float* weights, int64_t rows, int64_t cols) {
    FOR_EACH(row, rows) {
        float largest = scores[row * cols];
        for (int64_t k = 1; k < cols; k++) largest = max(largest, scores[row * cols + k]);
        double sum = 0;
        for (int64_t k = 0; k < cols; k++) {
            // nothing but -infinity: everything is 0
            float e = isinf(largest) ? 0.0f : expf(scores[row * cols + k] - largest);
            weights[row * cols + k] = e;
            sum += e;
        }
        if (sum > 0) {
            for (int64_t k = 0; k < cols; k++) weights[row * cols + k] /= float(sum);
        }
    }
}

template <typename T>
__global__ void strided_output(const float* weights, const T* value, T* out, int64_t batch_heads, int64_t S_q,
                               int64_t S_k, int64_t head_dim) {
    FOR_EACH(i, batch_heads * S_q * head_dim) {
        int64_t d = i % head_dim, row = i / head_dim, head = row / S_q;
        const T* v = value + head * S_k * head_dim + d;
        float sum = 0;
        for (int64_t k = 0; k < S_k; k++, v += head_dim) sum += weights[row * S_k + k] * float(*v);
        out[i] = T(sum);
    }
}

static int blocks_of(int64_t elements) { return elements < 512 * 128 ? int((elements + 127) / 128) : 512; }

template <typename T>
void launch_scores(const T* query, const T* key, float* scores, int64_t batch_heads, int64_t S_q, int64_t S_k,
                   int64_t head_dim, float scale, bool causal, AttentionMask mask, cudaStream_t stream) {
    strided_scores<<<blocks_of(batch_heads * S_q * S_k), 128, 0, stream>>>(query, key, scores, batch_heads, S_q, S_k,
                                                                           head_dim, scale, causal, mask);
    CUDA_CHECK_LAUNCH();
}

void launch_softmax(const float* scores, float* weights, int64_t rows, int64_t cols, cudaStream_t stream) {
    strided_softmax<<<blocks_of(rows), 128, 0, stream>>>(scores, weights, rows, cols);
    CUDA_CHECK_LAUNCH();
}

template <typename T>
void launch_output(const float* weights, const T* value, T* out, int64_t batch_heads, int64_t S_q, int64_t S_k,
                   int64_t head_dim, cudaStream_t stream) {
    strided_output<<<blocks_of(batch_heads * S_q * head_dim), 128, 0, stream>>>(weights, value, out, batch_heads, S_q,
                                                                                S_k, head_dim);
    CUDA_CHECK_LAUNCH();
}
