// Groups of 8 lanes take a key each, by float4 where head_dim and the pointers allow; where not, by the same code
// with single floats. Each group keeps an online softmax of its own, and shared memory holds all 32 groups of the
// block.
#include "common/cuda/check.h"
#include "common/cuda/logarithms.h"
#include "task6/given/decode_attention.h"

constexpr int GROUP = 8, GROUPS = 16;

// WIDTH floats at a time; a lane has the pieces lane, lane + 8, ... of a row.
template <int WIDTH>
struct Row {
    static constexpr int PIECES = MAX_HEAD_DIM / (GROUP * WIDTH);
    float x[PIECES][WIDTH];

    __device__ void load(const float* from, int lane, int head_dim) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const int at = (lane + GROUP * i) * WIDTH;
            if constexpr (WIDTH == 4) {
                const float4 v = at < head_dim ? *reinterpret_cast<const float4*>(from + at) : float4{};
                x[i][0] = v.x;
                x[i][1] = v.y;
                x[i][2] = v.z;
                x[i][3] = v.w;
            } else {
                x[i][0] = at < head_dim ? from[at] : 0.0f;
            }
        }
    }
};

template <int WIDTH>
__global__ void __launch_bounds__(GROUP * GROUPS)
    decode_by_groups(const float* query, const float* k_cache, const float* v_cache, const int* lengths, float* out,
                     int64_t heads, int64_t kv_heads, int64_t max_seq_len, int head_dim, float scale_log2) {
    using R = Row<WIDTH>;
    __shared__ float m_of[GROUPS], l_of[GROUPS], o_of[GROUPS][MAX_HEAD_DIM];
    const int lane = threadIdx.x % GROUP, group = threadIdx.x / GROUP;
    const unsigned members = 0xffu << (group % 4 * GROUP);
    const int64_t row = int64_t{blockIdx.y} * heads + blockIdx.x;
    const int64_t cache = (blockIdx.y * kv_heads + blockIdx.x / (heads / kv_heads)) * max_seq_len;
    const int64_t length = lengths[blockIdx.y] < max_seq_len ? lengths[blockIdx.y] : max_seq_len;
    R q, o = {};
    q.load(query + row * head_dim, lane, head_dim);
    float m = -INFINITY, l = 0.0f;
    for (int64_t j = group; j < length; j += GROUPS) {
        R k, v;
        k.load(k_cache + (cache + j) * head_dim, lane, head_dim);
        v.load(v_cache + (cache + j) * head_dim, lane, head_dim);
        float s = 0.0f;
#pragma unroll
        for (int i = 0; i < R::PIECES; ++i) {
#pragma unroll
            // a piece after the row is 0 in q and in k
            for (int w = 0; w < WIDTH; ++w) s += q.x[i][w] * k.x[i][w];
        }
        for (int bit = 1; bit < GROUP; bit *= 2) s += __shfl_xor_sync(members, s, bit);
        s *= scale_log2;
        const float m_new = fmaxf(m, s), shift = m_new == -INFINITY ? 0.0f : m_new;
        const float rescale = exp2f(m - shift), p = exp2f(s - shift);
        m = m_new;
        l = l * rescale + p;
#pragma unroll
        for (int i = 0; i < R::PIECES; ++i) {
#pragma unroll
            for (int w = 0; w < WIDTH; ++w) o.x[i][w] = o.x[i][w] * rescale + p * v.x[i][w];
        }
    }
    for (int i = 0; i < R::PIECES; ++i) {
        for (int w = 0; w < WIDTH; ++w) o_of[group][(lane + GROUP * i) * WIDTH + w] = o.x[i][w];
    }
    if (lane == 0) {
        m_of[group] = m;
        l_of[group] = l;
    }
    __syncthreads();
    for (int g = 0; g < GROUPS; ++g) m = fmaxf(m, m_of[g]);
    const float shift = m == -INFINITY ? 0.0f : m;
    for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
        float sum = 0.0f, weight = 0.0f;
        for (int g = 0; g < GROUPS; ++g) {
            weight += exp2f(m_of[g] - shift) * l_of[g];
            sum += exp2f(m_of[g] - shift) * o_of[g][d];
        }
        out[row * head_dim + d] = weight > 0.0f ? sum / weight : 0.0f;
    }
}

void decode_attention(const float* query, const float* k_cache, const float* v_cache, const int* lengths, float* out,
                      int64_t batch, int64_t heads, int64_t kv_heads, int64_t max_seq_len, int head_dim, float scale,
                      cudaStream_t stream) {
    const auto places = uintptr_t(query) | uintptr_t(k_cache) | uintptr_t(v_cache);
    const bool vectors = head_dim % 4 == 0 && places % 16 == 0;
    const auto kernel = vectors ? decode_by_groups<4> : decode_by_groups<1>;
    for (int64_t first = 0; first < batch; first += MAX_GRID_YZ) {  // y is short
        const int64_t some = batch - first < MAX_GRID_YZ ? batch - first : MAX_GRID_YZ;
        const int64_t rows = first * heads, slots = first * kv_heads * max_seq_len;
        kernel<<<dim3(static_cast<unsigned>(heads), static_cast<unsigned>(some)), GROUP * GROUPS, 0, stream>>>(
            query + rows * head_dim, k_cache + slots * head_dim, v_cache + slots * head_dim, lengths + first,
            out + rows * head_dim, heads, kv_heads, max_seq_len, head_dim, scale * LOG2_E);
        CUDA_CHECK_LAUNCH();
    }
}
