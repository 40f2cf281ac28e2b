// The scores are computed twice: a first sweep over the keys finds maximum and sum of each row, a second one the
// weights, final at once, so that nothing is ever rescaled. A block has four queries.
#include "common/cuda/check.h"
#include "common/cuda/warp.cuh"
#include "task4/given/flash_attention.h"

constexpr int ROWS_OF_BLOCK = 4, SWEEP = 128;  // a thread per key of a sweep's step, and per column

// sees(j) says whether the query may look at key j.
template <typename Sees>
__device__ float score_of(const float* q, const float* k, int head_dim, int64_t j, Sees sees) {
    if (!sees(j)) return -INFINITY;
    float sum = 0.0f;
    for (int d = 0; d < head_dim; ++d) sum += q[d] * k[j * head_dim + d];
    return sum;
}

__device__ float all_max(float v, float* scratch) {
    v = warp_max(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    return fmaxf(fmaxf(scratch[0], scratch[1]), fmaxf(scratch[2], scratch[3]));
}

__device__ float all_sum(float v, float* scratch) {
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    return (scratch[0] + scratch[1]) + (scratch[2] + scratch[3]);
}

__global__ void __launch_bounds__(SWEEP)
    attention_in_two_sweeps(const float* query, const float* key, const float* value, float* out, int64_t rows,
                            int64_t S_q, int64_t S_k, int head_dim, float scale, bool causal, int64_t diagonal) {
    __shared__ float q[MAX_HEAD_DIM], p[SWEEP], scratch[SWEEP / 32];
    const int t = threadIdx.x;
    for (int r = 0; r < ROWS_OF_BLOCK; ++r) {
        const int64_t row = int64_t{blockIdx.x} * ROWS_OF_BLOCK + r;
        if (row >= rows) return;  // the whole block
        const int64_t head = row / S_q, i = row % S_q;
        const auto sees = [=](int64_t j) { return j < S_k && (!causal || j - diagonal <= i); };
        const float *k = key + head * S_k * head_dim, *v = value + head * S_k * head_dim;
        __syncthreads();
        if (t < head_dim) q[t] = query[row * head_dim + t] * scale;
        __syncthreads();

        float m = -INFINITY, l = 0.0f;
        for (int64_t j = t; j < S_k; j += SWEEP) {
            const float s = score_of(q, k, head_dim, j, sees), m_new = fmaxf(m, s);
            if (m_new == -INFINITY) continue;
            l = l * expf(m - m_new) + expf(s - m_new);
            m = m_new;
        }
        const float m_row = all_max(m, scratch);
        const float shift = m_row == -INFINITY ? 0.0f : m_row;
        const float l_row = all_sum(l * expf(m - shift), scratch);

        float o = 0.0f;
        for (int64_t start = 0; start < S_k && sees(start); start += SWEEP) {
            __syncthreads();
            p[t] = l_row > 0.0f ? expf(score_of(q, k, head_dim, start + t, sees) - shift) / l_row : 0.0f;
            __syncthreads();
            if (t < head_dim) {
                for (int n = 0; n < SWEEP && start + n < S_k; ++n) o += p[n] * v[(start + n) * head_dim + t];
            }
        }
        if (t < head_dim) out[row * head_dim + t] = o;
    }
}

void custom_flash_attention(const float* query, const float* key, const float* value, float* out, int64_t batch_heads,
                            int64_t S_q, int64_t S_k, int head_dim, float scale, bool causal, int64_t diagonal,
                            cudaStream_t stream) {
    const int64_t rows = batch_heads * S_q;
    const unsigned blocks = grid_blocks(ceil_div(rows, int64_t{ROWS_OF_BLOCK}), "query");
    attention_in_two_sweeps<<<blocks, SWEEP, 0, stream>>>(query, key, value, out, rows, S_q, S_k, head_dim, scale,
                                                          causal, diagonal);
    CUDA_CHECK_LAUNCH();
}
