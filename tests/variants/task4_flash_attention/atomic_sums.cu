// Eight warps share a query, a key at a time each, and add what they found to the query's sums in shared memory by
// atomics, once the maximum of all scores is known: the order of the additions is chance, the result right.
#include "common/cuda/check.h"
#include "common/cuda/warp.cuh"
#include "task4/given/flash_attention.h"

constexpr int NW = 8, NT = 32 * NW;

__global__ void __launch_bounds__(NT)
    attention_by_atomics(const float* query, const float* key, const float* value, float* out, int64_t S_q, int64_t S_k,
                         int head_dim, float scale, bool causal, int64_t diagonal) {
    __shared__ float q[MAX_HEAD_DIM], o_sum[MAX_HEAD_DIM], l_sum, m_of[NW];
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    const int64_t row = blockIdx.x, i = row % S_q, head = row / S_q * S_k;
    const int64_t end = causal && i + diagonal + 1 < S_k ? i + diagonal + 1 : S_k;
    if (t < head_dim) {
        q[t] = query[row * head_dim + t] * scale;
        o_sum[t] = 0.0f;
    }
    if (t == 0) l_sum = 0.0f;
    __syncthreads();

    float m = -INFINITY, l = 0.0f, o[4] = {};
    for (int64_t first = 32 * warp; first < end; first += NT) {
        float s = -INFINITY;
        if (first + lane < end) {
            s = 0.0f;
            for (int d = 0; d < head_dim; ++d) s += q[d] * key[(head + first + lane) * head_dim + d];
        }
        const float m_new = fmaxf(m, warp_max(s)), shift = m_new == -INFINITY ? 0.0f : m_new;
        const float rescale = expf(m - shift), p = expf(s - shift);
        m = m_new;
        l = l * rescale + p;
        for (int c = 0; c < 4; ++c) o[c] *= rescale;
        for (int j = 0; j < 32 && first + j < end; ++j) {
            const float weight = __shfl_sync(FULL_WARP, p, j);
            for (int c = 0; c < 4; ++c) {
                if (lane + 32 * c < head_dim) o[c] += weight * value[(head + first + j) * head_dim + lane + 32 * c];
            }
        }
    }
    if (lane == 0) m_of[warp] = m;
    __syncthreads();
    float m_all = -INFINITY;
    for (int w = 0; w < NW; ++w) m_all = fmaxf(m_all, m_of[w]);
    if (m > -INFINITY) {
        const float factor = expf(m - m_all);
        atomicAdd(&l_sum, l * factor);
        for (int c = 0; c < 4; ++c) {
            if (lane + 32 * c < head_dim) atomicAdd(&o_sum[lane + 32 * c], o[c] * factor);
        }
    }
    __syncthreads();
    if (t < head_dim) out[row * head_dim + t] = l_sum > 0.0f ? o_sum[t] / l_sum : 0.0f;
}

void custom_flash_attention(const float* query, const float* key, const float* value, float* out, int64_t batch_heads,
                            int64_t S_q, int64_t S_k, int head_dim, float scale, bool causal, int64_t diagonal,
                            cudaStream_t stream) {
    attention_by_atomics<<<grid_blocks(batch_heads * S_q, "query"), NT, 0, stream>>>(
        query, key, value, out, S_q, S_k, head_dim, scale, causal, diagonal);
    CUDA_CHECK_LAUNCH();
}
