// Block-sparse attention with as many threads as the mask's blocks have rows, one query each, and 16 keys at a time
// in shared memory. The lists come from a prefix sum over the block in shared memory, 64 columns at a time.
#include "common/cuda/check.h"
#include "task5/given/sparse_attention.h"

constexpr int SCAN = 64, TILE = 16;

__global__ void list_by_scan(const bool* mask, int* counts, int* columns, int64_t rows, int k_blocks) {
    __shared__ int sums[SCAN];
    const int t = threadIdx.x;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        int before = 0;
        for (int start = 0; start < k_blocks; start += SCAN) {
            const bool mine = start + t < k_blocks && mask[row * k_blocks + start + t];
            sums[t] = mine;
            __syncthreads();
            for (int distance = 1; distance < SCAN; distance *= 2) {
                const int other = t >= distance ? sums[t - distance] : 0;
                __syncthreads();
                sums[t] += other;
                __syncthreads();
            }
            if (mine) columns[row * k_blocks + before + sums[t] - 1] = start + t;
            before += sums[SCAN - 1];
            __syncthreads();
        }
        for (int n = before + t; n < k_blocks; n += SCAN) columns[row * k_blocks + n] = -1;
        if (t == 0) counts[row] = before;
    }
}

template <int D>
__global__ void __launch_bounds__(128)
    block_sparse_by_threads(const float* query, const float* key, const float* value, float* out, const int* counts,
                            const int* columns, int heads, int64_t S_q, int64_t S_k, int head_dim, bool causal,
                            float scale) {
    __shared__ __align__(16) float k_tile[TILE][D], v_tile[TILE][D];
    const int block = blockDim.x;
    const int64_t q_blocks = S_q / block, k_blocks = S_k / block;
    const int64_t head = blockIdx.x / q_blocks, q_block = blockIdx.x % q_blocks;
    const int64_t i = q_block * block + threadIdx.x, at = (head * S_q + i) * head_dim;
    const int64_t list = head % heads * q_blocks + q_block;
    float q[D], o[D], m = -INFINITY, l = 0.0f;
#pragma unroll
    for (int d = 0; d < D; ++d) {
        q[d] = d < head_dim ? query[at + d] : 0.0f;
        o[d] = 0.0f;
    }
    const int count = counts[list];
    for (int n = 0; n < count && n < k_blocks; ++n) {
        const int column = columns[list * k_blocks + n];
        if (column < 0 || column >= k_blocks) continue;
        if (causal && column > q_block) break;  // the list ascends
        for (int tile = 0; tile < block; tile += TILE) {
            const int64_t first = int64_t{column} * block + tile;
            __syncthreads();
            for (int e = threadIdx.x; e < TILE * D; e += block) {
                const int d = e % D;
                const int64_t from = (head * S_k + first + e / D) * head_dim + d;
                k_tile[e / D][d] = d < head_dim ? key[from] : 0.0f;
                v_tile[e / D][d] = d < head_dim ? value[from] : 0.0f;
            }
            __syncthreads();
            for (int j = 0; j < TILE; ++j) {
                if (causal && first + j > i) break;
                float s = 0.0f;
#pragma unroll
                for (int d = 0; d < D; d += 4) {
                    const float4 k4 = *reinterpret_cast<const float4*>(&k_tile[j][d]);
                    s += q[d] * k4.x + q[d + 1] * k4.y + q[d + 2] * k4.z + q[d + 3] * k4.w;
                }
                s *= scale;
                const float m_new = fmaxf(m, s);
                if (m_new == -INFINITY) continue;
                const float factor = expf(m - m_new), p = expf(s - m_new);
                m = m_new;
                l = l * factor + p;
#pragma unroll
                for (int d = 0; d < D; ++d) o[d] = o[d] * factor + p * v_tile[j][d];
            }
        }
    }
    const float inverse = l > 0.0f ? 1.0f / l : 0.0f;
#pragma unroll
    for (int d = 0; d < D; ++d) {
        if (d < head_dim) out[at + d] = o[d] * inverse;
    }
}

void custom_compress_block_mask(const bool* mask, int* counts, int* columns, int64_t rows, int k_blocks,
                                cudaStream_t stream) {
    list_by_scan<<<static_cast<unsigned>(rows < 65535 ? rows : 65535), SCAN, 0, stream>>>(mask, counts, columns, rows,
                                                                                         k_blocks);
    CUDA_CHECK_LAUNCH();
}

void custom_block_sparse_attention(const float* query, const float* key, const float* value, float* out,
                                   const int* counts, const int* columns, int64_t batch_heads, int heads,
                                   int64_t S_q, int64_t S_k, int head_dim, int block, bool causal, float scale,
                                   cudaStream_t stream) {
    const auto kernel = head_dim <= 64 ? block_sparse_by_threads<64> : block_sparse_by_threads<128>;
    const unsigned blocks = grid_blocks(batch_heads * (S_q / block), "query");
    kernel<<<blocks, block, 0, stream>>>(query, key, value, out, counts, columns, heads, S_q, S_k, head_dim, causal,
                                         scale);
    CUDA_CHECK_LAUNCH();
}
