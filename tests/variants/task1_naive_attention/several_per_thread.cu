// A thread computes four neighboring scores, or four neighboring columns of the output, from one read of its
// query's entry or weight; the softmax carries maximum and sum along in one pass (the online softmax).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/cuda/check.h"
#include "task1/given/naive_attention.h"

constexpr int EACH = 4;

template <typename T>
__global__ void four_scores(const T* query, const T* key, float* scores, int64_t batch_heads, int64_t S_q, int64_t S_k,
                            int64_t head_dim, float scale, bool causal, AttentionMask mask) {
    const int64_t groups = ceil_div(S_k, int64_t{EACH});
    const int64_t number = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (number >= batch_heads * S_q * groups) return;
    const int64_t first = number % groups * EACH, row = number / groups;
    const int64_t head = row / S_q, q = row % S_q;
    float sums[EACH] = {};
    for (int64_t d = 0; d < head_dim; ++d) {
        const float x = static_cast<float>(query[row * head_dim + d]);
        for (int i = 0; i < EACH; ++i) {
            const int64_t k = first + i < S_k ? first + i : S_k - 1;  // a key that exists
            sums[i] += x * static_cast<float>(key[(head * S_k + k) * head_dim + d]);
        }
    }
    for (int i = 0; i < EACH; ++i) {
        const int64_t k = first + i;
        if (k >= S_k) break;
        float score = masked_score(sums[i] * scale, mask, head, q, k);
        if (causal && k > q) score = -INFINITY;
        scores[row * S_k + k] = score;
    }
}

__global__ void softmax_in_one_pass(const float* scores, float* weights, int64_t rows, int64_t cols) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    scores += row * cols;
    weights += row * cols;
    float m = -INFINITY, l = 0.0f;
    for (int64_t k = 0; k < cols; ++k) {
        const float x = scores[k];
        if (x > m) {
            l = l * expf(m - x) + 1.0f;
            m = x;
        } else if (x > -INFINITY) {
            l += expf(x - m);
        }
    }
    for (int64_t k = 0; k < cols; ++k) weights[k] = l > 0.0f ? expf(scores[k] - m) / l : 0.0f;
}

template <typename T>
__global__ void four_columns(const float* weights, const T* value, T* out, int64_t batch_heads, int64_t S_q,
                             int64_t S_k, int64_t head_dim) {
    const int64_t groups = ceil_div(head_dim, int64_t{EACH});
    const int64_t number = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (number >= batch_heads * S_q * groups) return;
    const int64_t first = number % groups * EACH, row = number / groups;
    const int columns = static_cast<int>(head_dim - first < EACH ? head_dim - first : EACH);
    const T* v = value + row / S_q * S_k * head_dim + first;
    float sums[EACH] = {};
    for (int64_t k = 0; k < S_k; ++k) {
        const float weight = weights[row * S_k + k];
        if (weight == 0.0f) continue;
        for (int i = 0; i < columns; ++i) sums[i] += weight * static_cast<float>(v[k * head_dim + i]);
    }
    for (int i = 0; i < columns; ++i) out[row * head_dim + first + i] = static_cast<T>(sums[i]);
}

template <typename T>
void launch_scores(const T* query, const T* key, float* scores, int64_t batch_heads, int64_t S_q, int64_t S_k,
                   int64_t head_dim, float scale, bool causal, AttentionMask mask, cudaStream_t stream) {
    const int64_t threads = batch_heads * S_q * ceil_div(S_k, int64_t{EACH});
    four_scores<<<static_cast<unsigned>(ceil_div(threads, 64)), 64, 0, stream>>>(
        query, key, scores, batch_heads, S_q, S_k, head_dim, scale, causal, mask);
    CUDA_CHECK_LAUNCH();
}

void launch_softmax(const float* scores, float* weights, int64_t rows, int64_t cols, cudaStream_t stream) {
    softmax_in_one_pass<<<static_cast<unsigned>(ceil_div(rows, 32)), 32, 0, stream>>>(scores, weights, rows, cols);
    CUDA_CHECK_LAUNCH();
}

template <typename T>
void launch_output(const float* weights, const T* value, T* out, int64_t batch_heads, int64_t S_q, int64_t S_k,
                   int64_t head_dim, cudaStream_t stream) {
    const int64_t threads = batch_heads * S_q * ceil_div(head_dim, int64_t{EACH});
    four_columns<<<static_cast<unsigned>(ceil_div(threads, 64)), 64, 0, stream>>>(weights, value, out, batch_heads, S_q,
                                                                                  S_k, head_dim);
    CUDA_CHECK_LAUNCH();
}
