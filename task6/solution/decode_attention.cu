// decode_attention.cu - KV-cache kernels, float32: write new tokens, attend to all tokens, attend with the keys split.
//
// Contents
//   update_cache_kernel     keys and values of the new tokens -> their slots                      (gap 1)
//   update_cache            its grid and launch
//   WarpState               one warp's online softmax: running maximum, running sum, output
//   score_keys              the scores of KEYS keys against the one query                         (gap 2)
//   accumulate_values       online softmax step: the scores and their values into the state       (gap 3)
//   merge_warps             the states of the block's warps -> one output row                     (gap 4)
//   attend_keys             a warp's loop over its keys                                           (gap 5)
//   HeadRows, head_rows     what a block reads: a query head, and the K/V head of its group
//   decode_kernel           one block per sequence and query head
//   launch_decode           grid and launch                                                       (gap 6)
//   decode_attention        the host function: picks D for a head_dim
//
//   Optional: split-KV decoding; nothing above depends on it
//   split_kernel            one block per sequence, query head and part of the keys         (gaps 8 and 9)
//   launch_split            grid and launch
//   decode_attention_split  the host function
//
// Decoding is task 4 with S_q = 1. There is no tile of Q: each key and value is read once and used for one dot
// product and one sum, so staging it in shared memory gains nothing. The kernel is memory-bound: the goal is to
// read K and V at full memory bandwidth.
//
// Work partitioning. One block per sequence and query head. Its 8 warps split the keys, KEYS = 8 at a time:
//
//        keys    0..7   8..15   16..23   ...   56..63 | 64..71   72..79  ...
//        warp      0      1        2     ...      7   |    0        1    ...
//
// Each warp runs its own online softmax over its own keys; the warps are merged only once, at the end.
// Within a warp, lane i owns the columns i, i + 32, ... of the query, of every key and value, and of the
// output, so that neighboring lanes read neighboring floats; the dot product is a warp_sum. Processing 8
// keys at once does not save arithmetic, but it keeps 8 times as many loads in flight and needs one
// rescaling instead of eight.
//
// Merging. A warp ends with m (its largest score), l = sum of exp(score - m) and
// o = sum of exp(score - m) * V. To add up states that are relative to different maxima, scale each by
// exp(m_w - m), where m is the largest of all m_w:
//
//        out = (sum over w of exp(m_w - m) * o_w) / (sum over w of exp(m_w - m) * l_w)
//
// Split-KV ("flash-decoding"). One sequence with 8 heads gives only 8 blocks, and a GPU has over 100 SMs.
// So the keys of a sequence are split into parts, with one block per part:
//
//        keys    0 .. c - 1 | c .. 2c - 1 | ... | (splits - 1) c .. length - 1        c = ceil(length / splits)
//        block       0      |      1      | ... |         splits - 1
//
// A block writes the attention output over its keys alone and the logsumexp of their scores; task 3's merge_states
// combines the parts: the formula above again, with blocks instead of warps.

#include "task6/given/decode_attention.h"

#include "common/cuda/check.h"
#include "common/cuda/logarithms.h"
#include "common/cuda/not_implemented.h"
#include "common/cuda/warp.cuh"

constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;
constexpr int KEYS = 8;  // that a warp processes at once

// One warp per new row; a row is head_dim floats of one token in one K/V head.
//
//   key, value       [batch, kv_heads, new_tokens, head_dim]  = [rows, head_dim]
//   k_cache, v_cache [batch, kv_heads, max_seq_len, head_dim]
__global__ void __launch_bounds__(THREADS)
    update_cache_kernel(float* __restrict__ k_cache, float* __restrict__ v_cache,
                        const float* __restrict__ key, const float* __restrict__ value,
                        const int* __restrict__ positions, int64_t rows, int64_t kv_heads,
                        int64_t max_seq_len, int64_t new_tokens, int head_dim) {
    const int64_t row = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    // BEGIN SOLUTION 1 (9 lines): from `row`, find the token, the K/V head and the sequence; return if the
    //     sequence's position is outside 0 .. max_seq_len - new_tokens. Otherwise copy the row's head_dim
    //     floats of key and value to the token's slot: lane i takes the columns i, i + 32, ...
    const int64_t token = row % new_tokens;
    const int64_t sequence_head = row / new_tokens;  // counts the K/V heads of all sequences
    const int64_t position = positions[sequence_head / kv_heads];
    if (position < 0 || position > max_seq_len - new_tokens) return;
    const int64_t slot = sequence_head * max_seq_len + position + token;
    for (int col = threadIdx.x % 32; col < head_dim; col += 32) {
        k_cache[slot * head_dim + col] = key[row * head_dim + col];
        v_cache[slot * head_dim + col] = value[row * head_dim + col];
    }
    // END SOLUTION
}

// A grid may have up to 2^31 - 1 blocks along x (but only 65,535 along y and z, so everything here uses x).
// grid_blocks, in common/cuda/check.h, throws above that.
void update_cache(float* k_cache, float* v_cache, const float* key, const float* value, const int* positions,
                  int64_t batch, int64_t kv_heads, int64_t max_seq_len, int64_t new_tokens, int head_dim,
                  cudaStream_t stream) {
    const int64_t rows = batch * kv_heads * new_tokens;
    const unsigned blocks = grid_blocks(ceil_div(rows, int64_t{WARPS}), "update_cache");
    update_cache_kernel<<<blocks, THREADS, 0, stream>>>(k_cache, v_cache, key, value, positions, rows,
                                                        kv_heads, max_seq_len, new_tokens, head_dim);
    CUDA_CHECK_LAUNCH();
}

// One warp's softmax over the keys it has seen. m and l are the same in all lanes; o is the lane's columns.
template <int COLS>
struct WarpState {
    float m;
    float l;
    float o[COLS];
};

// s[i] = query . K[first_key + i], in all lanes, for i < KEYS; -infinity for keys from `length` on, which must
// not be read: those slots are uninitialized.
//
//   q [COLS], registers: the lane's columns, zero from head_dim on
//   k_rows [max_seq_len, head_dim], global
template <int COLS>
__device__ __forceinline__ void score_keys(float (&s)[KEYS], const float (&q)[COLS], const float* k_rows,
                                           int64_t first_key, int64_t length, int head_dim) {
    const int lane = threadIdx.x % 32;
    // BEGIN SOLUTION 2 (15 lines): add up the products of the lane's columns for all KEYS keys first, then call
    //     warp_sum for each: that way all the loads are in flight before the first sum needs one.
    //     #pragma unroll before every loop over keys or columns. All lanes must call warp_sum.
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
        s[i] = 0.0f;
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
            const int col = lane + 32 * c;
            const bool inside = first_key + i < length && col < head_dim;
            s[i] += inside ? q[c] * k_rows[(first_key + i) * head_dim + col] : 0.0f;
        }
    }
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
        const float sum = warp_sum(s[i]);
        s[i] = first_key + i < length ? sum : -INFINITY;
    }
    // END SOLUTION
}

// Updates the state with KEYS scores and their values. The scores are already multiplied by log2(e)
// (decode_attention folds it into the scale), so e^x is exp2f(s). first_key < length, so at least one score
// is not masked.
//
//   v_rows [max_seq_len, head_dim], global
template <int COLS>
__device__ __forceinline__ void accumulate_values(WarpState<COLS>& state, const float (&s)[KEYS],
                                                  const float* v_rows, int64_t first_key, int64_t length,
                                                  int head_dim) {
    const int lane = threadIdx.x % 32;
    float m_new = state.m;
#pragma unroll
    for (int i = 0; i < KEYS; ++i) m_new = fmaxf(m_new, s[i]);
    // BEGIN SOLUTION 3 (17 lines): rescale l and o to the new maximum; then for each key p = exp2f(s - maximum),
    //     add p to l and p * V to o. Do not read values of keys from `length` on: 0 * NaN is NaN. If every
    //     score so far is -infinity, subtract 0 instead of the maximum.
    const float shift = m_new == -INFINITY ? 0.0f : m_new;
    const float rescale = exp2f(state.m - shift);
    state.m = m_new;
    state.l *= rescale;
#pragma unroll
    for (int c = 0; c < COLS; ++c) state.o[c] *= rescale;
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
        const float p = exp2f(s[i] - shift);
        state.l += p;
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
            const int col = lane + 32 * c;
            const bool inside = first_key + i < length && col < head_dim;
            state.o[c] += inside ? p * v_rows[(first_key + i) * head_dim + col] : 0.0f;
        }
    }
    // END SOLUTION
}

// Merges the block's WARPS states into out. A warp that had no key has m = -infinity, l = 0 and o = 0.
//
//   m, l [WARPS], o [WARPS][D], shared memory, complete when this is called      out [head_dim], global
template <int D>
__device__ __forceinline__ void merge_warps(float* out, const float* m, const float* l, const float* o,
                                            int head_dim) {
    const int col = threadIdx.x;  // THREADS >= D: one column per thread is enough
    if (col >= head_dim) return;
    // BEGIN SOLUTION 4 (10 lines): the largest m; then the sums over the warps of exp2f(m[w] - largest) times
    //     l[w] and times column col of o; their quotient goes to out[col]. Zero if no warp has seen a key.
    float m_all = -INFINITY;
    for (int w = 0; w < WARPS; ++w) m_all = fmaxf(m_all, m[w]);
    const float shift = m_all == -INFINITY ? 0.0f : m_all;
    float l_all = 0.0f, o_all = 0.0f;
    for (int w = 0; w < WARPS; ++w) {
        const float weight = exp2f(m[w] - shift);
        l_all += weight * l[w];
        o_all += weight * o[w * D + col];
    }
    out[col] = l_all == 0.0f ? 0.0f : o_all / l_all;
    // END SOLUTION
}

// Attention of one query to the keys begin .. end - 1: the block's warps split them and write their states to
// shared memory, where any thread may read them once this returns.
//
//   m_shared, l_shared [WARPS], o_shared [WARPS][D]      the states
//   query [head_dim]; k_rows, v_rows [max_seq_len, head_dim], global
template <int D>
__device__ __forceinline__ void attend_keys(float* m_shared, float* l_shared, float* o_shared, const float* query,
                                            const float* k_rows, const float* v_rows, int64_t begin, int64_t end,
                                            int head_dim, float scale_log2) {
    constexpr int COLS = D / 32;
    static_assert(D % 32 == 0 && D <= THREADS);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    // Scale q once instead of every score.
    float q[COLS];
    WarpState<COLS> state;
    state.m = -INFINITY;
    state.l = 0.0f;
#pragma unroll
    for (int c = 0; c < COLS; ++c) {
        const int col = lane + 32 * c;
        q[c] = col < head_dim ? query[col] * scale_log2 : 0.0f;
        state.o[c] = 0.0f;
    }

    // BEGIN SOLUTION 5 (12 lines): loop over this warp's groups of KEYS keys, see the picture at the top (key 0 there
    //     is `begin` here): score them, accumulate their values. Then every lane writes its columns of o to o_shared,
    //     one lane writes m and l, and all warps wait until all have done so.
    for (int64_t first_key = begin + warp * KEYS; first_key < end; first_key += WARPS * KEYS) {
        float s[KEYS];
        score_keys<COLS>(s, q, k_rows, first_key, end, head_dim);
        accumulate_values<COLS>(state, s, v_rows, first_key, end, head_dim);
    }
#pragma unroll
    for (int c = 0; c < COLS; ++c) o_shared[warp * D + lane + 32 * c] = state.o[c];
    if (lane == 0) {
        m_shared[warp] = state.m;
        l_shared[warp] = state.l;
    }
    __syncthreads();
    // END SOLUTION
}

// What a block reads: the query of one head, and the rows of the K/V head that its group shares, `length` of them.
struct HeadRows {
    const float* query;  // [head_dim]
    const float* k;      // [max_seq_len, head_dim]
    const float* v;      // [max_seq_len, head_dim]
    int64_t length;      // 0 .. max_seq_len
};

// `row` is the index over the query heads of all sequences.
//
//   query [batch, heads, head_dim]; k_cache, v_cache [batch, kv_heads, max_seq_len, head_dim]; lengths [batch]
__device__ __forceinline__ HeadRows head_rows(int64_t row, const float* query, const float* k_cache,
                                              const float* v_cache, const int* lengths, int64_t heads,
                                              int64_t kv_heads, int64_t max_seq_len, int head_dim) {
    const int64_t sequence = row / heads, head = row % heads;
    const int64_t kv_head = head / (heads / kv_heads);  // grouped-query attention: adjacent heads share K and V
    const int64_t offset = (sequence * kv_heads + kv_head) * max_seq_len * head_dim;
    int64_t length = lengths[sequence];
    if (length < 0) length = 0;
    if (length > max_seq_len) length = max_seq_len;  // never read outside the cache
    return {query + row * head_dim, k_cache + offset, v_cache + offset, length};
}

// One block per (sequence, query head).
//
//   query, out [batch, heads, head_dim]      lengths [batch]
//   k_cache, v_cache [batch, kv_heads, max_seq_len, head_dim]
template <int D>
__global__ void __launch_bounds__(THREADS)
    decode_kernel(const float* __restrict__ query, const float* __restrict__ k_cache,
                  const float* __restrict__ v_cache, const int* __restrict__ lengths, float* __restrict__ out,
                  int64_t heads, int64_t kv_heads, int64_t max_seq_len, int head_dim, float scale_log2) {
    __shared__ float m_shared[WARPS];      // [WARPS]
    __shared__ float l_shared[WARPS];      // [WARPS]
    __shared__ float o_shared[WARPS * D];  // [WARPS][D]
    const int64_t row = blockIdx.x;
    const HeadRows head =
        head_rows(row, query, k_cache, v_cache, lengths, heads, kv_heads, max_seq_len, head_dim);
    attend_keys<D>(m_shared, l_shared, o_shared, head.query, head.k, head.v, 0, head.length, head_dim, scale_log2);
    merge_warps<D>(out + row * head_dim, m_shared, l_shared, o_shared, head_dim);
}

template <int D>
void launch_decode(const float* query, const float* k_cache, const float* v_cache, const int* lengths,
                   float* out, int64_t batch, int64_t heads, int64_t kv_heads, int64_t max_seq_len,
                   int head_dim, float scale_log2, cudaStream_t stream) {
    // BEGIN SOLUTION 6 (4 lines): launch decode_kernel<D>, one block per sequence and query head, and check the
    //     launch.
    const unsigned blocks = grid_blocks(batch * heads, "decode_attention");
    decode_kernel<D><<<blocks, THREADS, 0, stream>>>(query, k_cache, v_cache, lengths, out, heads, kv_heads,
                                                     max_seq_len, head_dim, scale_log2);
    CUDA_CHECK_LAUNCH();
    // END SOLUTION
}

void decode_attention(const float* query, const float* k_cache, const float* v_cache, const int* lengths,
                      float* out, int64_t batch, int64_t heads, int64_t kv_heads, int64_t max_seq_len,
                      int head_dim, float scale, cudaStream_t stream) {
    auto launch = launch_decode<32>;
    if (head_dim > 32) launch = launch_decode<64>;
    if (head_dim > 64) launch = launch_decode<96>;
    if (head_dim > 96) launch = launch_decode<128>;
    // softmax in base e of x is softmax in base 2 of log2(e) * x
    launch(query, k_cache, v_cache, lengths, out, batch, heads, kv_heads, max_seq_len, head_dim,
           scale * LOG2_E, stream);
}

// ---------------------------------------------------------------------------------------------------------------------
// Optional: split-KV decoding

// One block per (sequence, query head, part of the keys). The logsumexp of a part without keys is -infinity.
//
//   query [batch, heads, head_dim]      lengths [batch]
//   k_cache, v_cache [batch, kv_heads, max_seq_len, head_dim]
//   outs [splits, rows, head_dim], lse [splits, rows]      rows = batch * heads
template <int D>
__global__ void __launch_bounds__(THREADS)
    split_kernel(const float* __restrict__ query, const float* __restrict__ k_cache,
                 const float* __restrict__ v_cache, const int* __restrict__ lengths, float* __restrict__ outs,
                 float* __restrict__ lse, int64_t rows, int64_t heads, int64_t kv_heads, int64_t max_seq_len,
                 int64_t splits, int head_dim, float scale_log2) {
    __shared__ float m_shared[WARPS];      // [WARPS]
    __shared__ float l_shared[WARPS];      // [WARPS]
    __shared__ float o_shared[WARPS * D];  // [WARPS][D]
    const int64_t row = blockIdx.x / splits, part = blockIdx.x % splits;
    const HeadRows head =
        head_rows(row, query, k_cache, v_cache, lengths, heads, kv_heads, max_seq_len, head_dim);

    int64_t begin = 0, end = head.length;
    // BEGIN SOLUTION 8 (3 lines): the keys of this part, begin .. end - 1; see the picture at the top. The last parts
    //     may have fewer keys than the others, or none: then begin >= end.
    const int64_t keys = ceil_div(head.length, splits);
    begin = part * keys;
    if (begin + keys < end) end = begin + keys;
    // END SOLUTION
    attend_keys<D>(m_shared, l_shared, o_shared, head.query, head.k, head.v, begin, end, head_dim, scale_log2);

    const int64_t result = part * rows + row;
    merge_warps<D>(outs + result * head_dim, m_shared, l_shared, o_shared, head_dim);
    if (threadIdx.x > 0) return;
    // BEGIN SOLUTION 9 (6 lines): one thread writes the logsumexp of the part's scores to lse[result]: the largest m,
    //     and the sum of all l relative to it, as in merge_warps. Maxima and sums are of scores in base 2 (the scale
    //     includes log2(e)); the logsumexp is in base e. If no warp has seen a key, it is -infinity, not NaN.
    float m_all = -INFINITY, l_all = 0.0f;
    for (int w = 0; w < WARPS; ++w) m_all = fmaxf(m_all, m_shared[w]);
    const float shift = m_all == -INFINITY ? 0.0f : m_all;
    for (int w = 0; w < WARPS; ++w) l_all += exp2f(m_shared[w] - shift) * l_shared[w];
    const float lse_log2 = shift + log2f(l_all);
    lse[result] = lse_log2 / LOG2_E;
    // END SOLUTION
}

template <int D>
void launch_split(const float* query, const float* k_cache, const float* v_cache, const int* lengths, float* outs,
                  float* lse, int64_t batch, int64_t heads, int64_t kv_heads, int64_t max_seq_len, int64_t splits,
                  int head_dim, float scale_log2, cudaStream_t stream) {
    const int64_t rows = batch * heads;
    const unsigned blocks = grid_blocks(rows * splits, "decode_attention_split");
    split_kernel<D><<<blocks, THREADS, 0, stream>>>(query, k_cache, v_cache, lengths, outs, lse, rows, heads,
                                                    kv_heads, max_seq_len, splits, head_dim, scale_log2);
    CUDA_CHECK_LAUNCH();
}

void decode_attention_split(const float* query, const float* k_cache, const float* v_cache, const int* lengths,
                            float* outs, float* lse, int64_t batch, int64_t heads, int64_t kv_heads,
                            int64_t max_seq_len, int64_t splits, int head_dim, float scale, cudaStream_t stream) {
    auto launch = launch_split<32>;
    if (head_dim > 32) launch = launch_split<64>;
    if (head_dim > 64) launch = launch_split<96>;
    if (head_dim > 96) launch = launch_split<128>;
    launch(query, k_cache, v_cache, lengths, outs, lse, batch, heads, kv_heads, max_seq_len, splits, head_dim,
           scale * LOG2_E, stream);
}
