// Block-sparse attention with one warp per query, which walks along its row's list; the lists are made by one
// thread per row of the mask, a simple loop.
#include "common/cuda/check.h"
#include "common/cuda/warp.cuh"
#include "task5/given/sparse_attention.h"

__global__ void list_of_row(const bool* mask, int* counts, int* columns, int64_t rows, int k_blocks) {
    const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int count = 0;
    for (int c = 0; c < k_blocks; ++c) {
        if (mask[row * k_blocks + c]) columns[row * k_blocks + count++] = c;
    }
    counts[row] = count;
    while (count < k_blocks) columns[row * k_blocks + count++] = -1;
}

__global__ void __launch_bounds__(128)
    block_sparse_by_warps(const float* query, const float* key, const float* value, float* out, const int* counts,
                          const int* columns, int64_t rows, int heads, int64_t S_q, int64_t S_k, int head_dim,
                          int block, bool causal, float scale) {
    __shared__ float weights[4][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t row = int64_t{blockIdx.x} * 4 + warp;
    if (row >= rows) return;
    const int64_t i = row % S_q, batch_head = row / S_q, k_blocks = S_k / block;
    const int64_t list = batch_head % heads * (S_q / block) + i / block;
    const int64_t listed = counts[list] < k_blocks ? counts[list] : k_blocks;
    key += batch_head * S_k * head_dim;
    value += batch_head * S_k * head_dim;
    float m = -INFINITY, l = 0.0f, o[4] = {};
    for (int64_t n = 0; n < listed; ++n) {
        const int64_t number = columns[list * k_blocks + n];
        if (number < 0 || number >= k_blocks) continue;
        for (int64_t first = number * block; first < (number + 1) * block; first += 32) {
            if (causal && first > i) break;
            float s = -INFINITY;
            if (!causal || first + lane <= i) {
                s = 0.0f;
                for (int d = 0; d < head_dim; ++d) s += query[row * head_dim + d] * key[(first + lane) * head_dim + d];
                s *= scale;
            }
            const float m_new = fmaxf(m, warp_max(s));
            if (m_new == -INFINITY) continue;
            const float factor = __expf(m - m_new);
            weights[warp][lane] = __expf(s - m_new);
            l = l * factor + weights[warp][lane];
            m = m_new;
            __syncwarp();
            for (int c = 0; c < 4; ++c) {
                const int d = lane + 32 * c;
                if (d >= head_dim) break;
                float sum = o[c] * factor;
                for (int j = 0; j < 32; ++j) sum += weights[warp][j] * value[(first + j) * head_dim + d];
                o[c] = sum;
            }
            __syncwarp();
        }
    }
    l = warp_sum(l);
    for (int c = 0; c < 4; ++c) {
        if (lane + 32 * c < head_dim) out[row * head_dim + lane + 32 * c] = l > 0.0f ? o[c] / l : 0.0f;
    }
}

void custom_compress_block_mask(const bool* mask, int* counts, int* columns, int64_t rows, int k_blocks,
                                cudaStream_t stream) {
    const unsigned blocks = grid_blocks(ceil_div(rows, int64_t{128}), "block_mask", "heads");
    list_of_row<<<blocks, 128, 0, stream>>>(mask, counts, columns, rows, k_blocks);
    CUDA_CHECK_LAUNCH();
}

void custom_block_sparse_attention(const float* query, const float* key, const float* value, float* out,
                                   const int* counts, const int* columns, int64_t batch_heads, int heads,
                                   int64_t S_q, int64_t S_k, int head_dim, int block, bool causal, float scale,
                                   cudaStream_t stream) {
    const unsigned blocks = grid_blocks(ceil_div(batch_heads * S_q, int64_t{4}), "query");
    block_sparse_by_warps<<<blocks, 128, 0, stream>>>(query, key, value, out, counts, columns, batch_heads * S_q, heads,
                                                      S_q, S_k, head_dim, block, causal, scale);
    CUDA_CHECK_LAUNCH();
}
