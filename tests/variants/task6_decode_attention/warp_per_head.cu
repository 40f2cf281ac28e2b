// One warp does all keys of a query head, one after the other, and writes its output itself: no shared memory and
// nothing to merge. Eight warps per block, which stride over the heads of all sequences.
#include "common/cuda/check.h"
#include "common/cuda/warp.cuh"
#include "task6/given/decode_attention.h"

template <int COLS>
__device__ void decode_head(const float* q_row, const float* k, const float* v, int64_t length, float* out_row,
                            int head_dim, float scale) {
    const int lane = threadIdx.x;
    float q[COLS], o[COLS], m = -INFINITY, l = 0.0f;
#pragma unroll
    for (int c = 0; c < COLS; ++c) {
        q[c] = lane + 32 * c < head_dim ? q_row[lane + 32 * c] : 0.0f;
        o[c] = 0.0f;
    }
    for (int64_t j = 0; j < length; ++j, k += head_dim, v += head_dim) {
        float s = 0.0f;
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
            if (lane + 32 * c < head_dim) s += q[c] * k[lane + 32 * c];
        }
        s = scale * warp_sum(s);
        if (s == -INFINITY) continue;
        float p = 1.0f;
        if (s > m) {  // the new key is the largest so far: its weight is 1, everything before shrinks
            const float rescale = expf(m - s);
            m = s;
            l *= rescale;
#pragma unroll
            for (int c = 0; c < COLS; ++c) o[c] *= rescale;
        } else {
            p = expf(s - m);
        }
        l += p;
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
            if (lane + 32 * c < head_dim) o[c] += p * v[lane + 32 * c];
        }
    }
#pragma unroll
    for (int c = 0; c < COLS; ++c) {
        if (lane + 32 * c < head_dim) out_row[lane + 32 * c] = l > 0.0f ? o[c] / l : 0.0f;
    }
}

__global__ void decode_by_warps(const float* query, const float* k_cache, const float* v_cache, const int* lengths,
                                float* out, int64_t rows, int64_t heads, int64_t kv_heads, int64_t max_seq_len,
                                int head_dim, float scale) {
    const int64_t group = heads / kv_heads;
    for (int64_t row = blockIdx.x * int64_t{8} + threadIdx.y; row < rows; row += gridDim.x * int64_t{8}) {
        const int64_t sequence = row / heads, cache_head = row / group;  // of all sequences
        int64_t length = lengths[sequence];
        length = length < 0 ? 0 : length > max_seq_len ? max_seq_len : length;
        const float* k = k_cache + cache_head * max_seq_len * head_dim;
        const float* v = v_cache + cache_head * max_seq_len * head_dim;
        if (head_dim <= 32) {
            decode_head<1>(query + row * head_dim, k, v, length, out + row * head_dim, head_dim, scale);
        } else {
            decode_head<4>(query + row * head_dim, k, v, length, out + row * head_dim, head_dim, scale);
        }
    }
}

void decode_attention(const float* query, const float* k_cache, const float* v_cache, const int* lengths, float* out,
                      int64_t batch, int64_t heads, int64_t kv_heads, int64_t max_seq_len, int head_dim, float scale,
                      cudaStream_t stream) {
    const int64_t rows = batch * heads, blocks = rows / 8 + (rows % 8 != 0);
    decode_by_warps<<<static_cast<unsigned>(blocks < 10'000 ? blocks : 10'000), dim3(32, 8), 0, stream>>>(
        query, k_cache, v_cache, lengths, out, rows, heads, kv_heads, max_seq_len, head_dim, scale);
    CUDA_CHECK_LAUNCH();
}
