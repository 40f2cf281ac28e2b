// Blocks of 16 x 16 threads, one score each. Scores, maxima, sums and the output's rows live in shared memory,
// whose size follows from head_dim at the launch; nothing is a template, no lane talks to another.
#include "common/cuda/check.h"
#include "task4/given/flash_attention.h"

constexpr int B = 16;

__global__ void attention_in_shared(const float* query, const float* key, const float* value, float* out, int64_t S_q,
                                    int64_t S_k, int d, float scale, bool causal, int64_t diagonal) {
    extern __shared__ float memory[];
    float* Q = memory;                 // [B][d + 1]
    float* K = Q + B * (d + 1);        // [B][d + 1]
    float* V = K + B * (d + 1);        // [B][d]
    float* O = V + B * d;              // [B][d]
    float* P = O + B * d;              // [B][B + 1]
    float* m = P + B * (B + 1);        // [B]
    float* l = m + B;                  // [B]
    float* rescale = l + B;            // [B]
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int64_t tiles = ceil_div(S_q, int64_t{B}), head = blockIdx.x / tiles, q0 = blockIdx.x % tiles * B;
    const int64_t row = q0 + ty;

    for (int c = tx; c < d; c += B) {
        Q[ty * (d + 1) + c] = row < S_q ? query[(head * S_q + row) * d + c] : 0.0f;
        O[ty * d + c] = 0.0f;
    }
    if (tx == 0) {
        m[ty] = -INFINITY;
        l[ty] = 0.0f;
    }
    for (int64_t k0 = 0; k0 < S_k; k0 += B) {
        if (causal && k0 > q0 + B - 1 + diagonal) break;
        __syncthreads();  // the tiles of the step before have been read
        for (int c = tx; c < d; c += B) {
            const bool exists = k0 + ty < S_k;
            K[ty * (d + 1) + c] = exists ? key[(head * S_k + k0 + ty) * d + c] : 0.0f;
            V[ty * d + c] = exists ? value[(head * S_k + k0 + ty) * d + c] : 0.0f;
        }
        __syncthreads();
        float s = 0.0f;
        for (int c = 0; c < d; ++c) s += Q[ty * (d + 1) + c] * K[tx * (d + 1) + c];
        const bool sees = k0 + tx < S_k && (!causal || k0 + tx <= row + diagonal);
        P[ty * (B + 1) + tx] = sees ? s * scale : -INFINITY;
        __syncthreads();
        if (tx == 0) {
            float m_new = m[ty];
            for (int j = 0; j < B; ++j) m_new = fmaxf(m_new, P[ty * (B + 1) + j]);
            const float shift = m_new == -INFINITY ? 0.0f : m_new;
            rescale[ty] = expf(m[ty] - shift);
            l[ty] *= rescale[ty];
            for (int j = 0; j < B; ++j) {
                const float p = expf(P[ty * (B + 1) + j] - shift);
                P[ty * (B + 1) + j] = p;
                l[ty] += p;
            }
            m[ty] = m_new;
        }
        __syncthreads();
        for (int c = tx; c < d; c += B) {
            float o = O[ty * d + c] * rescale[ty];
            for (int j = 0; j < B; ++j) o += P[ty * (B + 1) + j] * V[j * d + c];
            O[ty * d + c] = o;
        }
    }
    __syncthreads();
    for (int c = tx; c < d && row < S_q; c += B) {
        out[(head * S_q + row) * d + c] = l[ty] > 0.0f ? O[ty * d + c] / l[ty] : 0.0f;
    }
}

void custom_flash_attention(const float* query, const float* key, const float* value, float* out, int64_t batch_heads,
                            int64_t S_q, int64_t S_k, int head_dim, float scale, bool causal, int64_t diagonal,
                            cudaStream_t stream) {
    const unsigned blocks = grid_blocks(batch_heads * ceil_div(S_q, int64_t{B}), "query");
    const size_t bytes = (2 * B * (head_dim + 1) + 2 * B * head_dim + B * (B + 1) + 3 * B) * sizeof(float);
    attention_in_shared<<<blocks, dim3(B, B), bytes, stream>>>(query, key, value, out, S_q, S_k, head_dim, scale,
                                                               causal, diagonal);
    CUDA_CHECK_LAUNCH();
}
