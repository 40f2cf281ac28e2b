// Four neighboring lanes share a query, each with every fourth column of Q and of the output in registers. K and V
// have two buffers each: a tile is fetched into one while the other is used, and a step has one barrier.
#include "common/cuda/check.h"
#include "common/cuda/logarithms.h"
#include "common/cuda/warp.cuh"
#include "task4/given/flash_attention.h"

template <int D>
struct Quads {
    static constexpr int ROWS = 32, KEYS = 8, THREADS_IN_BLOCK = 4 * ROWS, OWN = D / 4;

    // K and V of the keys `start` ... one after the other
    static __device__ void fetch(float* buffer, const float* key, const float* value, int64_t start, int64_t S_k,
                                 int head_dim) {
        for (int n = threadIdx.x; n < KEYS * D; n += THREADS_IN_BLOCK) {
            const int64_t j = start + n / D;
            const int d = n % D;
            const bool there = j < S_k && d < head_dim;
            buffer[n] = there ? key[j * head_dim + d] : 0.0f;
            buffer[n + KEYS * D] = there ? value[j * head_dim + d] : 0.0f;
        }
    }
};

template <int D>
__global__ void __launch_bounds__(Quads<D>::THREADS_IN_BLOCK)
    attention_by_quads(const float* query, const float* key, const float* value, float* out, int64_t S_q, int64_t S_k,
                       int head_dim, float scale_log2, bool causal, int64_t diagonal) {
    using Q = Quads<D>;
    __shared__ float buffers[2][2 * Q::KEYS * D];
    const int part = threadIdx.x % 4;
    const int64_t groups = ceil_div(S_q, int64_t{Q::ROWS}), head = blockIdx.x / groups;
    const int64_t first_row = blockIdx.x % groups * Q::ROWS, row = first_row + threadIdx.x / 4;
    key += head * S_k * head_dim;
    value += head * S_k * head_dim;
    const int64_t at = (head * S_q + row) * head_dim;

    float q[Q::OWN], o[Q::OWN], m = -INFINITY, l = 0.0f;
#pragma unroll
    for (int i = 0; i < Q::OWN; ++i) {
        const int d = 4 * i + part;
        q[i] = row < S_q && d < head_dim ? query[at + d] * scale_log2 : 0.0f;
        o[i] = 0.0f;
    }
    int64_t end = S_k;
    if (causal && first_row + Q::ROWS + diagonal < end) end = first_row + Q::ROWS + diagonal;
    const int64_t seen = causal ? row + diagonal : S_k;  // the last key that this row sees

    if (end > 0) Q::fetch(buffers[0], key, value, 0, S_k, head_dim);
    int now = 0;
    for (int64_t start = 0; start < end; start += Q::KEYS) {
        __syncthreads();  // buffer `now` is full, and no thread reads the other one any longer
        if (start + Q::KEYS < end) Q::fetch(buffers[1 - now], key, value, start + Q::KEYS, S_k, head_dim);
        const float *k_tile = buffers[now], *v_tile = buffers[now] + Q::KEYS * D;
        float s[Q::KEYS], m_new = m;
#pragma unroll
        for (int j = 0; j < Q::KEYS; ++j) {
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < Q::OWN; ++i) sum = fmaf(q[i], k_tile[j * D + 4 * i + part], sum);
            s[j] = quad_sum(sum);
            if (start + j >= S_k || start + j > seen) s[j] = -INFINITY;
            m_new = fmaxf(m_new, s[j]);
        }
        const float shift = m_new == -INFINITY ? 0.0f : m_new, rescale = exp2f(m - shift);
        m = m_new;
        l *= rescale;
#pragma unroll
        for (int i = 0; i < Q::OWN; ++i) o[i] *= rescale;
#pragma unroll
        for (int j = 0; j < Q::KEYS; ++j) {
            const float p = exp2f(s[j] - shift);
            l += p;
#pragma unroll
            for (int i = 0; i < Q::OWN; ++i) o[i] = fmaf(p, v_tile[j * D + 4 * i + part], o[i]);
        }
        now = 1 - now;
    }
    const float factor = l > 0.0f ? 1.0f / l : 0.0f;
#pragma unroll
    for (int i = 0; i < Q::OWN; ++i) {
        if (row < S_q && 4 * i + part < head_dim) out[at + 4 * i + part] = o[i] * factor;
    }
}

template <int D>
static void launch_quads(const float* query, const float* key, const float* value, float* out, int64_t batch_heads,
                         int64_t S_q, int64_t S_k, int head_dim, float scale, bool causal, int64_t diagonal,
                         cudaStream_t stream) {
    const unsigned blocks = grid_blocks(batch_heads * ceil_div(S_q, int64_t{Quads<D>::ROWS}), "query");
    attention_by_quads<D><<<blocks, Quads<D>::THREADS_IN_BLOCK, 0, stream>>>(query, key, value, out, S_q, S_k, head_dim,
                                                                            scale * LOG2_E, causal, diagonal);
    CUDA_CHECK_LAUNCH();
}

void custom_flash_attention(const float* query, const float* key, const float* value, float* out, int64_t batch_heads,
                            int64_t S_q, int64_t S_k, int head_dim, float scale, bool causal, int64_t diagonal,
                            cudaStream_t stream) {
    if (head_dim <= 64) {
        launch_quads<64>(query, key, value, out, batch_heads, S_q, S_k, head_dim, scale, causal, diagonal, stream);
    } else {
        launch_quads<128>(query, key, value, out, batch_heads, S_q, S_k, head_dim, scale, causal, diagonal, stream);
    }
}
