// One warp per query and no tile of K or V: each lane finds the score of one key of 32, reading it from global
// memory; the weights go round by shuffles, and each lane adds up four columns of the output.
#include "common/cuda/check.h"
#include "common/cuda/warp.cuh"
#include "task4/given/flash_attention.h"

constexpr int QUERIES = 4;  // per block

__global__ void attention_by_warps(const float* query, const float* key, const float* value, float* out, int64_t rows,
                                   int64_t S_q, int64_t S_k, int head_dim, float scale, bool causal,
                                   int64_t diagonal) {
    __shared__ float q[QUERIES][MAX_HEAD_DIM];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t row = int64_t{blockIdx.x} * QUERIES + warp;
    if (row >= rows) return;
    const float* k_rows = key + row / S_q * S_k * head_dim;
    const float* v_rows = value + row / S_q * S_k * head_dim;
    int64_t keys = S_k;
    if (causal && row % S_q + diagonal + 1 < keys) keys = row % S_q + diagonal + 1;  // may be negative
    for (int d = lane; d < head_dim; d += 32) q[warp][d] = query[row * head_dim + d];
    __syncwarp();

    float m = -INFINITY, l = 0.0f, o[4] = {};
    for (int64_t first = 0; first < keys; first += 32) {
        float s = -INFINITY;
        if (first + lane < keys) {
            s = 0.0f;
            for (int d = 0; d < head_dim; ++d) s += q[warp][d] * k_rows[(first + lane) * head_dim + d];
            s *= scale;
        }
        const float m_new = fmaxf(m, warp_max(s));
        if (m_new == -INFINITY) continue;  // the same in all lanes
        const float rescale = expf(m - m_new), p = expf(s - m_new);
        m = m_new;
        l = l * rescale + p;
        for (int c = 0; c < 4; ++c) o[c] *= rescale;
        for (int i = 0; i < 32 && first + i < keys; ++i) {
            const float weight = __shfl_sync(FULL_WARP, p, i);
            for (int c = 0; c < 4; ++c) {
                if (lane + 32 * c < head_dim) o[c] += weight * v_rows[(first + i) * head_dim + lane + 32 * c];
            }
        }
    }
    l = warp_sum(l);
    for (int c = 0; c < 4; ++c) {
        if (lane + 32 * c < head_dim) out[row * head_dim + lane + 32 * c] = l > 0.0f ? o[c] / l : 0.0f;
    }
}

void custom_flash_attention(const float* query, const float* key, const float* value, float* out, int64_t batch_heads,
                            int64_t S_q, int64_t S_k, int head_dim, float scale, bool causal, int64_t diagonal,
                            cudaStream_t stream) {
    const int64_t rows = batch_heads * S_q;
    const unsigned blocks = grid_blocks(ceil_div(rows, int64_t{QUERIES}), "query");
    attention_by_warps<<<blocks, 32 * QUERIES, 0, stream>>>(query, key, value, out, rows, S_q, S_k, head_dim, scale,
                                                            causal, diagonal);
    CUDA_CHECK_LAUNCH();
}
