// step_attention.cuh - softmax states of one query: accumulated by lanes, warps and CTAs, and merged.
//
//   LaneState         a group of lanes: the tokens it has seen, SIZE columns per lane (online softmax)
//   merged            merges several states, four columns (as in task 3's merge_states)
//   attend            a CTA's part of a head's cache (split-KV, as in flash-decoding); S: Step of persistent_step.cu
//   merge_states      merges the states of a cluster's CTAs -> PROJ's input
#pragma once
#include "common/cuda/attention_states.cuh"
#include "common/cuda/exp2.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/gpt2/cluster_gather.cuh"
#include "common/kernels/gpt2/step_gemv.cuh"
#include "common/kernels/gpt2/vectors.cuh"

template <typename T>
struct LaneState {
    static constexpr int SIZE = Vector<T>::SIZE;
    float m = -INFINITY, l = 0.0f, o[SIZE] = {};

    __device__ __forceinline__ void rescale(float m_new) {
        const float by = exp2_approx(m - shift_of(m_new));
        m = m_new, l *= by;
        UNROLL
        for (int i = 0; i < SIZE; ++i) o[i] *= by;
    }
    // N tokens for each group of `lanes` lanes; those not inside change nothing. query: multiplied by scale and log2(e)
    template <int N>
    __device__ __forceinline__ void add(const float (&query)[SIZE], const uint4 (&keys)[N], const uint4 (&values)[N],
                                        int lanes, const bool (&inside)[N]) {
        float scores[N] = {}, m_new = m;
        UNROLL
        for (int n = 0; n < N; ++n) {
            float k[SIZE];
            Vector<T>::unpack(k, keys[n]);
            UNROLL
            for (int i = 0; i < SIZE; ++i) scores[n] += query[i] * k[i];
        }
        UNROLL
        for (int distance = 16; distance > 0; distance /= 2) {
            if (distance >= lanes) continue;
            UNROLL
            for (int n = 0; n < N; ++n) scores[n] += __shfl_xor_sync(FULL_WARP, scores[n], distance);
        }
        UNROLL
        for (int n = 0; n < N; ++n) {
            if (!inside[n]) scores[n] = -INFINITY;
            m_new = fmaxf(m_new, scores[n]);
        }
        rescale(m_new);
        UNROLL
        for (int n = 0; n < N; ++n) {
            float v[SIZE];
            Vector<T>::unpack(v, values[n]);
            const float weight = exp2_approx(scores[n] - shift_of(m));
            l += weight;
            UNROLL
            for (int i = 0; i < SIZE; ++i) o[i] += weight * v[i];
        }
    }
    // Merges the groups of a warp; each lane gets the result.
    __device__ __forceinline__ void add_groups(int lanes) {
        float m_new = m;
        UNROLL
        for (int distance = 1; distance < 32; distance *= 2)
            if (distance >= lanes) m_new = fmaxf(m_new, __shfl_xor_sync(FULL_WARP, m_new, distance));
        rescale(m_new);
        UNROLL
        for (int distance = 1; distance < 32; distance *= 2) {
            if (distance < lanes) continue;
            l += __shfl_xor_sync(FULL_WARP, l, distance);
            UNROLL
            for (int i = 0; i < SIZE; ++i) o[i] += __shfl_xor_sync(FULL_WARP, o[i], distance);
        }
    }
};

// Merges `count` states, N at most. sums(i): m and l; columns(i): of o. All are loaded at once.
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

// What can be loaded for a head before its query arrives: the CTA's part of the cache and, of the newest two tokens,
// which the cluster's last CTA adds, the older one. The newest one's key and value are computed in this step.
struct AttentionPart {
    Range cached;
    bool is_newest, is_before;  // whether this group of lanes has one of the two
    uint4 key, value;           // for the older one
    float scale;                // the scale of the scores, times log2(e)
};
template <class S>
__device__ __forceinline__ AttentionPart attention_part(const S& s, int layer, int step, int row, int head) {
    const int position = s.state.position[row] + step, lanes = s.head_lanes();
    const int group = static_cast<int>(threadIdx.x) >> (31 - __clz(lanes));
    const bool last = s.share.rank == s.cluster() - 1;
    AttentionPart of = {S::cached_tokens(s.a, s.share.rank, position), last && group == 0,
                        last && group == 1 && position >= 1 && position <= s.a.model.max_seq_len, {}, {},
                        __ldg(s.vectors(layer, s.a.plan.scale)) * LOG2_E};
    const auto load = [&](int which) {
        const auto* const from = S::cache_row(s.a, layer, which, row, s.share.heads.begin + head, position - 1);
        return __ldcg(reinterpret_cast<const uint4*>(from) + (threadIdx.x & (lanes - 1)));
    };
    if (of.is_before) of.key = load(0), of.value = load(1);
    return of;
}

// One query over the part; sends its softmax state to all CTAs of the cluster. A key is 16 bytes for each of
// head_lanes() lanes; such a group processes a token of each stage, 3 stages at a time.
template <class S>
__device__ __forceinline__ void attend(S& s, int layer, int row, int head, const AttentionPart& part) {
    using T = typename S::Type;
    constexpr int SIZE = Vector<T>::SIZE, STAGES = 3;
    const int lanes = s.head_lanes(), group = static_cast<int>(threadIdx.x) >> (31 - __clz(lanes));
    const int mine = static_cast<int>(threadIdx.x) & (lanes - 1), each = s.a.plan.stage_tokens;
    const uint4* const made = reinterpret_cast<const uint4*>(s.m.qkv) + (row * s.a.plan.max_heads + head) * 3 * lanes;
    float query[SIZE];
    Vector<T>::unpack(query, made[mine]);
    UNROLL
    for (int i = 0; i < SIZE; ++i) query[i] *= part.scale;
    LaneState<T> sum;
    int first = part.cached.begin;
    bool extra = part.is_newest || part.is_before;
    NO_UNROLL
    do {
        uint4 keys[STAGES + 1], values[STAGES + 1];
        bool inside[STAGES + 1];
        const unsigned char* stages[STAGES];
        int here = 0;
        UNROLL
        for (int n = 0; n < STAGES; ++n) here += first + n * each < part.cached.end;
        if (here > 0) s.weights.wait_for(stages, here);
        UNROLL
        for (int n = 0; n < STAGES; ++n) {
            inside[n] = group < min(each, part.cached.end - first - n * each);
            keys[n] = values[n] = make_uint4(0, 0, 0, 0);
            if (!inside[n]) continue;
            const uint4* const stage = reinterpret_cast<const uint4*>(stages[n]) + group * lanes + mine;
            keys[n] = stage[0], values[n] = stage[each * lanes];
        }
        inside[STAGES] = extra, extra = false;
        keys[STAGES] = part.is_newest ? made[lanes + mine] : part.key;
        values[STAGES] = part.is_newest ? made[2 * lanes + mine] : part.value;
        sum.add(query, keys, values, lanes, inside);
        if (here > 0) s.weights.release(here);
        first += STAGES * each;
    } while (first < part.cached.end);
    sum.add_groups(lanes);
    // Warps' states: o [CTA_WARPS][head_dim]; m, l [CTA_WARPS]
    float2* const sums = reinterpret_cast<float2*>(s.m.warp_states + CTA_WARPS * s.head_dim());
    if (s.lane() < lanes) {
        UNROLL
        for (int i = 0; i < SIZE; i += 4)
            *reinterpret_cast<float4*>(s.m.warp_states + s.warp() * s.head_dim() + s.lane() * SIZE + i) =
                make_float4(sum.o[i], sum.o[i + 1], sum.o[i + 2], sum.o[i + 3]);
        if (s.lane() == 0) sums[s.warp()] = make_float2(sum.m, sum.l);
    }
    cta_sync();
    const int quads = s.head_dim() / 4, size = s.head_dim() + STATE_PAD;
    float* const to = s.m.states + ((s.share.rank * s.rows() + row) * s.a.plan.max_heads + head) * size;
    NO_UNROLL
    for (int i = threadIdx.x; i < (quads + 1) << s.cluster_bits(); i += CTA_THREADS) {
        const int quad = i >> s.cluster_bits(), col = quad < quads ? 4 * quad : 0;
        const attention::State all = merged<CTA_WARPS>(
            CTA_WARPS, [&](int w) { return sums[w]; },
            [&](int w) { return *reinterpret_cast<const float4*>(s.m.warp_states + w * s.head_dim() + col); });
        const float4 x = quad < quads ? all.o : make_float4(all.m, all.l, 0.0f, 0.0f);
        gather_send(to + 4 * quad, i & (s.cluster() - 1), s.gathers.states, s.layers_done,
                    make_uint4(__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z), __float_as_uint(x.w)));
    }
}

// The states of all CTAs -> PROJ's input [rows][heads][head_dim, zero-padded to whole chunks].
template <class S>
__device__ __forceinline__ void merge_states(const S& s) {
    const int heads = s.share.heads.count(), size = s.head_dim() + STATE_PAD;
    const int of_cta = s.rows() * s.a.plan.max_heads * size;
    constexpr int CHUNK_QUADS = CHUNK_ROW_BYTES / static_cast<int>(sizeof(typename S::Type)) / 4;
    const int quads = (s.head_dim() / 4 + CHUNK_QUADS - 1) / CHUNK_QUADS * CHUNK_QUADS, quad_bits = 31 - __clz(quads);
    NO_UNROLL
    for (int i = threadIdx.x; i < (s.rows() * heads) << quad_bits; i += CTA_THREADS) {
        const int col = (i & (quads - 1)) * 4, row = S::ONE ? 0 : (i >> quad_bits) / heads;
        const int head = (i >> quad_bits) - row * heads;
        const float* const first = s.m.states + (row * s.a.plan.max_heads + head) * size;
        const attention::State all = merged<SLICES>(
            col < s.head_dim() ? s.cluster() : 0,
            [&](int p) { return *reinterpret_cast<const float2*>(first + p * of_cta + s.head_dim()); },
            [&](int p) { return *reinterpret_cast<const float4*>(first + p * of_cta + col); });
        const float inverse = inverse_of(all.l);
        s.store_input(row, head * quads * 4 + col,
                    make_float4(all.o.x * inverse, all.o.y * inverse, all.o.z * inverse, all.o.w * inverse));
    }
    cta_sync();
}
