// In all three kernels a warp has a row. The lanes share head_dim in the scores, the keys in the softmax and the
// columns in the output; sums over lanes are shuffles.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/cuda/check.h"
#include "common/cuda/warp.cuh"
#include "task1/given/naive_attention.h"

__device__ int64_t warp_number() { return (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32; }

template <typename T>
__global__ void scores_by_warps(const T* query, const T* key, float* scores, int64_t rows, int64_t S_q, int64_t S_k,
                                int64_t head_dim, float scale, bool causal, AttentionMask mask) {
    const int64_t row = warp_number(), lane = threadIdx.x % 32;
    if (row >= rows) return;
    const int64_t head = row / S_q, q = row % S_q;
    for (int64_t k = 0; k < S_k; ++k) {
        float sum = 0.0f;
        for (int64_t d = lane; d < head_dim; d += 32) {
            const float scaled = scale * static_cast<float>(query[row * head_dim + d]);
            sum += scaled * static_cast<float>(key[(head * S_k + k) * head_dim + d]);
        }
        sum = warp_sum(sum);
        if (lane == k % 32) {
            scores[row * S_k + k] = causal && k > q ? -INFINITY : masked_score(sum, mask, head, q, k);
        }
    }
}

__global__ void softmax_by_warps(const float* scores, float* weights, int64_t rows, int64_t cols) {
    const int64_t row = warp_number(), lane = threadIdx.x % 32;
    if (row >= rows) return;
    float m = -INFINITY;
    for (int64_t k = lane; k < cols; k += 32) m = fmaxf(m, scores[row * cols + k]);
    m = warp_max(m);
    const float shift = m > -INFINITY ? m : 0.0f;
    float sum = 0.0f;
    for (int64_t k = lane; k < cols; k += 32) sum += weights[row * cols + k] = expf(scores[row * cols + k] - shift);
    sum = warp_sum(sum);
    const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    for (int64_t k = lane; k < cols; k += 32) weights[row * cols + k] *= inverse;
}

template <typename T>
__global__ void output_by_warps(const float* weights, const T* value, T* out, int64_t rows, int64_t S_q, int64_t S_k,
                                int64_t head_dim) {
    const int64_t row = warp_number(), lane = threadIdx.x % 32;
    if (row >= rows) return;
    const T* v = value + row / S_q * S_k * head_dim;
    for (int64_t first = 0; first < head_dim; first += 32) {
        float sum = 0.0f;
        for (int64_t k0 = 0; k0 < S_k; k0 += 32) {
            const float mine = k0 + lane < S_k ? weights[row * S_k + k0 + lane] : 0.0f;
            for (int i = 0; i < 32 && k0 + i < S_k; ++i) {
                const float weight = __shfl_sync(FULL_WARP, mine, i);
                if (first + lane < head_dim) sum += weight * static_cast<float>(v[(k0 + i) * head_dim + first + lane]);
            }
        }
        if (first + lane < head_dim) out[row * head_dim + first + lane] = static_cast<T>(sum);
    }
}

static unsigned blocks_for_warps(int64_t warps) { return static_cast<unsigned>(ceil_div(warps, int64_t{4})); }

template <typename T>
void launch_scores(const T* query, const T* key, float* scores, int64_t batch_heads, int64_t S_q, int64_t S_k,
                   int64_t head_dim, float scale, bool causal, AttentionMask mask, cudaStream_t stream) {
    const int64_t rows = batch_heads * S_q;
    scores_by_warps<<<blocks_for_warps(rows), 128, 0, stream>>>(query, key, scores, rows, S_q, S_k, head_dim, scale,
                                                                causal, mask);
    CUDA_CHECK_LAUNCH();
}

void launch_softmax(const float* scores, float* weights, int64_t rows, int64_t cols, cudaStream_t stream) {
    softmax_by_warps<<<blocks_for_warps(rows), 128, 0, stream>>>(scores, weights, rows, cols);
    CUDA_CHECK_LAUNCH();
}

template <typename T>
void launch_output(const float* weights, const T* value, T* out, int64_t batch_heads, int64_t S_q, int64_t S_k,
                   int64_t head_dim, cudaStream_t stream) {
    const int64_t rows = batch_heads * S_q;
    output_by_warps<<<blocks_for_warps(rows), 128, 0, stream>>>(weights, value, out, rows, S_q, S_k, head_dim);
    CUDA_CHECK_LAUNCH();
}
