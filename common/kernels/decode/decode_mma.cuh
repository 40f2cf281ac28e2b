// decode_mma.cuh - one warp's attention over tiles of 16 tokens on tensor cores, fp16 and bf16.
//
//   MmaWarp::load_queries     loads the queries of a unit into registers; empties the state
//   MmaWarp::copy             starts copying a tile of K and V to shared memory
//   MmaWarp::add_tile         accumulates a tile that has arrived into the state
//   MmaWarp::store_state      stores the state to shared memory
//
// The queries that share a K/V head are the rows of A: S [queries, 16 tokens] = Q K^T, then O [queries, head_dim] += P
// V. One mma reads its piece of K or V for all queries at once. With a single query 15 of 16 rows are idle, but this
// still takes fewer instructions than dot products spread over lanes, since nothing is converted or reduced; memory
// never waits for it.
//
// A tile belongs to one warp, from the copy to the last mma: no block-wide barriers, only __syncwarp.
#pragma once
#include "common/cuda/attention_states.cuh"
#include "common/cuda/cp_async.cuh"
#include "common/cuda/ldmatrix.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/decode/cache_layout.cuh"

// D: head_dim rounded up, 64 or 128. HALVES: 1 for up to 8 queries (rows 0 ... 7 of A), 2 for up to 16.
template <typename T, int D, int HALVES>
struct MmaWarp {
    using Element = T;
    static constexpr int COLS = D;
    static constexpr int HEADS = 8 * HALVES;
    static constexpr int VECTOR = 8;  // elements per copy: 16 bytes, a chunk
    static constexpr int CHUNKS = D / VECTOR;
    static constexpr int TILE_BYTES = 2 * TILE * D * static_cast<int>(sizeof(T));  // K and V

    unsigned q[D / 16][4];       // A operands: 16 columns of the queries each
    float o[D / 8][4];           // accumulators of P V: 8 columns of the output each
    float m[HALVES], l[HALVES];  // for rows g and g + 8 (g = lane / 4); l only over this lane's tokens

    // query [heads][head_dim], row stride `stride` in elements, global; 0 past its rows and columns
    __device__ __forceinline__ void load_queries(const T* query, int64_t stride, int heads, int head_dim) {
        const int lane = threadIdx.x % 32;
        UNROLL
        for (int i = 0; i < 4; ++i) {
            const int head = mma::a_row(lane, i), col = mma::a_col(lane, i);
            const unsigned* pairs = reinterpret_cast<const unsigned*>(query + head * stride + col);
            const int cols = i % 2 < HALVES && head < heads ? head_dim - col : 0;  // columns from `col` on
            UNROLL
            for (int k = 0; k < D / 16; ++k) q[k][i] = 16 * k < cols ? pairs[8 * k] : 0;
        }
        UNROLL
        for (int half = 0; half < HALVES; ++half) {
            m[half] = -INFINITY;
            l[half] = 0.0f;
        }
        UNROLL
        for (int n = 0; n < D / 8; ++n) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f;
    }

    // tile: K [TILE][D], then V [TILE][D], chunks swizzled (ldmatrix.cuh), shared
    // k, v: the tile's first rows [tokens][head_dim], global; nothing past them is read, the rest becomes 0
    static __device__ __forceinline__ void copy(unsigned char* tile, const T* k, const T* v, int tokens, int head_dim,
                                                bool) {
        T* k_tile = reinterpret_cast<T*>(tile);
        const int lane = threadIdx.x % 32;
        if (tokens == TILE && head_dim == D) {  // 4 KB or 2 KB each, contiguous: address arithmetic is free
            UNROLL
            for (int i = 0; i < TILE * CHUNKS / 32; ++i) {
                const int at = 32 * i + lane, row = at / CHUNKS, chunk = at % CHUNKS;
                cp_async<16>(mma::swizzled<D>(k_tile, row, chunk), k + VECTOR * at);
                cp_async<16>(mma::swizzled<D>(k_tile + TILE * D, row, chunk), v + VECTOR * at);
            }
        } else {
            NO_UNROLL
            for (int at = lane; at < TILE * CHUNKS; at += 32) {
                const int row = at / CHUNKS, chunk = at % CHUNKS, from = row * head_dim + VECTOR * chunk;
                const bool inside = row < tokens && VECTOR * chunk < head_dim;
                cp_async_zfill<16>(mma::swizzled<D>(k_tile, row, chunk), k + from, inside);
                cp_async_zfill<16>(mma::swizzled<D>(k_tile + TILE * D, row, chunk), v + from, inside);
            }
        }
    }

    __device__ __forceinline__ void add_tile(const unsigned char* tile, int tokens, int, float scale_log2) {
        const int lane = threadIdx.x % 32;
        const T* k_tile = reinterpret_cast<const T*>(tile);
        const T* v_tile = k_tile + TILE * D;

        // S, tokens 0 ... 7 and 8 ... 15
        float s[2][4] = {};
        UNROLL
        for (int k = 0; k < D / 16; ++k) {
            unsigned b[4];
            mma::ldmatrix_x4(b[0], b[1], b[2], b[3],
                             mma::swizzled<D>(k_tile, lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
            mma::mma_m16n8k16<T>(s[0], q[k], {b[0], b[1]});
            mma::mma_m16n8k16<T>(s[1], q[k], {b[2], b[3]});
        }

        // The online softmax, row by row: a row is spread over the 4 lanes of a quad
        UNROLL
        for (int half = 0; half < HALVES; ++half) {
            float m_new = m[half];
            UNROLL
            for (int j = 0; j < 4; ++j) {
                float& score = s[j / 2][2 * half + j % 2];
                score = mma::d_col(lane, j % 2) + 8 * (j / 2) < tokens ? score * scale_log2 : -INFINITY;
                m_new = fmaxf(m_new, score);
            }
            m_new = quad_max(m_new);
            const float shift = shift_of(m_new), rescale = exp2_approx(m[half] - shift);
            m[half] = m_new;
            l[half] *= rescale;
            UNROLL
            for (int j = 0; j < 4; ++j) {
                float& p = s[j / 2][2 * half + j % 2];
                p = exp2_approx(p - shift);
                l[half] += p;
            }
            UNROLL
            for (int n = 0; n < D / 8; ++n) {
                o[n][2 * half] *= rescale;
                o[n][2 * half + 1] *= rescale;
            }
        }
        unsigned p[4];
        mma::accumulators_as_a<T>(p, s[0], s[1]);
        if constexpr (HALVES == 1) p[1] = p[3] = 0;

        // O
        UNROLL
        for (int n = 0; n < D / 8; n += 2) {
            unsigned b[4];
            mma::ldmatrix_x4_trans(b[0], b[1], b[2], b[3],
                                   mma::swizzled<D>(v_tile, lane / 8 % 2 * 8 + lane % 8, n + lane / 16));
            mma::mma_m16n8k16<T>(o[n], p, {b[0], b[1]});
            mma::mma_m16n8k16<T>(o[n + 1], p, {b[2], b[3]});
        }
    }

    // Stores to index `index` of `states`, which has room for as many rows as there are queries.
    template <int STRIDE>
    __device__ __forceinline__ void store_state(const attention::StateArray<STRIDE>& states, int index) {
        const int lane = threadIdx.x % 32;
        UNROLL
        for (int half = 0; half < HALVES; ++half) {
            l[half] = quad_sum(l[half]);
            const int head = mma::d_row(lane, 2 * half);
            if (head >= states.heads) continue;
            const int row = index * states.heads + head;
            if (lane % 4 == 0) states.ml[row] = make_float2(m[half], l[half]);
            UNROLL
            for (int n = 0; n < D / 8; ++n)
                *reinterpret_cast<float2*>(states.o + row * STRIDE + 8 * n + mma::d_col(lane, 0)) =
                    make_float2(o[n][2 * half], o[n][2 * half + 1]);
        }
    }
};
