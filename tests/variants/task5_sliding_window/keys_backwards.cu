// Sliding window from its last key to its first: eight lanes share a query and a key at a time, each with a strip
// of neighboring columns. Powers of two, Q scaled on load, and no tiles; blocks stride over the queries.
#include "common/cuda/check.h"
#include "common/cuda/logarithms.h"
#include "task5/given/sparse_attention.h"

constexpr int TEAM = 8;  // lanes

template <int STRIP>
__global__ void __launch_bounds__(128)
    window_backwards(const float* query, const float* key, const float* value, float* out, int64_t rows, int64_t S_q,
                     int64_t S_k, int head_dim, int64_t window, bool causal, float scale_log2) {
    const int first = threadIdx.x % TEAM * STRIP;  // of the lane's columns
    const int columns = head_dim - first < STRIP ? (head_dim > first ? head_dim - first : 0) : STRIP;
    const unsigned team = 0xffu << (threadIdx.x % 32 / TEAM * TEAM);
    const int64_t teams = int64_t{gridDim.x} * (128 / TEAM);
    for (int64_t row = (int64_t{blockIdx.x} * 128 + threadIdx.x) / TEAM; row < rows; row += teams) {
        const int64_t i = row % S_q;
        int64_t last = causal ? i : i + window - 1, begin = i - window + 1;
        if (last >= S_k) last = S_k - 1;
        if (begin < 0) begin = 0;
        float q[STRIP], o[STRIP];
#pragma unroll
        for (int c = 0; c < STRIP; ++c) {
            q[c] = c < columns ? query[row * head_dim + first + c] * scale_log2 : 0.0f;
            o[c] = 0.0f;
        }
        float m = -INFINITY, l = 0.0f;
        for (int64_t j = last; j >= begin; --j) {
            const int64_t at = (row / S_q * S_k + j) * head_dim + first;
            float s = 0.0f;
#pragma unroll
            for (int c = 0; c < STRIP; ++c) {
                if (c < columns) s += q[c] * key[at + c];
            }
            for (int lanes = TEAM / 2; lanes > 0; lanes /= 2) s += __shfl_xor_sync(team, s, lanes);
            const float m_new = fmaxf(m, s);
            if (m_new == -INFINITY) continue;  // all lanes of the team alike
            const float rescale = exp2f(m - m_new), p = exp2f(s - m_new);
            m = m_new;
            l = l * rescale + p;
#pragma unroll
            for (int c = 0; c < STRIP; ++c) {
                if (c < columns) o[c] = o[c] * rescale + p * value[at + c];
            }
        }
#pragma unroll
        for (int c = 0; c < STRIP; ++c) {
            if (c < columns) out[row * head_dim + first + c] = l > 0.0f ? o[c] / l : 0.0f;
        }
    }
}

void custom_sliding_window_attention(const float* query, const float* key, const float* value, float* out,
                                     int64_t batch_heads, int64_t S_q, int64_t S_k, int head_dim, int64_t window,
                                     bool causal, float scale, cudaStream_t stream) {
    const auto kernel = head_dim <= 32 ? window_backwards<4> : window_backwards<16>;
    const int64_t blocks = ceil_div(batch_heads * S_q, int64_t{128 / TEAM});
    kernel<<<static_cast<unsigned>(blocks < 4096 ? blocks : 4096), 128, 0, stream>>>(
        query, key, value, out, batch_heads * S_q, S_q, S_k, head_dim, window, causal, scale * LOG2_E);
    CUDA_CHECK_LAUNCH();
}
