// Block-sparse attention that walks a list from its end, with 16 queries per block of 128 threads, scores and
// weights in shared memory and two sweeps per tile; each entry of a list finds its place by counting the true ones
// before it.
#include "common/cuda/check.h"
#include "task5/given/sparse_attention.h"

constexpr int Q_ROWS = 16, KEYS = 32, ALL = 128;

__global__ void list_by_counting(const bool* mask, int* counts, int* columns, int64_t entries, int k_blocks) {
    const int64_t stride = int64_t{gridDim.x} * blockDim.x;
    for (int64_t e = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; e < entries; e += stride) {
        const int column = static_cast<int>(e % k_blocks);
        const bool* row = mask + (e - column);
        int before = 0, total = 0;
        for (int c = 0; c < k_blocks; ++c) {
            before += c < column && row[c];
            total += row[c];
        }
        // the true ones come first, the false ones fill the end with -1
        if (row[column]) {
            columns[e - column + before] = column;
        } else {
            columns[e - column + total + (column - before)] = -1;
        }
        if (column == 0) counts[e / k_blocks] = total;
    }
}

__global__ void __launch_bounds__(ALL)
    block_sparse_backwards(const float* query, const float* key, const float* value, float* out, const int* counts,
                           const int* columns, int heads, int64_t S_q, int64_t S_k, int head_dim, int block,
                           bool causal, float scale) {
    __shared__ float p[Q_ROWS][KEYS + 1], m[Q_ROWS], l[Q_ROWS], factor[Q_ROWS];
    const int t = threadIdx.x;  // a column of the output
    const int64_t per_head = S_q / Q_ROWS, head = blockIdx.x / per_head, i0 = blockIdx.x % per_head * Q_ROWS;
    const int64_t k_blocks = S_k / block, list = head % heads * (S_q / block) + i0 / block;
    query += (head * S_q + i0) * head_dim;
    key += head * S_k * head_dim;
    value += head * S_k * head_dim;
    float o[Q_ROWS] = {};
    if (t < Q_ROWS) {
        m[t] = -INFINITY;
        l[t] = 0.0f;
    }
    int n = counts[list];
    if (n > k_blocks) n = static_cast<int>(k_blocks);
    while (--n >= 0) {
        const int64_t column = columns[list * k_blocks + n];
        if (column < 0 || column >= k_blocks) continue;
        for (int64_t first = (column + 1) * block - KEYS; first >= column * block; first -= KEYS) {
            if (causal && first >= i0 + Q_ROWS) continue;
            __syncthreads();
            for (int e = t; e < Q_ROWS * KEYS; e += ALL) {
                const int r = e / KEYS, j = e % KEYS;
                float s = 0.0f;
                for (int d = 0; d < head_dim; ++d) s += query[r * head_dim + d] * key[(first + j) * head_dim + d];
                p[r][j] = causal && first + j > i0 + r ? -INFINITY : s * scale;
            }
            __syncthreads();
            if (t < Q_ROWS) {
                const float before = m[t];
                float largest = before;
                for (int j = 0; j < KEYS; ++j) largest = fmaxf(largest, p[t][j]);
                const float shift = largest == -INFINITY ? 0.0f : largest;
                factor[t] = expf(before - shift);
                float sum = 0.0f;
                for (int j = 0; j < KEYS; ++j) sum += p[t][j] = expf(p[t][j] - shift);
                l[t] = l[t] * factor[t] + sum;
                m[t] = largest;
            }
            __syncthreads();
            if (t < head_dim) {
                for (int r = 0; r < Q_ROWS; ++r) o[r] *= factor[r];
                for (int j = 0; j < KEYS; ++j) {
                    const float v = value[(first + j) * head_dim + t];
#pragma unroll
                    for (int r = 0; r < Q_ROWS; ++r) o[r] += p[r][j] * v;
                }
            }
        }
    }
    __syncthreads();
    for (int r = 0; r < Q_ROWS && t < head_dim; ++r) {
        out[(head * S_q + i0 + r) * head_dim + t] = l[r] == 0.0f ? 0.0f : o[r] / l[r];
    }
}

void custom_compress_block_mask(const bool* mask, int* counts, int* columns, int64_t rows, int k_blocks,
                                cudaStream_t stream) {
    const int64_t blocks = ceil_div(rows * k_blocks, int64_t{256});
    list_by_counting<<<static_cast<unsigned>(blocks < 65536 ? blocks : 65536), 256, 0, stream>>>(
        mask, counts, columns, rows * k_blocks, k_blocks);
    CUDA_CHECK_LAUNCH();
}

void custom_block_sparse_attention(const float* query, const float* key, const float* value, float* out,
                                   const int* counts, const int* columns, int64_t batch_heads, int heads,
                                   int64_t S_q, int64_t S_k, int head_dim, int block, bool causal, float scale,
                                   cudaStream_t stream) {
    const unsigned blocks = grid_blocks(batch_heads * (S_q / Q_ROWS), "query");
    block_sparse_backwards<<<blocks, ALL, 0, stream>>>(query, key, value, out, counts, columns, heads, S_q, S_k,
                                                       head_dim, block, causal, scale);
    CUDA_CHECK_LAUNCH();
}
