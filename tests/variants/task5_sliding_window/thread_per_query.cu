// Sliding window with one thread per query of a block of 32; the keys that any of them sees go through shared
// memory, eight at a time, and each thread passes over those that are not its own. The output's rows stay in shared
// memory, too.
#include "common/cuda/check.h"
#include "task5/given/sparse_attention.h"

constexpr int ROWS = 32, STEP = 8, LONGEST = 128;

__global__ void __launch_bounds__(ROWS)
    window_by_threads(const float* query, const float* key, const float* value, float* out, int64_t S_q, int64_t S_k,
                      int head_dim, int64_t window, bool causal, float scale) {
    __shared__ float q[ROWS][LONGEST + 1], o[ROWS][LONGEST + 1], k[STEP][LONGEST], v[STEP][LONGEST];
    const int64_t per_head = ceil_div(S_q, int64_t{ROWS}), head = blockIdx.x / per_head;
    const int64_t i0 = blockIdx.x % per_head * ROWS;
    const int t = threadIdx.x, rows = S_q - i0 < ROWS ? static_cast<int>(S_q - i0) : ROWS;
    const int64_t i = i0 + t;
    for (int n = t; n < rows * head_dim; n += ROWS) {
        q[n / head_dim][n % head_dim] = scale * query[(head * S_q + i0) * head_dim + n];
    }
    for (int d = 0; d < head_dim; ++d) o[t][d] = 0.0f;

    int64_t begin = i0 - (window - 1), end = i0 + rows + (causal ? 0 : window - 1);
    if (begin < 0) begin = 0;
    if (end > S_k) end = S_k;
    float m = -INFINITY, l = 0.0f;
    for (int64_t first = begin; first < end; first += STEP) {
        const int count = end - first < STEP ? static_cast<int>(end - first) : STEP;
        __syncthreads();
        for (int n = t; n < count * head_dim; n += ROWS) {
            k[n / head_dim][n % head_dim] = key[(head * S_k + first) * head_dim + n];
            v[n / head_dim][n % head_dim] = value[(head * S_k + first) * head_dim + n];
        }
        __syncthreads();
        for (int j = 0; j < count && t < rows; ++j) {
            const int64_t distance = i - (first + j);  // negative: the key comes after the query
            if (distance >= window || -distance >= window || (causal && distance < 0)) continue;
            float s = 0.0f;
            for (int d = 0; d < head_dim; ++d) s += q[t][d] * k[j][d];
            if (s == -INFINITY) continue;
            if (s > m) {
                const float rescale = expf(m - s);
                for (int d = 0; d < head_dim; ++d) o[t][d] *= rescale;
                l *= rescale;
                m = s;
            }
            const float p = expf(s - m);
            l += p;
            for (int d = 0; d < head_dim; ++d) o[t][d] += p * v[j][d];
        }
    }
    for (int d = 0; d < head_dim && t < rows; ++d) {
        out[(head * S_q + i) * head_dim + d] = l > 0.0f ? o[t][d] / l : 0.0f;
    }
}

void custom_sliding_window_attention(const float* query, const float* key, const float* value, float* out,
                                     int64_t batch_heads, int64_t S_q, int64_t S_k, int head_dim, int64_t window,
                                     bool causal, float scale, cudaStream_t stream) {
    const unsigned blocks = grid_blocks(batch_heads * ceil_div(S_q, int64_t{ROWS}), "query");
    window_by_threads<<<blocks, ROWS, 0, stream>>>(query, key, value, out, S_q, S_k, head_dim, window, causal, scale);
    CUDA_CHECK_LAUNCH();
}
