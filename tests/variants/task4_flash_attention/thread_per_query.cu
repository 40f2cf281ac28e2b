// One thread per query, with its row of Q and of the output in registers and the scores of a tile of 16 keys in an
// array; only K and V go through shared memory, where all threads read the same row at a time.
#include "common/cuda/check.h"
#include "task4/given/flash_attention.h"

constexpr int BLOCK_ROWS = 64, TILE_KEYS = 16;

template <int D>
__global__ void __launch_bounds__(BLOCK_ROWS)
    attention_by_threads(const float* __restrict__ query, const float* __restrict__ key,
                         const float* __restrict__ value, float* __restrict__ out, int64_t S_q, int64_t S_k,
                         int head_dim, float scale, int64_t first_hidden) {
    __shared__ float k_tile[TILE_KEYS][D], v_tile[TILE_KEYS][D];
    const int64_t blocks_per_head = (S_q + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const int64_t head = blockIdx.x / blocks_per_head;
    const int64_t i = blockIdx.x % blocks_per_head * BLOCK_ROWS + threadIdx.x;
    const bool exists = i < S_q;

    float q[D], o[D], m = -INFINITY, l = 0.0f;
#pragma unroll
    for (int d = 0; d < D; ++d) {
        q[d] = exists && d < head_dim ? query[(head * S_q + i) * head_dim + d] * scale : 0.0f;
        o[d] = 0.0f;
    }
    // query i sees the keys j < first_hidden + i
    const int64_t block_end = min(S_k, blockIdx.x % blocks_per_head * BLOCK_ROWS + BLOCK_ROWS - 1 + first_hidden);
    for (int64_t start = 0; start < block_end; start += TILE_KEYS) {
        for (int n = threadIdx.x; n < TILE_KEYS * D; n += BLOCK_ROWS) {
            const int r = n / D, d = n % D;
            const bool inside = start + r < S_k && d < head_dim;
            k_tile[r][d] = inside ? key[(head * S_k + start + r) * head_dim + d] : 0.0f;
            v_tile[r][d] = inside ? value[(head * S_k + start + r) * head_dim + d] : 0.0f;
        }
        __syncthreads();
        float s[TILE_KEYS], largest = m;
        for (int j = 0; j < TILE_KEYS; ++j) {
            float dot = 0.0f;
#pragma unroll
            for (int d = 0; d < D; ++d) dot += q[d] * k_tile[j][d];
            s[j] = start + j < S_k && start + j < first_hidden + i ? dot : -INFINITY;
            largest = fmaxf(largest, s[j]);
        }
        if (largest > -INFINITY) {
            const float rescale = __expf(m - largest);
            m = largest;
            l *= rescale;
#pragma unroll
            for (int d = 0; d < D; ++d) o[d] *= rescale;
            for (int j = 0; j < TILE_KEYS; ++j) {
                const float p = __expf(s[j] - m);
                l += p;
#pragma unroll
                for (int d = 0; d < D; ++d) o[d] += p * v_tile[j][d];
            }
        }
        __syncthreads();
    }
    if (!exists) return;
#pragma unroll
    for (int d = 0; d < D; ++d) {
        if (d < head_dim) out[(head * S_q + i) * head_dim + d] = l == 0.0f ? 0.0f : o[d] / l;
    }
}

void custom_flash_attention(const float* query, const float* key, const float* value, float* out, int64_t batch_heads,
                            int64_t S_q, int64_t S_k, int head_dim, float scale, bool causal, int64_t diagonal,
                            cudaStream_t stream) {
    const auto kernel = head_dim <= 32 ? attention_by_threads<32> : attention_by_threads<128>;
    const unsigned blocks = grid_blocks(batch_heads * ceil_div(S_q, int64_t{BLOCK_ROWS}), "query");
    kernel<<<blocks, BLOCK_ROWS, 0, stream>>>(query, key, value, out, S_q, S_k, head_dim, scale,
                                              causal ? diagonal + 1 : S_k);
    CUDA_CHECK_LAUNCH();
}
