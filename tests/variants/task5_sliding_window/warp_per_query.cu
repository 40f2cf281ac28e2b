// Sliding window with one warp per query: it begins at the first key that this very query sees, whatever its
// neighbors see, so that nothing has to be masked. Lanes have keys for the scores and columns for the output; no
// shared memory.
#include "common/cuda/check.h"
#include "common/cuda/warp.cuh"
#include "task5/given/sparse_attention.h"

__global__ void window_by_warps(const float* query, const float* key, const float* value, float* out, int64_t rows,
                                int64_t S_q, int64_t S_k, int head_dim, int64_t window, bool causal, float scale) {
    const int lane = threadIdx.x;
    const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const int64_t head = row / S_q, i = row % S_q;
    const int64_t begin = i >= window ? i - window + 1 : 0;
    const int64_t behind = causal ? i + 1 : i + window;
    const int64_t end = behind < S_k ? behind : S_k;
    const float* q = query + row * head_dim;

    float m = -INFINITY, l = 0.0f, o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int64_t first = begin; first < end; first += 32) {
        const int count = end - first < 32 ? static_cast<int>(end - first) : 32;
        float s = -INFINITY;
        if (lane < count) {
            const float* k = key + (head * S_k + first + lane) * head_dim;
            float dot = 0.0f;
            for (int d = 0; d < head_dim; ++d) dot += q[d] * k[d];
            s = dot * scale;
        }
        const float m_new = fmaxf(m, warp_max(s));
        const float shift = m_new == -INFINITY ? 0.0f : m_new;
        const float p = expf(s - shift), rescale = expf(m - shift);
        m = m_new;
        l = l * rescale + warp_sum(p);
#pragma unroll
        for (int c = 0; c < 4; ++c) o[c] *= rescale;
        for (int j = 0; j < count; ++j) {
            const float weight = __shfl_sync(FULL_WARP, p, j);
            const float* v = value + (head * S_k + first + j) * head_dim;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                if (lane + 32 * c < head_dim) o[c] += weight * v[lane + 32 * c];
            }
        }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        if (lane + 32 * c < head_dim) out[row * head_dim + lane + 32 * c] = l == 0.0f ? 0.0f : o[c] / l;
    }
}

void custom_sliding_window_attention(const float* query, const float* key, const float* value, float* out,
                                     int64_t batch_heads, int64_t S_q, int64_t S_k, int head_dim, int64_t window,
                                     bool causal, float scale, cudaStream_t stream) {
    const unsigned blocks = grid_blocks(ceil_div(batch_heads * S_q, int64_t{4}), "query");
    window_by_warps<<<blocks, dim3(32, 4), 0, stream>>>(query, key, value, out, batch_heads * S_q, S_q, S_k, head_dim,
                                                        window, causal, scale);
    CUDA_CHECK_LAUNCH();
}
