// phase_attention.cuh - one query over a part of its head's cache: scores, their softmax, the sum of values.
//
//   1. Lanes      LaneState         what a lane knows of the tokens its group has seen
//   2. Merge      merged            several states -> their sum
//   3. Part       AttentionPart     which tokens those are
//                 attend            the block's tokens -> a state, to all blocks of the cluster (attention_states.cuh)
//   4. Input      merged_input      the states of all blocks -> PROJECTION's input
//
// A key or value of head_dim elements is 16 bytes for each of `lanes` neighbouring lanes. Such a group takes one token of a
// piece of the stream, which has BLOCK_THREADS / lanes of them at most, and three pieces at a time. Groups meet in the end.
// The tokens come long before the query is known; the newest, whose key and value are made in this step, and the one
// before it are read by the last block's first two groups where they are (phase_block.cuh).
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

    // N tokens for each group of lanes; those outside take part and change nothing.   query: times scale and log2(e)
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
        const float shift = shift_of(m_new), rescale = exp2_approx(m - shift);
        m = m_new;
        l *= rescale;
        UNROLL
        for (int i = 0; i < SIZE; ++i) o[i] *= rescale;
        UNROLL
        for (int n = 0; n < N; ++n) {
            float v[SIZE];
            Vector<T>::unpack(v, values[n]);
            const float weight = exp2_approx(scores[n] - shift);
            l += weight;
            UNROLL
            for (int i = 0; i < SIZE; ++i) o[i] += weight * v[i];
        }
    }
    // The groups of a warp -> each lane has the sum of all.
    __device__ __forceinline__ void add_groups(int lanes) {
        float m_new = m;
        UNROLL
        for (int distance = 1; distance < 32; distance *= 2)
            if (distance >= lanes) m_new = fmaxf(m_new, __shfl_xor_sync(FULL_WARP, m_new, distance));
        const float rescale = exp2_approx(m - shift_of(m_new));
        m = m_new;
        l *= rescale;
        UNROLL
        for (int i = 0; i < SIZE; ++i) o[i] *= rescale;
        UNROLL
        for (int distance = 1; distance < 32; distance *= 2) {
            if (distance < lanes) continue;
            l += __shfl_xor_sync(FULL_WARP, l, distance);
            UNROLL
            for (int i = 0; i < SIZE; ++i) o[i] += __shfl_xor_sync(FULL_WARP, o[i], distance);
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

// What a block has of a sequence's head, whose number among the cluster's is `head`; known before the query is.
template <typename T, class K>
struct AttentionPart {
    static constexpr int SIZE = Vector<T>::SIZE;
    int row, head;
    int lanes, group, mine;  // of a token, a power of 2; which these are, and which of them this one is
    Range part;
    bool adds_newest, adds_before;  // this group of lanes has the newest token, or the one before it
    uint4 key, value;               // of that one
    float scale;

    __device__ __forceinline__ AttentionPart(const Steps& a, const BlockShare& share, int layer, int of_row,
                                             int of_head, int newest)
        : row(of_row), head(of_head), lanes(K::template head_lanes<T>(a)) {
        group = static_cast<int>(threadIdx.x) >> (31 - __clz(lanes)), mine = threadIdx.x & (lanes - 1);
        part = cache_part(a.model, a.plan, share.rank, newest);
        const bool last = share.rank == K::cluster(a) - 1;
        adds_newest = last && group == 0;
        adds_before = last && group == 1 && newest >= 1 && newest <= a.model.max_seq_len;
        key = value = make_uint4(0, 0, 0, 0);
        if (adds_before) {
            const auto before = [&](int which) {
                const T* const from = cache_row<T>(a, layer, which, row, share.heads.begin + head, newest - 1);
                return __ldcg(reinterpret_cast<const uint4*>(from) + mine);
            };
            key = before(0), value = before(1);
        }
        scale = __ldg(a.vectors + layer * a.plan.layer_vectors + a.plan.scale) * LOG2_E;
    }
};

constexpr int TOKEN_PIECES = 3;  // at a time

// By all threads that compute. One of AT_ONCE places is for a token that is in no piece: of the last block's first two
// groups of lanes, the newest, of which m.qkv has key and value, and the one before it, which was written a step ago.
template <typename T, class K>
__device__ __forceinline__ void attend(const Steps& a, const BlockMemory& m, const BlockShare& share, Boxes& boxes,
                                       unsigned letter, const AttentionPart<T, K>& of, PieceReader& reader) {
    constexpr int SIZE = Vector<T>::SIZE, PIECES = TOKEN_PIECES, AT_ONCE = PIECES + 1;
    const int head_dim = K::head_dim(a), lanes = K::template head_lanes<T>(a), row = of.row, head = of.head;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const uint4* const made = reinterpret_cast<const uint4*>(m.qkv) + (row * a.plan.most_heads + head) * 3 * lanes;
    float query[SIZE];
    Vector<T>::unpack(query, made[of.mine]);
    UNROLL
    for (int i = 0; i < SIZE; ++i) query[i] *= of.scale;

    LaneState<T> sum;
    const int each = a.plan.tokens_per_piece;  // one for each group of lanes, or fewer
    int first = of.part.begin;
    bool own = true;
    NO_UNROLL
    do {
        uint4 keys[AT_ONCE], values[AT_ONCE];
        bool inside[AT_ONCE];
        const unsigned char* pieces[PIECES];
        int here = 0;
        UNROLL
        for (int n = 0; n < PIECES; ++n) here += first + n * each < of.part.end;
        if (here > 0) reader.wait_for(pieces, here);
        UNROLL
        for (int n = 0; n < PIECES; ++n) {
            inside[n] = of.group < min(each, of.part.end - first - n * each);
            keys[n] = values[n] = make_uint4(0, 0, 0, 0);
            if (!inside[n]) continue;
            const uint4* const piece = reinterpret_cast<const uint4*>(pieces[n]) + of.group * lanes + of.mine;
            keys[n] = piece[0], values[n] = piece[each * lanes];  // both [each][lanes]
        }
        inside[PIECES] = own && (of.adds_newest || of.adds_before);
        keys[PIECES] = of.adds_newest ? made[lanes + of.mine] : of.key;
        values[PIECES] = of.adds_newest ? made[2 * lanes + of.mine] : of.value;
        own = false;
        sum.template add<AT_ONCE>(query, keys, values, lanes, inside);
        if (here > 0) reader.release(here);
        first += PIECES * each;
    } while (first < of.part.end);
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
    const int cluster = K::cluster(a), rows = K::rows(a);
    const int quads = head_dim / 4, state = head_dim + STATE_PAD, cluster_bits = 31 - __clz(cluster);
    float* const letters = m.states + ((share.rank * rows + row) * a.plan.most_heads + head) * state;
    NO_UNROLL
    for (int i = threadIdx.x; i < (quads + 1) << cluster_bits; i += BLOCK_THREADS) {
        const int quad = i >> cluster_bits, to = i & (cluster - 1), col = quad < quads ? 4 * quad : 0;
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
template <typename T, class K>
__device__ __forceinline__ void merged_input(const Steps& a, const BlockMemory& m, int heads) {
    const int head_dim = K::head_dim(a), state = head_dim + STATE_PAD, cluster = K::cluster(a), rows = K::rows(a);
    const int columns = (head_dim * static_cast<int>(sizeof(T)) + GROUP_ROW_BYTES - 1) / GROUP_ROW_BYTES *
                        GROUP_ROW_BYTES / static_cast<int>(sizeof(T));
    const int quads = columns / 4, quad_bits = 31 - __clz(quads);  // a power of 2
    const int of_block = rows * a.plan.most_heads * state;
    NO_UNROLL
    for (int i = threadIdx.x; i < (rows * heads) << quad_bits; i += BLOCK_THREADS) {
        const int col = (i & (quads - 1)) * 4;
        int head = i >> quad_bits, r = 0;
        if (K::ROWS > 1)
            while (head >= heads) head -= heads, ++r;
        const float* const first = m.states + (r * a.plan.most_heads + head) * state;
        const attention::State sum = merged<SLICES>(
            col < head_dim ? cluster : 0,
            [&](int p) { return *reinterpret_cast<const float2*>(first + p * of_block + head_dim); },
            [&](int p) { return *reinterpret_cast<const float4*>(first + p * of_block + col); });
        const float inverse = inverse_of(sum.l);
        store_input<T>(m, r, head * columns + col,
                       make_float4(sum.o.x * inverse, sum.o.y * inverse, sum.o.z * inverse, sum.o.w * inverse));
    }
    block_sync();
}
