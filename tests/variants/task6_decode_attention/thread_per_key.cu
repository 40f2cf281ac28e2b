// Each thread finds the score of one key of 128 by itself, weights go through shared memory, and then each thread
// has a column of the output: two ways of sharing out the same chunk, with barriers between them.
#include "common/cuda/check.h"
#include "common/cuda/warp.cuh"
#include "task6/given/decode_attention.h"

constexpr int CHUNK = 128;  // threads and keys

__global__ void __launch_bounds__(CHUNK)
    decode_by_keys(const float* query, const float* k_cache, const float* v_cache, const int* lengths, float* out,
                   int64_t heads, int64_t kv_heads, int64_t max_seq_len, int head_dim, float scale) {
    __shared__ float q[MAX_HEAD_DIM], p[CHUNK], of_warp[CHUNK / 32];
    const int t = threadIdx.x;
    const int64_t row = blockIdx.x, sequence = row / heads, kv_head = row % heads * kv_heads / heads;
    const float* k = k_cache + (sequence * kv_heads + kv_head) * max_seq_len * head_dim;
    const float* v = v_cache + (sequence * kv_heads + kv_head) * max_seq_len * head_dim;
    const int64_t length = min(max_seq_len, int64_t{max(lengths[sequence], 0)});
    if (t < head_dim) q[t] = query[row * head_dim + t] * scale;
    __syncthreads();

    float m = -INFINITY, l = 0.0f, o = 0.0f;  // m and l: the same in all threads
    for (int64_t first = 0; first < length; first += CHUNK) {
        float s = -INFINITY;
        if (first + t < length) {
            s = 0.0f;
            for (int d = 0; d < head_dim; ++d) s += q[d] * k[(first + t) * head_dim + d];
        }
        const float largest = warp_max(s);
        if (t % 32 == 0) of_warp[t / 32] = largest;
        __syncthreads();
        float m_new = m;
        for (float one : of_warp) m_new = fmaxf(m_new, one);
        const float shift = m_new == -INFINITY ? 0.0f : m_new, rescale = expf(m - shift);
        m = m_new;
        p[t] = expf(s - shift);
        __syncthreads();
        const int count = length - first < CHUNK ? static_cast<int>(length - first) : CHUNK;
        l *= rescale;
        o *= rescale;
        for (int j = 0; j < count; ++j) {
            l += p[j];
            if (t < head_dim) o += p[j] * v[(first + j) * head_dim + t];
        }
        __syncthreads();
    }
    if (t < head_dim) out[row * head_dim + t] = l == 0.0f ? 0.0f : o / l;
}

void decode_attention(const float* query, const float* k_cache, const float* v_cache, const int* lengths, float* out,
                      int64_t batch, int64_t heads, int64_t kv_heads, int64_t max_seq_len, int head_dim, float scale,
                      cudaStream_t stream) {
    decode_by_keys<<<grid_blocks(batch * heads, "decode_attention"), CHUNK, 0, stream>>>(
        query, k_cache, v_cache, lengths, out, heads, kv_heads, max_seq_len, head_dim, scale);
    CUDA_CHECK_LAUNCH();
}
