// A block has one query, and its four warps split the keys, eight lanes to a key, by float4 where head_dim allows.
// Each group of lanes runs an online softmax of its own; all are merged at the end, by shuffles and through shared
// memory.
#include "common/cuda/check.h"
#include "task4/given/flash_attention.h"

constexpr int W = 4;                      // warps
constexpr int PIECES = MAX_HEAD_DIM / 32;  // float4s per lane

// Piece i of a row: the columns 32 i + 4 part ...
template <bool ALIGNED>
__device__ float4 piece(const float* row, int i, int part, int head_dim) {
    const int d = 32 * i + 4 * part;
    if (d >= head_dim) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if constexpr (ALIGNED) return *reinterpret_cast<const float4*>(row + d);
    return make_float4(row[d], d + 1 < head_dim ? row[d + 1] : 0.0f, d + 2 < head_dim ? row[d + 2] : 0.0f,
                       d + 3 < head_dim ? row[d + 3] : 0.0f);
}

struct Partial {
    float m, l;
    float4 o[PIECES];

    __device__ void scale_to(float m_new) {
        const float factor = m == -INFINITY ? 0.0f : expf(m - m_new);
        m = m_new;
        l *= factor;
        for (int i = 0; i < PIECES; ++i) {
            o[i] = make_float4(o[i].x * factor, o[i].y * factor, o[i].z * factor, o[i].w * factor);
        }
    }
};

template <bool ALIGNED>
__global__ void __launch_bounds__(32 * W)
    attention_split(const float* query, const float* key, const float* value, float* out, int64_t S_q, int64_t S_k,
                    int head_dim, float scale, bool causal, int64_t diagonal) {
    __shared__ float m_of[W], l_of[W], o_of[W][MAX_HEAD_DIM];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 8, part = lane % 8;
    const int64_t row = blockIdx.x, head = row / S_q;
    const int64_t end = causal && row % S_q + diagonal < S_k ? row % S_q + diagonal + 1 : S_k;

    float4 q[PIECES];
    Partial mine = {-INFINITY, 0.0f, {}};
    for (int i = 0; i < PIECES; ++i) q[i] = piece<ALIGNED>(query + row * head_dim, i, part, head_dim);
    for (int64_t start = 4 * warp; start < end; start += 4 * W) {
        const bool exists = start + group < end;
        const int64_t at = (head * S_k + start + (exists ? group : 0)) * head_dim;
        float s = 0.0f;
        for (int i = 0; i < PIECES; ++i) {
            const float4 k = piece<ALIGNED>(key + at, i, part, head_dim);
            s += q[i].x * k.x + q[i].y * k.y + q[i].z * k.z + q[i].w * k.w;
        }
        s += __shfl_xor_sync(0xffffffff, s, 1);
        s += __shfl_xor_sync(0xffffffff, s, 2);
        s += __shfl_xor_sync(0xffffffff, s, 4);
        s *= scale;
        if (!exists || s == -INFINITY) continue;  // lanes come together again at the next shuffle
        if (s > mine.m) mine.scale_to(s);
        const float p = expf(s - mine.m);
        mine.l += p;
        for (int i = 0; i < PIECES; ++i) {
            const float4 v = piece<ALIGNED>(value + at, i, part, head_dim);
            mine.o[i].x += p * v.x;
            mine.o[i].y += p * v.y;
            mine.o[i].z += p * v.z;
            mine.o[i].w += p * v.w;
        }
    }
    __syncwarp();
    for (int distance = 8; distance < 32; distance *= 2) {
        const float other = __shfl_xor_sync(0xffffffff, mine.m, distance);
        mine.scale_to(fmaxf(mine.m, other));
        mine.l += __shfl_xor_sync(0xffffffff, mine.l, distance);
        for (int i = 0; i < PIECES; ++i) {
            mine.o[i].x += __shfl_xor_sync(0xffffffff, mine.o[i].x, distance);
            mine.o[i].y += __shfl_xor_sync(0xffffffff, mine.o[i].y, distance);
            mine.o[i].z += __shfl_xor_sync(0xffffffff, mine.o[i].z, distance);
            mine.o[i].w += __shfl_xor_sync(0xffffffff, mine.o[i].w, distance);
        }
    }
    if (group == 0) {
        for (int i = 0; i < PIECES; ++i) {
            float* o = &o_of[warp][32 * i + 4 * part];
            o[0] = mine.o[i].x;
            o[1] = mine.o[i].y;
            o[2] = mine.o[i].z;
            o[3] = mine.o[i].w;
        }
    }
    if (lane == 0) m_of[warp] = mine.m;
    if (lane == 0) l_of[warp] = mine.l;
    __syncthreads();
    const int d = threadIdx.x;
    if (d >= head_dim) return;
    const float m = fmaxf(fmaxf(m_of[0], m_of[1]), fmaxf(m_of[2], m_of[3]));
    float l = 0.0f, o = 0.0f;
    for (int w = 0; w < W; ++w) {
        if (m_of[w] == -INFINITY) continue;
        l += l_of[w] * expf(m_of[w] - m);
        o += o_of[w][d] * expf(m_of[w] - m);
    }
    out[row * head_dim + d] = l == 0.0f ? 0.0f : o / l;
}

void custom_flash_attention(const float* query, const float* key, const float* value, float* out, int64_t batch_heads,
                            int64_t S_q, int64_t S_k, int head_dim, float scale, bool causal, int64_t diagonal,
                            cudaStream_t stream) {
    const auto places = uintptr_t(query) | uintptr_t(key) | uintptr_t(value);
    const bool aligned = head_dim % 4 == 0 && places % 16 == 0;
    const auto kernel = aligned ? attention_split<true> : attention_split<false>;
    kernel<<<grid_blocks(batch_heads * S_q, "query"), 32 * W, 0, stream>>>(query, key, value, out, S_q, S_k, head_dim,
                                                                          scale, causal, diagonal);
    CUDA_CHECK_LAUNCH();
}
