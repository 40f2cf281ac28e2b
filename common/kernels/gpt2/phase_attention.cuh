// phase_attention.cuh - one query over a part of its head's cache: scores, their softmax, the sum of values.
//
//   1. Lanes      LaneState         what a lane knows of the tokens its group has seen
//   2. Merge      merged            several states -> their sum
//   3. Part       attend            the block's tokens -> a state, to all blocks of the cluster (attention_states.cuh)
//   4. Input      merged_input      the states of all blocks -> PROJECTION's input
//
// A key or value of head_dim elements is 16 bytes for each of `lanes` neighbouring lanes; such a group takes one token
// after the other, so that the block has BLOCK_THREADS / lanes tokens at a time. Groups meet in the end. The tokens
// come through the stream, long before the query is known; the newest, whose key and value are made in this step, and
// the one before it are read by the last block's first two groups where they are (phase_block.cuh).
#pragma once
#include "common/cuda/attention_states.cuh"
#include "common/cuda/exp2.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/gpt2/phase_input.cuh"
#include "common/kernels/gpt2/piece_stream.cuh"
#include "common/kernels/gpt2/vectors.cuh"

// ---------------------------------------------------------------------------------------------------- 1. Lanes

// SIZE columns of a sum of values, and the group's largest score and sum of weights.
template <typename T>
struct LaneState {
    static constexpr int SIZE = Vector<T>::SIZE;
    float m = -INFINITY, l = 0.0f, o[SIZE] = {};

    // One token for each group of lanes; those outside take part and change nothing.   query: times scale and log2(e)
    __device__ __forceinline__ void add(const float (&query)[SIZE], const uint4& key, const uint4& value, int lanes,
                                        bool inside) {
        float k[SIZE], v[SIZE], score = 0.0f;
        Vector<T>::unpack(k, key);
        UNROLL
        for (int i = 0; i < SIZE; ++i) score += query[i] * k[i];
        for (int distance = lanes / 2; distance > 0; distance /= 2)
            score += __shfl_xor_sync(FULL_WARP, score, distance);
        if (!inside) return;
        const float m_new = fmaxf(m, score), weight = exp2_approx(score - m_new), rescale = exp2_approx(m - m_new);
        Vector<T>::unpack(v, value);
        m = m_new;
        l = l * rescale + weight;
        UNROLL
        for (int i = 0; i < SIZE; ++i) o[i] = o[i] * rescale + weight * v[i];
    }
    // The groups of a warp -> each lane has the sum of all.
    __device__ __forceinline__ void add_groups(int lanes) {
        for (int distance = lanes; distance < 32; distance *= 2) {
            const float its_m = __shfl_xor_sync(FULL_WARP, m, distance);
            const float its_l = __shfl_xor_sync(FULL_WARP, l, distance);
            const float m_new = fmaxf(m, its_m), shift = shift_of(m_new);
            const float mine = exp2_approx(m - shift), its = exp2_approx(its_m - shift);
            m = m_new;
            l = mine * l + its * its_l;
            UNROLL
            for (int i = 0; i < SIZE; ++i) o[i] = mine * o[i] + its * __shfl_xor_sync(FULL_WARP, o[i], distance);
        }
    }
};

// ---------------------------------------------------------------------------------------------------- 2. Merge

// Of `count` states, N at most, four columns. sums(i): m and l; columns(i): of o. All are asked for at once.
template <int N, class Sums, class Columns>
__device__ __forceinline__ attention::State merged(int count, Sums sums, Columns columns) {
    float2 of[N];
    float4 o[N];
    attention::State all;
    UNROLL
    for (int i = 0; i < N; ++i) {
        of[i] = i < count ? sums(i) : make_float2(-INFINITY, 0.0f);
        o[i] = i < count ? columns(i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        all.m = fmaxf(all.m, of[i].x);
    }
    const float shift = shift_of(all.m);
    UNROLL
    for (int i = 0; i < N; ++i) {
        const float weight = exp2_approx(of[i].x - shift);
        all.l += weight * of[i].y;
        all.o.x += weight * o[i].x, all.o.y += weight * o[i].y, all.o.z += weight * o[i].z, all.o.w += weight * o[i].w;
    }
    return all;
}

// ----------------------------------------------------------------------------------------------------- 3. Part

// head: of the cluster's, the first of which is share.heads.begin. By all threads that compute.
template <typename T>
__device__ __forceinline__ void attend(const Steps& a, const BlockMemory& m, const BlockShare& share, Boxes& boxes,
                                       unsigned letter, int layer, int row, int head, int newest, PieceReader& reader) {
    constexpr int SIZE = Vector<T>::SIZE;
    const StepModel& model = a.model;
    const int head_dim = model.head_dim(), lanes = head_dim / SIZE, groups = BLOCK_THREADS / lanes;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int group = static_cast<int>(threadIdx.x) / lanes, mine = lane % lanes;
    const Range part = cache_part(model, a.plan, share.rank, newest);
    const bool last = share.rank == a.plan.cluster - 1;

    // The newest token, of which m.qkv has key and value, and the one before it, which was written a step ago
    const uint4* const made = reinterpret_cast<const uint4*>(m.qkv) + (row * a.plan.most_heads + head) * 3 * lanes;
    const bool has_before = last && newest >= 1 && newest <= model.max_seq_len;
    uint4 key = make_uint4(0, 0, 0, 0), value = key;
    if (has_before && group == 1) {
        const auto before = [&](int which) {
            const T* const from = cache_row<T>(a, layer, which, row, share.heads.begin + head, newest - 1);
            return __ldcg(reinterpret_cast<const uint4*>(from) + mine);
        };
        key = before(0), value = before(1);
    }
    if (last && group == 0) key = made[lanes + mine], value = made[2 * lanes + mine];
    float query[SIZE];
    Vector<T>::unpack(query, made[mine]);
    const float scale = a.vectors[layer * a.plan.layer_vectors + a.plan.scale] * LOG2_E;
    UNROLL
    for (int i = 0; i < SIZE; ++i) query[i] *= scale;

    LaneState<T> sum;
    const int each = a.plan.tokens_per_piece;
    for (int first = part.begin; first < part.end; first += each) {
        const int count = min(each, part.end - first);
        const unsigned char* const piece = reader.wait();
        const uint4* const keys = reinterpret_cast<const uint4*>(piece);      // [each][lanes]
        const uint4* const values = keys + each * lanes;                      // the same
        const int warp_first = warp * (32 / lanes);
        for (int token = warp_first; token < count; token += groups) {
            const int at = token + lane / lanes;
            const bool inside = at < count;
            const int from = (inside ? at : token) * lanes + mine;
            sum.add(query, keys[from], values[from], lanes, inside);
        }
        reader.release();
    }
    if (last && warp <= lanes / 32) sum.add(query, key, value, lanes, group == 0 || (group == 1 && has_before));
    sum.add_groups(lanes);

    // The warps' states: o [BLOCK_WARPS][head_dim], m and l [BLOCK_WARPS]
    float2* const sums = reinterpret_cast<float2*>(m.own_states + BLOCK_WARPS * head_dim);
    if (lane < lanes) {
        UNROLL
        for (int i = 0; i < SIZE; i += 4)
            *reinterpret_cast<float4*>(m.own_states + warp * head_dim + lane * SIZE + i) =
                make_float4(sum.o[i], sum.o[i + 1], sum.o[i + 2], sum.o[i + 3]);
        if (lane == 0) sums[warp] = make_float2(sum.m, sum.l);
    }
    block_sync();
    // Their sum, 16 bytes for one block of the cluster by each thread
    const int quads = head_dim / 4, state = head_dim + STATE_PAD;
    float* const letters = m.states + ((share.rank * model.rows + row) * a.plan.most_heads + head) * state;
    for (int i = threadIdx.x; i < (quads + 1) * a.plan.cluster; i += BLOCK_THREADS) {
        const int quad = i / a.plan.cluster, to = i % a.plan.cluster, col = quad < quads ? 4 * quad : 0;
        const attention::State all = merged<BLOCK_WARPS>(
            BLOCK_WARPS, [&](int w) { return sums[w]; },
            [&](int w) { return *reinterpret_cast<const float4*>(m.own_states + w * head_dim + col); });
        const float4 x = quad < quads ? all.o : make_float4(all.m, all.l, 0.0f, 0.0f);
        send(letters + 4 * quad, to, boxes.states, letter,
             make_uint4(__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z), __float_as_uint(x.w)));
    }
}

// ---------------------------------------------------------------------------------------------------- 4. Input

// m.states -> T [rows][heads of the cluster][head_dim, and zeros to whole groups]
template <typename T>
__device__ __forceinline__ void merged_input(const Steps& a, const BlockMemory& m, int heads) {
    const int head_dim = a.model.head_dim(), state = head_dim + STATE_PAD;
    const int columns = a.model.head_groups() * GROUP_ROW_BYTES / static_cast<int>(sizeof(T)), quads = columns / 4;
    for (int i = threadIdx.x; i < a.model.rows * heads * quads; i += BLOCK_THREADS) {
        const int col = i % quads * 4, head = i / quads % heads, r = i / (quads * heads);
        const auto part = [&](int p) {
            return m.states + ((p * a.model.rows + r) * a.plan.most_heads + head) * state;
        };
        const attention::State sum = merged<SLICES>(
            col < head_dim ? a.plan.cluster : 0,
            [&](int p) { return *reinterpret_cast<const float2*>(part(p) + head_dim); },
            [&](int p) { return *reinterpret_cast<const float4*>(part(p) + col); });
        const float inverse = inverse_of(sum.l);
        store_input<T>(m, r, head * columns + col,
                       make_float4(sum.o.x * inverse, sum.o.y * inverse, sum.o.z * inverse, sum.o.w * inverse));
    }
    block_sync();
}
