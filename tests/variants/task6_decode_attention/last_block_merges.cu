// The keys of a head are split among four blocks, which leave their parts in memory that the launcher allocates;
// whichever of them is the last to be done (an atomic counter tells, after a __threadfence) merges them.
#include "common/cuda/check.h"
#include "common/cuda/warp.cuh"
#include "task6/given/decode_attention.h"

constexpr int BLOCKS_PER_HEAD = 4, NT = 128;

struct Part {
    float m, l, o[MAX_HEAD_DIM];
};

__global__ void __launch_bounds__(NT)
    decode_parts(const float* query, const float* k_cache, const float* v_cache, const int* lengths, float* out,
                 Part* parts, unsigned* done, int64_t heads, int64_t kv_heads, int64_t max_seq_len, int head_dim,
                 float scale) {
    __shared__ float q[MAX_HEAD_DIM], scores[NT], reduced[NT / 32];
    __shared__ bool last;
    const int t = threadIdx.x;
    const int64_t row = blockIdx.x / BLOCKS_PER_HEAD, number = blockIdx.x % BLOCKS_PER_HEAD;
    const int64_t sequence = row / heads, kv_head = row % heads / (heads / kv_heads);
    const int64_t cache = (sequence * kv_heads + kv_head) * max_seq_len * head_dim;
    int64_t length = lengths[sequence] < max_seq_len ? lengths[sequence] : max_seq_len;
    if (length < 0) length = 0;
    if (t < head_dim) q[t] = query[row * head_dim + t] * scale;
    float m = -INFINITY, l = 0.0f, o = 0.0f;
    for (int64_t first = number * NT; first < length; first += BLOCKS_PER_HEAD * NT) {
        const int count = length - first < NT ? static_cast<int>(length - first) : NT;
        __syncthreads();
        float s = -INFINITY;
        if (t < count) {
            s = 0.0f;
            for (int d = 0; d < head_dim; ++d) s += q[d] * k_cache[cache + (first + t) * head_dim + d];
        }
        const float largest = warp_max(s);
        if (t % 32 == 0) reduced[t / 32] = largest;
        __syncthreads();
        float m_new = m;
        for (int w = 0; w < NT / 32; ++w) m_new = fmaxf(m_new, reduced[w]);
        const float shift = m_new == -INFINITY ? 0.0f : m_new;
        scores[t] = expf(s - shift);
        __syncthreads();
        const float rescale = expf(m - shift);
        m = m_new;
        l *= rescale;
        o *= rescale;
        for (int j = 0; j < count; ++j) {
            l += scores[j];
            if (t < head_dim) o += scores[j] * v_cache[cache + (first + j) * head_dim + t];
        }
    }
    Part& mine = parts[blockIdx.x];
    if (t < head_dim) mine.o[t] = o;
    if (t == 0) {
        mine.m = m;
        mine.l = l;
    }
    __threadfence();  // what this thread wrote is visible before the counter says so
    __syncthreads();
    if (t == 0) last = atomicAdd(&done[row], 1) == BLOCKS_PER_HEAD - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    const Part* all = parts + row * BLOCKS_PER_HEAD;
    float m_all = -INFINITY, l_all = 0.0f, o_all = 0.0f;
    for (int p = 0; p < BLOCKS_PER_HEAD; ++p) m_all = fmaxf(m_all, all[p].m);
    for (int p = 0; p < BLOCKS_PER_HEAD && t < head_dim; ++p) {
        if (all[p].m == -INFINITY) continue;
        l_all += all[p].l * expf(all[p].m - m_all);
        o_all += all[p].o[t] * expf(all[p].m - m_all);
    }
    if (t < head_dim) out[row * head_dim + t] = l_all > 0.0f ? o_all / l_all : 0.0f;
}

void decode_attention(const float* query, const float* k_cache, const float* v_cache, const int* lengths, float* out,
                      int64_t batch, int64_t heads, int64_t kv_heads, int64_t max_seq_len, int head_dim, float scale,
                      cudaStream_t stream) {
    const int64_t rows = batch * heads;
    Part* parts = nullptr;
    unsigned* done = nullptr;
    CUDA_CHECK(cudaMallocAsync(&parts, sizeof(Part) * rows * BLOCKS_PER_HEAD, stream));
    CUDA_CHECK(cudaMallocAsync(&done, sizeof(unsigned) * rows, stream));
    CUDA_CHECK(cudaMemsetAsync(done, 0, sizeof(unsigned) * rows, stream));
    decode_parts<<<grid_blocks(rows * BLOCKS_PER_HEAD, "decode_attention"), NT, 0, stream>>>(
        query, k_cache, v_cache, lengths, out, parts, done, heads, kv_heads, max_seq_len, head_dim, scale);
    CUDA_CHECK_LAUNCH();
    CUDA_CHECK(cudaFreeAsync(parts, stream));
    CUDA_CHECK(cudaFreeAsync(done, stream));
}
