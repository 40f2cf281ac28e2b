// One block per K/V head: a tile of its keys and values goes through shared memory once and serves all the query
// heads of the group, each of which is a warp's (more heads than warps: several rounds).
#include "common/cuda/check.h"
#include "common/cuda/warp.cuh"
#include "task6/given/decode_attention.h"

constexpr int WARPS_IN_BLOCK = 4, TILE_KEYS = 32;

__global__ void __launch_bounds__(32 * WARPS_IN_BLOCK)
    decode_grouped(const float* __restrict__ query, const float* __restrict__ k_cache,
                   const float* __restrict__ v_cache, const int* __restrict__ lengths, float* __restrict__ out,
                   int64_t heads, int64_t kv_heads, int64_t max_seq_len, int head_dim, float scale) {
    __shared__ float k_tile[TILE_KEYS][MAX_HEAD_DIM / 2 + 1], q_rows[WARPS_IN_BLOCK][MAX_HEAD_DIM];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = static_cast<int>(heads / kv_heads);
    const int64_t cache_head = blockIdx.x, sequence = cache_head / kv_heads;
    const float* k = k_cache + cache_head * max_seq_len * head_dim;
    const float* v = v_cache + cache_head * max_seq_len * head_dim;
    const int length = static_cast<int>(max(int64_t{0}, min(int64_t{lengths[sequence]}, max_seq_len)));

    for (int first_head = 0; first_head < group; first_head += WARPS_IN_BLOCK) {
        const bool busy = first_head + warp < group;
        const int64_t row = cache_head * group + first_head + warp;
        if (busy) {
            for (int d = lane; d < head_dim; d += 32) q_rows[warp][d] = query[row * head_dim + d] * scale;
        }
        float m = -INFINITY, l = 0.0f, o[MAX_HEAD_DIM / 32] = {};
        for (int first = 0; first < length; first += TILE_KEYS) {
            const int count = min(TILE_KEYS, length - first);
            // half a row of K at a time
            float s = 0.0f;
            for (int d0 = 0; d0 < head_dim; d0 += MAX_HEAD_DIM / 2) {
                const int width = min(MAX_HEAD_DIM / 2, head_dim - d0);
                __syncthreads();
                for (int e = threadIdx.x; e < count * width; e += blockDim.x) {
                    k_tile[e / width][e % width] = k[int64_t{first + e / width} * head_dim + d0 + e % width];
                }
                __syncthreads();
                if (busy && lane < count) {
                    for (int d = 0; d < width; ++d) s += q_rows[warp][d0 + d] * k_tile[lane][d];
                }
            }
            if (!busy) continue;  // the whole warp, which is back at the next barrier
            if (lane >= count) s = -INFINITY;
            const float m_new = fmaxf(m, warp_max(s));
            const float shift = m_new > -INFINITY ? m_new : 0.0f;
            const float rescale = expf(m - shift), p = expf(s - shift);
            m = m_new;
            l = l * rescale + warp_sum(p);
            for (float& one : o) one *= rescale;
            for (int j = 0; j < count; ++j) {
                const float weight = __shfl_sync(FULL_WARP, p, j);
                for (int c = 0; c < MAX_HEAD_DIM / 32 && lane + 32 * c < head_dim; ++c) {
                    o[c] += weight * v[int64_t{first + j} * head_dim + lane + 32 * c];
                }
            }
        }
        for (int c = 0; c < MAX_HEAD_DIM / 32 && busy && lane + 32 * c < head_dim; ++c) {
            out[row * head_dim + lane + 32 * c] = l > 0.0f ? o[c] / l : 0.0f;
        }
        __syncthreads();
    }
}

void decode_attention(const float* query, const float* k_cache, const float* v_cache, const int* lengths, float* out,
                      int64_t batch, int64_t heads, int64_t kv_heads, int64_t max_seq_len, int head_dim, float scale,
                      cudaStream_t stream) {
    const unsigned blocks = grid_blocks(batch * kv_heads, "decode_attention");
    decode_grouped<<<blocks, 32 * WARPS_IN_BLOCK, 0, stream>>>(query, k_cache, v_cache, lengths, out, heads, kv_heads,
                                                              max_seq_len, head_dim, scale);
    CUDA_CHECK_LAUNCH();
}
