// decode_simt.cuh - one warp's attention over tiles of 16 tokens without tensor cores, any dtype; decode_mma.cuh
// documents the functions.
//
// A lane owns COLS_PER_LANE neighboring columns of the queries, of every key and value, and of the output; a warp reads
// a row at once. The 16 dot products of a query are then spread over the lanes, and reduced such that each lane ends up
// with one of them (reduce_scores), so that it computes one exponential instead of 16.
#pragma once
#include "common/cuda/attention_states.cuh"
#include "common/cuda/cp_async.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/decode/cache_layout.cuh"

// D: head_dim rounded up, 64 or 128. HEADS: the maximum number of queries of a unit.
template <typename T, int D, int HEADS_>
struct SimtWarp {
    using Element = T;
    static constexpr int COLS = D;
    static constexpr int HEADS = HEADS_;
    static constexpr int TILE_BYTES = 2 * TILE * D * static_cast<int>(sizeof(T));

    static constexpr int COLS_PER_LANE = D / 32;
    static constexpr int VECTOR = COLS_PER_LANE;  // elements per copy
    static constexpr int PIECE_BYTES = COLS_PER_LANE * static_cast<int>(sizeof(T));  // 8 or 16

    float q[HEADS][COLS_PER_LANE];
    float o[HEADS][COLS_PER_LANE];
    float m[HEADS], l[HEADS];  // l only over this lane's tokens, each duplicated in another lane

    __device__ __forceinline__ void load_queries(const T* query, int64_t stride, int heads, int head_dim) {
        const int first = threadIdx.x % 32 * COLS_PER_LANE;
        UNROLL
        for (int h = 0; h < HEADS; ++h) {
            m[h] = -INFINITY;
            l[h] = 0.0f;
            UNROLL
            for (int c = 0; c < COLS_PER_LANE; ++c) {
                const bool inside = h < heads && first + c < head_dim;
                q[h][c] = inside ? static_cast<float>(query[h * stride + first + c]) : 0.0f;
                o[h][c] = 0.0f;
            }
        }
    }

    // tile: [K, V][TILE][32 lanes][COLS_PER_LANE], shared. If a lane's columns cannot be copied as one piece (vectors
    // is false), they are copied one by one.
    static __device__ __forceinline__ void copy(unsigned char* tile, const T* k, const T* v, int tokens, int head_dim,
                                                bool vectors) {
        T* to = reinterpret_cast<T*>(tile) + threadIdx.x % 32 * COLS_PER_LANE;
        const int first = threadIdx.x % 32 * COLS_PER_LANE;
        if (vectors) {
            UNROLL
            for (int token = 0; token < TILE; ++token)
                cp_async_zfill<PIECE_BYTES>(to + token * D, k + token * head_dim + first,
                                            token < tokens && first < head_dim);
            UNROLL
            for (int token = 0; token < TILE; ++token)
                cp_async_zfill<PIECE_BYTES>(to + (TILE + token) * D, v + token * head_dim + first,
                                            token < tokens && first < head_dim);
        } else {
            for (int token = 0; token < TILE; ++token)
                UNROLL
                for (int c = 0; c < COLS_PER_LANE; ++c) {
                    const bool inside = token < tokens && first + c < head_dim;
                    to[token * D + c] = inside ? k[token * head_dim + first + c] : T(0.0f);
                    to[(TILE + token) * D + c] = inside ? v[token * head_dim + first + c] : T(0.0f);
                }
        }
    }

    __device__ __forceinline__ void add_tile(const unsigned char* tile, int tokens, int heads, float scale_log2) {
        const T* from = reinterpret_cast<const T*>(tile) + threadIdx.x % 32 * COLS_PER_LANE;
        float x[TILE][COLS_PER_LANE];  // a tile of K, then of V
        load(x, from);
        float p[HEADS] = {};  // weights of the lane's token
        UNROLL
        for (int h = 0; h < HEADS; ++h) {
            if (h >= heads) break;
            float s[TILE];
            UNROLL
            for (int token = 0; token < TILE; ++token) {
                s[token] = 0.0f;
                UNROLL
                for (int c = 0; c < COLS_PER_LANE; ++c) s[token] += q[h][c] * x[token][c];
            }
            const float sum = reduce_scores(s);
            const float score = token_of_lane() < tokens ? sum * scale_log2 : -INFINITY;
            const float m_new = fmaxf(m[h], warp_max(score));
            const float shift = shift_of(m_new), rescale = exp2_approx(m[h] - shift);
            p[h] = exp2_approx(score - shift);
            m[h] = m_new;
            l[h] = l[h] * rescale + p[h];
            UNROLL
            for (int c = 0; c < COLS_PER_LANE; ++c) o[h][c] *= rescale;
        }
        load(x, from + TILE * D);
        UNROLL
        for (int h = 0; h < HEADS; ++h) {
            if (h >= heads) break;
            UNROLL
            for (int token = 0; token < TILE; ++token) {
                const float weight = __shfl_sync(FULL_WARP, p[h], lane_of_token(token));
                UNROLL
                for (int c = 0; c < COLS_PER_LANE; ++c) o[h][c] += weight * x[token][c];
            }
        }
    }

    template <int STRIDE>
    __device__ __forceinline__ void store_state(const attention::StateArray<STRIDE>& states, int index) {
        const int lane = threadIdx.x % 32;
        UNROLL
        for (int h = 0; h < HEADS; ++h) {
            if (h >= states.heads) break;
            const int row = index * states.heads + h;
            const float l_all = 0.5f * warp_sum(l[h]);  // every token is counted twice
            if (lane == 0) states.ml[row] = make_float2(m[h], l_all);
            UNROLL
            for (int c = 0; c < COLS_PER_LANE; ++c) states.o[row * STRIDE + lane * COLS_PER_LANE + c] = o[h][c];
        }
    }

private:
    static __device__ __forceinline__ int token_of_lane() { return threadIdx.x % 32 / 2; }
    static __device__ __forceinline__ int lane_of_token(int token) { return 2 * token; }

    static __device__ __forceinline__ void load(float (&x)[TILE][COLS_PER_LANE], const T* from) {
        struct alignas(PIECE_BYTES) Piece {
            T values[COLS_PER_LANE];
        };
        UNROLL
        for (int token = 0; token < TILE; ++token) {
            const Piece piece = *reinterpret_cast<const Piece*>(from + token * D);
            UNROLL
            for (int c = 0; c < COLS_PER_LANE; ++c) x[token][c] = static_cast<float>(piece.values[c]);
        }
    }

    // Every lane has a summand of all 16 scores; returns the complete score of token_of_lane(). In each step a lane
    // keeps half of its scores and gives the other half to a partner: 8 + 4 + 2 + 1 + 1 shuffles, where 16 warp_sums
    // take 80.
    static __device__ __forceinline__ float reduce_scores(float (&s)[TILE]) {
        exchange_halves<8>(s);
        exchange_halves<4>(s);
        exchange_halves<2>(s);
        exchange_halves<1>(s);
        return s[0] + __shfl_xor_sync(FULL_WARP, s[0], 1);
    }

    // Reduces 2 HALF scores per lane to HALF.
    template <int HALF>
    static __device__ __forceinline__ void exchange_halves(float (&s)[TILE]) {
        const bool upper = threadIdx.x & static_cast<unsigned>(2 * HALF);
        UNROLL
        for (int i = 0; i < HALF; ++i) {
            const float given = upper ? s[i] : s[i + HALF], kept = upper ? s[i + HALF] : s[i];
            s[i] = kept + __shfl_xor_sync(FULL_WARP, given, 2 * HALF);
        }
    }
};
