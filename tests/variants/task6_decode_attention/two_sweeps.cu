// Maximum and sum of all scores first, by a tree in shared memory; then the weights, which are final, times the
// values: the scores are computed twice and nothing is rescaled. 256 threads; in the second sweep each warp has
// keys of its own.
#include "common/cuda/check.h"
#include "task6/given/decode_attention.h"

constexpr int NT = 256, NW = NT / 32;

__device__ float dot(const float* a, const float* b, int n) {
    float even = 0.0f, odd = 0.0f;
    int i = 0;
    for (; i + 1 < n; i += 2) {
        even += a[i] * b[i];
        odd += a[i + 1] * b[i + 1];
    }
    if (i < n) even += a[i] * b[i];
    return even + odd;
}

template <typename Combine>
__device__ float tree_over_block(float* buffer, float value, Combine combine) {
    __syncthreads();
    buffer[threadIdx.x] = value;
    __syncthreads();
    for (int n = NT / 2; n > 0; n >>= 1) {
        if (threadIdx.x < n) buffer[threadIdx.x] = combine(buffer[threadIdx.x], buffer[threadIdx.x + n]);
        __syncthreads();
    }
    return buffer[0];
}

__global__ void __launch_bounds__(NT)
    decode_twice(const float* query, const float* k_cache, const float* v_cache, const int* lengths, float* out,
                 int64_t heads, int64_t kv_heads, int64_t max_seq_len, int head_dim, float scale) {
    __shared__ float q[MAX_HEAD_DIM], buffer[NT], sums[NW][MAX_HEAD_DIM];
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    const int64_t sequence = blockIdx.x / heads, head = blockIdx.x % heads, kv_head = head / (heads / kv_heads);
    const int64_t cache = (sequence * kv_heads + kv_head) * max_seq_len * head_dim;
    const float *k = k_cache + cache, *v = v_cache + cache;
    const int64_t given = lengths[sequence];
    const int64_t length = given < 0 ? 0 : (given < max_seq_len ? given : max_seq_len);
    for (int d = t; d < head_dim; d += NT) q[d] = query[blockIdx.x * int64_t{head_dim} + d];
    for (int d = lane; d < head_dim; d += 32) sums[warp][d] = 0.0f;
    __syncthreads();

    float m = -INFINITY, l = 0.0f;
    for (int64_t j = t; j < length; j += NT) m = fmaxf(m, scale * dot(q, k + j * head_dim, head_dim));
    m = tree_over_block(buffer, m, [](float a, float b) { return a > b ? a : b; });
    if (m == -INFINITY) m = 0.0f;
    for (int64_t j = t; j < length; j += NT) l += expf(scale * dot(q, k + j * head_dim, head_dim) - m);
    l = tree_over_block(buffer, l, [](float a, float b) { return a + b; });

    for (int64_t first = 32 * warp; first < length; first += NT) {
        const bool mine = first + lane < length;
        const bool some = mine && l > 0.0f;
        const float p = some ? expf(scale * dot(q, k + (first + lane) * head_dim, head_dim) - m) / l : 0.0f;
        for (int i = 0; i < 32 && first + i < length; ++i) {
            const float weight = __shfl_sync(0xffffffff, p, i);
            if (weight == 0.0f) continue;
            for (int d = lane; d < head_dim; d += 32) sums[warp][d] += weight * v[(first + i) * head_dim + d];
        }
    }
    __syncthreads();
    if (t >= head_dim) return;
    float sum = 0.0f;
    for (int w = 0; w < NW; ++w) sum += sums[w][t];
    out[blockIdx.x * int64_t{head_dim} + t] = sum;
}

void decode_attention(const float* query, const float* k_cache, const float* v_cache, const int* lengths, float* out,
                      int64_t batch, int64_t heads, int64_t kv_heads, int64_t max_seq_len, int head_dim, float scale,
                      cudaStream_t stream) {
    decode_twice<<<static_cast<unsigned>(batch * heads), NT, 0, stream>>>(query, k_cache, v_cache, lengths, out, heads,
                                                                          kv_heads, max_seq_len, head_dim, scale);
    CUDA_CHECK_LAUNCH();
}
