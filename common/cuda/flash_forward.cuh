// flash_forward.cuh - FlashAttention-2, forward, on tensor cores: the body of a kernel. namespace flash.
//
//   1. Shapes       Shape                       what a block, a warp and a thread own
//   2. Products     multiply_qk, multiply_pv    S = Q K^T, O += P V by mma.sync
//                   hide_outside                masks the scores of keys that a row may not see
//   3. Block        Rows                        which rows of which head a block computes, and its tensors
//   4. Keys         Keys                        the concept: what a kernel must say about its keys
//   5. Output       store_output
//                   compute_nan_again           keeps the contents of hidden keys out of a row
//   6. Loop         forward                     tile by tile: scores, weights, output
//   7. Launch       launch_forward
//
//   flash_tiles.cuh      tiles in shared memory: cp.async, swizzle, ldmatrix
//   flash_softmax.cuh    the online softmax on fragments
//
// A kernel says which tiles of keys a block goes through and which keys in them are hidden: the concept Keys.
#pragma once
#include <cuda_runtime.h>

#include <concepts>
#include <cstdint>

#include "common/cuda/attention_arguments.h"
#include "common/cuda/check.h"
#include "common/cuda/cp_async.cuh"
#include "common/cuda/flash_launch.h"
#include "common/cuda/flash_softmax.cuh"
#include "common/cuda/flash_tiles.cuh"
#include "common/cuda/ldmatrix.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/seen_row.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"

namespace flash {

using namespace mma;

// ------------------------------------------------------------------------------------------------- 1. Shapes
//
//     block: B_r = 16 M WARPS rows of Q    warp: 16 M rows, M = 2        tile of K or V: B_c = 32 keys
//
// Why 32 rows per warp: the B operand of an mma, 16 x 8 elements of K or V, is 256 bytes of shared memory, and a warp
// uses it M times. The four tensor cores of an SM consume four operands, 1024 bytes, in about six cycles; shared memory
// delivers 128 bytes per cycle. So M = 1 would be bound by shared memory, and M = 2 leaves headroom.
//
// The cost: a thread holds M D / 2 floats of O, 16 M of S, half as many registers of P, and M D / 4 registers of Q. For
// D > 64 this is too much: there Q is reloaded for every tile. For D = 256, 16 rows of O alone take 128 registers,
// hence M = 1.
//
// Shared memory: Q [B_r][D], then STAGES stages each for tiles of K and of V, [B_c][D] each; half of them are being
// read while the other half is filled. With 4 warps: 48 KB for D = 64 and 96, 64 KB for D = 128, the limit per block on
// Turing (sm_75).

template <typename T_, int D_, int WARPS_, int M_ = 2, int B_c_ = 32>
struct Shape {
    using T = T_;
    static constexpr int D = D_, WARPS = WARPS_, M = M_, B_c = B_c_, THREADS = 32 * WARPS;
    static constexpr int WARP_ROWS = 16 * M, B_r = WARPS * WARP_ROWS;
    static constexpr int BLOCKS = 8 / WARPS;  // per SM: registers allow two warps per scheduler
    static constexpr int STAGES = D <= 64 ? 4 : 2;
    static constexpr bool HOLDS_Q = D <= 64;
    static constexpr int TILE = B_c * D, K_AT = B_r * D, V_AT = K_AT + STAGES * TILE;  // in elements
    static constexpr int BYTES = (V_AT + STAGES * TILE) * sizeof(T);
};

// Fragments: one lane's registers. Lanes and rows as in common/cuda/mma.cuh.
template <class S>
using Scores = float[S::M][S::B_c / 8][4];
template <class S>
using Weights = unsigned[S::B_c / 16][S::M][4];
template <class S>
using Output = float[S::M][S::D / 8][4];
template <class S>
using Query = unsigned[S::D / 16][S::M][4];

// ----------------------------------------------------------------------------------------------- 2. Products
//
// `shared` is the start of the block's shared memory; *_at: lane_start (or lane_start_b) of a tile in it.

// Columns 16 i ... 16 i + 15 of the warp's rows of Q.
template <int D, int M, typename T>
__device__ __forceinline__ void load_query(unsigned (&q)[M][4], const T* shared, unsigned q_at, int i) {
    UNROLL
    for (int m = 0; m < M; ++m)
        ldmatrix_x4(q[m][0], q[m][1], q[m][2], q[m][3], shared + block_at<D>(q_at, m, i));
}

// s = Q K^T for one tile of K.   S: D, T and HOLDS_Q as in Shape; s [M][B_c / 8][4], query [D / 16][M][4]
template <class S, int M, int N>
__device__ __forceinline__ void multiply_qk(float (&s)[M][N][4], unsigned (&query)[S::D / 16][M][4],
                                            const typename S::T* shared, unsigned q_at, unsigned k_at) {
    UNROLL
    for (int i = 0; i < S::D / 16; ++i) {
        auto& q = query[i];
        if constexpr (!S::HOLDS_Q) load_query<S::D>(q, shared, q_at, i);
        UNROLL
        for (int g = 0; g < N / 2; ++g) {
            unsigned k[2][2];
            ldmatrix_x4(k[0][0], k[0][1], k[1][0], k[1][1], shared + block_at<S::D>(k_at, g, i));
            UNROLL
            for (int j = 0; j < 2 * M; ++j) {
                float(&d)[4] = s[j % M][2 * g + j / M];
                if (i == 0) d[0] = d[1] = d[2] = d[3] = 0;
                mma_m16n8k16<typename S::T>(d, q[j % M], k[j / M]);
            }
        }
    }
}

// o += P V for one tile of V, or for some of its columns.   o [M][columns / 8][4], p [B_c / 16][M][4]
template <class S, int M, int N, int K>
__device__ __forceinline__ void multiply_pv(float (&o)[M][N][4], const unsigned (&p)[K][M][4],
                                            const typename S::T* shared, unsigned v_at) {
    UNROLL
    for (int i = 0; i < N / 2; ++i) {
        UNROLL
        for (int g = 0; g < K; ++g) {
            unsigned v[2][2];
            ldmatrix_x4_trans(v[0][0], v[0][1], v[1][0], v[1][1], shared + block_at<S::D>(v_at, g, i));
            UNROLL
            for (int j = 0; j < 2 * M; ++j)
                mma_m16n8k16<typename S::T>(o[j % M][2 * i + j / M], p[g][j % M], v[j / M]);
        }
    }
}

// Keys begin, begin + 1, ... end - 1 of a tile. Either bound may be outside of it.
struct KeyRange {
    int begin, end;
};

// Sets s = -infinity except for the keys range(row); rows are counted from the warp's first.
template <int M, int N, typename F>
__device__ __forceinline__ void hide_outside(float (&s)[M][N][4], F range) {
    const int lane = threadIdx.x % 32;
    UNROLL
    for (int r = 0; r < 2 * M; ++r) {
        const KeyRange seen = range(mma::row(lane, r));
        UNROLL
        for (int c = 0; c < 2 * N; ++c) {
            const int key = mma::col(lane, c);
            if (key < seen.begin || key >= seen.end) by_row(s)(r, c) = -INFINITY;
        }
    }
}

// -------------------------------------------------------------------------------------------------- 3. Block
//
// A block computes up to B_r rows of one head. Blocks of the same head are consecutive, so that they find its K and V
// in the L2 cache; the last rows come first, since they take longest under a causal mask. Heads that share K and V are
// also consecutive.
//
template <class S>
struct Rows {
    using T = typename S::T;
    unsigned batch, head;
    int start, count;              // the block's rows of its head
    int warp_start, warp_count;    // those of this warp
    const T *query, *key, *value;  // this head's; query starts at the block's first row
    T* out;                        // starts at this warp's first row
    float* lse;                    // the same, or nullptr
    int64_t out_row;               // row stride of out, in elements

    // Everything except the pointers.
    __device__ __forceinline__ Rows(unsigned batch, unsigned head, int start, int count)
        : batch(batch),
          head(head),
          start(start),
          count(count),
          warp_start(start + static_cast<int>(threadIdx.x) / 32 * S::WARP_ROWS),
          warp_count(min(start + count - warp_start, S::WARP_ROWS)) {}

    // Block x of batch * heads * ceil(S_q / rows), rows <= B_r.
    __device__ __forceinline__ explicit Rows(const AttentionArguments& a, int rows = S::B_r) {
        const int warp = threadIdx.x / 32;
        const unsigned q_blocks = static_cast<unsigned>(ceil_div(a.S_q, int64_t{rows}));
        const unsigned batch_head = blockIdx.x / q_blocks;
        const unsigned heads = static_cast<unsigned>(a.heads);
        batch = batch_head / heads;
        head = batch_head % heads;
        const unsigned kv_head = head / static_cast<unsigned>(a.heads / a.kv_heads);
        start = static_cast<int>(q_blocks - 1 - blockIdx.x % q_blocks) * rows;
        count = static_cast<int>(a.S_q - start < rows ? a.S_q - start : rows);
        query = static_cast<const T*>(a.query) + batch * a.query_strides.batch + head * a.query_strides.head +
                start * a.query_strides.row;
        key = static_cast<const T*>(a.key) + batch * a.key_strides.batch + kv_head * a.key_strides.head;
        value = static_cast<const T*>(a.value) + batch * a.value_strides.batch + kv_head * a.value_strides.head;
        warp_start = start + warp * S::WARP_ROWS;
        warp_count = min(count - warp * S::WARP_ROWS, S::WARP_ROWS);
        const int64_t row = batch_head * a.S_q + warp_start;
        out = static_cast<T*>(a.out) + row * a.head_dim, out_row = a.head_dim;
        lse = a.lse == nullptr ? nullptr : a.lse + row;
    }
};

// ---------------------------------------------------------------------------------------------------- 4. Keys
//
// Which keys a block and each of its warps see. A warp visits its own subset of the block's tiles; a tile is B_c keys.

// Called for one key at a time.
using KeyVisitor = void (&)(int key);

template <class K, class S>
concept Keys = requires(const K keys, Scores<S>& s, int t, int row, int key, float score, KeyVisitor visit) {
    // Whether `begin` can be greater than 0, and whether `skip` can be nonzero
    { K::BEGINS_LATE } -> std::convertible_to<bool>;
    { K::JUMPS } -> std::convertible_to<bool>;

    // The first key of tile 0; the number of tiles that the block visits, possibly 0
    { keys.first } -> std::convertible_to<int>;
    { keys.tiles } -> std::convertible_to<int>;
    // This warp's own tiles, those with a key that one of its rows sees: begin ... end - 1, none if begin >= end
    { keys.begin } -> std::convertible_to<int>;
    { keys.end } -> std::convertible_to<int>;

    // The number of keys from the start of tile t to the end of what the block reads
    { keys.left(t) } -> std::same_as<int>;
    // The number of keys between tiles t - 1 and t (t = 0: between `first` and tile 0), a multiple of B_c
    requires !K::JUMPS || requires { { keys.skip(t) } -> std::same_as<int>; };

    // Whether tile t needs hide(), which sets the scores of keys that a row may not see to -infinity
    { keys.masked(t) } -> std::same_as<bool>;
    keys.hide(s, t);

    // For compute_nan_again(): whether any tile has a hidden key; visits the keys that a row of the head sees; applies
    // the mask tensor to a scaled score
    { keys.hides_keys() } -> std::same_as<bool>;
    keys.for_each_seen(row, visit);
    { keys.masked(score, row, key) } -> std::same_as<float>;
};

// Additional members for kernels with options; all are optional.
//
//   keys.drop(p, t)              zeroes the weights of tile t that dropout removes
//   keys.end_of_row(shift, sum)  the final factor of a row's output, and its lse: RowEnd
//   keys.takes(row, key)         whether dropout keeps a weight; keys.finish(again, out): the last step of a SeenRow
struct PlainRowEnd {
    float factor, lse;
};
template <class K>
__device__ __forceinline__ auto end_of_row(const K& keys, float row_max, float sum) {
    if constexpr (requires { keys.end_of_row(row_max, sum); })
        return keys.end_of_row(row_max, sum);
    else
        return PlainRowEnd{final_factor(sum), logsumexp_of(row_max, sum)};
}
template <class K, class P>
__device__ __forceinline__ void drop(const K& keys, P& p, int t) {
    if constexpr (requires { keys.drop(p, t); }) keys.drop(p, t);
}
template <class K>
__device__ __forceinline__ bool takes(const K& keys, int row, int key) {
    if constexpr (requires { keys.takes(row, key); })
        return keys.takes(row, key);
    else
        return true;
}
template <class K, class Row, typename T>
__device__ __forceinline__ void finish(const K& keys, Row& again, T* out) {
    if constexpr (requires { keys.finish(again, out); })
        keys.finish(again, out);
    else
        again.write(out);
}

// -------------------------------------------------------------------------------------------------- 5. Output
//
// Writes o / sum to global memory through the warp's own rows of the Q tile, so that stores are 16 bytes wide.
//
// PLAIN: rows in 16-byte pieces, see TileLoader.

template <class S, bool PLAIN, class K>
__device__ __forceinline__ void store_output(const AttentionArguments& a, const Rows<S>& block, const K& keys,
                                             typename S::T* shared, const Output<S>& o, const RowState<S::M>& rows) {
    using T = typename S::T;
    constexpr int D = S::D, M = S::M, WARP_ROWS = S::WARP_ROWS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    T* tile = shared + warp * WARP_ROWS * D;
    __syncwarp();  // all lanes have finished reading Q: without any tile of keys there was no barrier
    UNROLL
    for (int r = 0; r < 2 * M; ++r) {
        const int row = mma::row(lane, r);
        const auto end = end_of_row(keys, rows.row_max[r], quad_sum(rows.sum[r]));
        const float factor = end.factor;
        if (block.lse != nullptr && lane % 4 == 0 && row < block.warp_count) block.lse[row] = end.lse;
        UNROLL
        for (int n = 0; n < D / 8; ++n)  // two columns of each group of 8
            *reinterpret_cast<unsigned*>(swizzled<D>(tile, row, n) + mma::col(lane, 0)) =
                pack<T>(by_row(o)(r, 2 * n) * factor, by_row(o)(r, 2 * n + 1) * factor);
    }
    __syncwarp();
    UNROLL
    for (int i = 0; i < WARP_ROWS * D / 8; i += 32) {
        const int row = (i + lane) / (D / 8), chunk = (i + lane) % (D / 8);
        if (row >= block.warp_count || chunk * 8 >= a.head_dim) continue;
        const T* from = swizzled<D>(tile, row, chunk);
        T* to = block.out + row * block.out_row + chunk * 8;
        if constexpr (PLAIN) {
            *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
        } else {
            for (int d = 0; d < 8 && chunk * 8 + d < a.head_dim; ++d) to[d] = from[d];
        }
    }
}

// Recomputes rows with a NaN from their visible keys: seen_row.cuh. The warp has already written all of its rows.
template <class S, Keys<S> K>
__device__ __forceinline__ void compute_nan_again(const AttentionArguments& a, const Rows<S>& block,
                                                  const K& keys, const Output<S>& o) {
    using T = typename S::T;
    constexpr int M = S::M, WARP_ROWS = S::WARP_ROWS;
    unsigned marked = 0;
    UNROLL
    for (int i = 0; i < 2 * M; ++i) {
        float sum = 0;
        UNROLL
        for (int n = 0; n < S::D / 8; ++n) sum += o[i / 2][n][i % 2 * 2] + o[i / 2][n][i % 2 * 2 + 1];
        marked |= (sum != sum) << i;
    }
    attention::for_each_marked_row<WARP_ROWS>(marked, [&](int i) {
        const int row = block.warp_start + i;
        if (i >= block.warp_count) return;
        attention::SeenRow<T, S::D> again(block.query + (row - block.start) * a.query_strides.row, a.head_dim);
        keys.for_each_seen(row, [&](int key) {
            if (again.lost()) return;
            const float score = again.product(block.key + key * a.key_strides.row) * a.scale;
            const T* value = block.value + key * a.value_strides.row;
            again.add(keys.masked(score, row, key), takes(keys, row, key) ? value : nullptr);
        });
        finish(keys, again, block.out + i * block.out_row);
    });
}

// ---------------------------------------------------------------------------------------------------- 6. Loop
//
// One iteration, STAGES = 2:         issue the loads of K of tile t + 2 and V of tile t + 1
//                                    P = weights of tile t;   S = Q K^T of tile t + 1;   O += P V of tile t
//                                    mask S; raise the running max if S requires it
//
// factor: multiplies the scores, after hide(), to convert them to base 2

template <class S, bool PLAIN, Keys<S> K>
__device__ __forceinline__ void forward(const AttentionArguments& a, const Rows<S>& block,
                                              const K& keys, float factor, typename S::T* shared) {
    using T = typename S::T;
    constexpr int D = S::D, B_c = S::B_c, STAGES = S::STAGES, AHEAD = STAGES / 2;
    const int warp = threadIdx.x / 32;

    using Loader = TileLoader<T, D, S::THREADS, PLAIN>;
    Loader k_loader(block.key + keys.first * a.key_strides.row, a.key_strides.row, a.head_dim);
    Loader v_loader(block.value + keys.first * a.value_strides.row, a.value_strides.row, a.head_dim);
    const auto load = [&](Loader& loader, int t, int stages_at) {
        if constexpr (K::JUMPS) loader.skip(keys.skip(t));
        loader.template load<B_c>(shared + stages_at + t % STAGES * S::TILE, keys.left(t));
    };
    const auto load_k = [&](int t) { load(k_loader, t, S::K_AT); };
    const auto load_v = [&](int t) { load(v_loader, t, S::V_AT); };
    Loader(block.query, a.query_strides.row, a.head_dim).template load<S::B_r>(shared, block.count);
    load_k(0);
    cp_async_commit();
    UNROLL
    for (int i = 0; i < AHEAD; ++i) load_k(i + 1), load_v(i);
    cp_async_commit();

    const unsigned q_at = warp * S::WARP_ROWS * D + lane_start<D>();
    const unsigned k_at = S::K_AT + lane_start_b<D>(), v_at = S::V_AT + lane_start<D>();
    RowState<S::M> rows;
    Scores<S> s;
    Weights<S> p;
    Query<S> q;
    Output<S> o;
    clear(o);

    const auto compute_weights = [&](int t) {  // from s, as prepare() left it
        weigh<T>(p, rows, s, factor);
        drop(keys, p, t);
    };
    const auto prepare = [&](int t) {  // makes s, just computed, ready for weigh()
        float top[2 * S::M];
        bool exceeded = needs_rescale(top, rows, s, factor);
        if (keys.masked(t)) {
            keys.hide(s, t);
            exceeded = needs_rescale(top, rows, s, factor);
        }
        if (exceeded) rescale(rows, o, top, factor);
    };

    cp_async_wait<1>();  // Q and the first tile of K
    __syncthreads();
    if constexpr (S::HOLDS_Q) {
        UNROLL
        for (int i = 0; i < D / 16; ++i) load_query<D>(q[i], shared, q_at, i);
    }
    if (keys.end > 0 && (!K::BEGINS_LATE || keys.begin == 0)) {
        multiply_qk<S>(s, q, shared, q_at, k_at);
        prepare(0);
    }
    NO_UNROLL
    for (int t = 0; t < keys.tiles; ++t) {
        if (t % AHEAD == 0) {  // the next AHEAD tiles have arrived, and all warps are done with the previous AHEAD
            cp_async_wait<0>();
            __syncthreads();
            UNROLL
            for (int i = 0; i < AHEAD; ++i) load_k(t + AHEAD + 1 + i), load_v(t + AHEAD + i);
            cp_async_commit();
        }
        const unsigned k_next = k_at + (t + 1) % STAGES * S::TILE, v_now = v_at + t % STAGES * S::TILE;
        if (K::BEGINS_LATE && t < keys.begin) {
            if (t + 1 < keys.begin || t + 1 >= keys.end) continue;
            multiply_qk<S>(s, q, shared, q_at, k_next);
            prepare(t + 1);
        } else if (t + 1 < keys.end) {
            compute_weights(t);
            multiply_qk<S>(s, q, shared, q_at, k_next);
            multiply_pv<S>(o, p, shared, v_now);
            prepare(t + 1);
        } else if (t < keys.end) {
            compute_weights(t);
            multiply_pv<S>(o, p, shared, v_now);
        }
    }
    store_output<S, PLAIN>(a, block, keys, shared, o, rows);
    if (keys.hides_keys()) compute_nan_again(a, block, keys, o);
}

// -------------------------------------------------------------------------------------------------- 7. Launch

// Arguments: an AttentionArguments with a stream.
template <class S, class Arguments>
void launch_forward(void (*kernel)(Arguments), const Arguments& a, int rows = S::B_r) {
    const unsigned blocks = grid_blocks(a.batch * a.heads * ceil_div(a.S_q, int64_t{rows}), "query");
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
    kernel<<<blocks, S::THREADS, S::BYTES, a.stream>>>(a);
    CUDA_CHECK_LAUNCH();
}

}  // namespace flash
