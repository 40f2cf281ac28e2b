// options_backward_mma.cuh - the gradients of attention with options, of 16-bit rows that lie in pieces of 16 bytes.
//
//   1. Between     gradients_of_fragments      P and dS of a tile, from its two products
//                  zero_outside                0 for hidden keys
//                  as_operands                 accumulators -> operands of the next product
//   2. Queries     QueryFragments, GradientRows, options_query_fragments_kernel    dQ: a warp owns rows
//   3. Keys        KeyFragments, GradientKeys, options_keys_fragments_kernel       dK, dV: a warp owns keys
//   4. Launcher    gradients_in_fragments
//
// What options_backward.cu says holds here, too. P and dS stay in registers: where a warp owns keys it computes
// S^T = K Q^T and dP^T = V dO^T, whose accumulators are operands of P^T dO and dS^T Q as those of S are of P V. So
// warps hand each other nothing, and there is one barrier per tile, while the next one is copied. Only tiles with a
// hidden key are masked.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/cp_async.cuh"
#include "common/cuda/exp2.cuh"
#include "common/cuda/flash_forward.cuh"
#include "common/cuda/flash_launch.h"
#include "common/cuda/flash_tiles.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/mma.cuh"
#include "common/cuda/seen_row.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash_options/options.h"
#include "common/kernels/flash_options/options_fragments.cuh"
#include "common/kernels/flash_options/options_launch.h"
#include "common/kernels/flash_options/options_scores.cuh"
#include "common/kernels/flash_options/options_sequences.cuh"

// ------------------------------------------------------------------------------------------------ 1. Between

// s = q.k -> m * P, and dp = dO.v -> dS.
//
//   numbers(m, n, i, lse, delta)    lse * log2(e) and delta of the row of s[m][n][i]
//   kept(m, n, i)                   whether dropout keeps that weight
template <Work WORK, int M, int N, typename Numbers, typename Kept>
__device__ __forceinline__ void gradients_of_fragments(float (&s)[M][N][4], float (&dp)[M][N][4],
                                                       const OptionsArguments& a, Numbers numbers, Kept kept) {
    const float inside = WORK == Work::SCORES ? a.scale / a.softcap : 0.0f;
    const float factor = (WORK == Work::SCORES ? a.softcap : a.scale) * LOG2_E;
    UNROLL
    for (int j = 0; j < 4 * M * N; ++j) {
        const int m = j / (4 * N), n = j / 4 % N, i = j % 4;
        float &p = s[m][n][i], &x = dp[m][n][i], slope = 1, lse, delta;
        numbers(m, n, i, lse, delta);
        if constexpr (WORK == Work::SCORES) p = tanh_of(p * inside), slope = 1 - p * p;
        p = exp2_approx(p * factor - lse);
        if constexpr (WORK == Work::DROPOUT) {
            const float taken = kept(m, n, i) ? a.dropout.factor : 0.0f;
            x = p * (taken * x - delta), p *= taken;
        } else {
            x = p * (x - delta) * slope;
        }
    }
}

// p = ds = 0 but for the columns range(row), both counted as hide_outside() does: whatever they are, NaN too.
template <int M, int N, typename F>
__device__ __forceinline__ void zero_outside(float (&p)[M][N][4], float (&ds)[M][N][4], F range) {
    const int lane = threadIdx.x % 32;
    UNROLL
    for (int r = 0; r < 2 * M; ++r) {
        const flash::KeyRange seen = range(mma::row(lane, r));
        UNROLL
        for (int c = 0; c < 2 * N; ++c) {
            const int col = mma::col(lane, c);
            if (col < seen.begin || col >= seen.end) mma::by_row(p)(r, c) = mma::by_row(ds)(r, c) = 0;
        }
    }
}

template <typename T, int M, int N>
__device__ __forceinline__ void as_operands(unsigned (&a)[N / 2][M][4], const float (&d)[M][N][4]) {
    UNROLL
    for (int i = 0; i < N / 2 * M; ++i)
        mma::accumulators_as_a<T>(a[i / M][i % M], d[i % M][2 * (i / M)], d[i % M][2 * (i / M) + 1]);
}

// ------------------------------------------------------------------------------------------------ 2. Queries

template <typename T_, int D_, int M_, int WARPS_>
struct QueryFragments {
    using T = T_;
    static constexpr int D = D_, M = M_, WARPS = WARPS_, B_c = 32, B_r = 16 * M * WARPS, THREADS = 32 * WARPS;
    static constexpr int BLOCKS = 8 / WARPS;  // per multiprocessor: registers allow 8 warps
    static constexpr bool HOLDS_Q = false;
    // Shared memory, in elements: Q and dO [B_r][D], two tiles of K and two of V, [B_c][D] each
    static constexpr int TILE = B_c * D, DO_AT = B_r * D, K_AT = 2 * B_r * D, V_AT = K_AT + 2 * TILE;
    static constexpr int BYTES = (V_AT + 2 * TILE) * sizeof(T);
};

template <class S, Work WORK>
struct GradientRows : FragmentRows<S> {
    using Base = FragmentRows<S>;
    using typename Base::Loader, typename Base::T;
    using Base::D, Base::M, Base::a, Base::shared, Base::place, Base::sequence, Base::head, Base::warp_start;
    using Base::keys;
    static constexpr int B_c = S::B_c, N = B_c / 8;
    const int64_t seed;
    float lse[2 * M], delta[2 * M], dq[M][D / 8][4];

    __device__ __forceinline__ GradientRows(const OptionsGradients& g, const Place& place, T* shared)
        : Base(g.forward, place, shared), seed(seed_of<WORK == Work::DROPOUT>(g.forward.dropout)) {
        UNROLL
        for (int r = 0; r < 2 * M; ++r) {
            const int row = mma::row(threadIdx.x % 32, r);
            lse[r] = INFINITY, delta[r] = 0;
            if (row >= this->warp_rows) continue;
            const int64_t at = number_at(a, sequence, head, warp_start + row);
            lse[r] = lse_of(a.lse[at]), delta[r] = g.delta[at];
        }
    }

    // dq from all tiles.   CAREFUL: see hidden_reached()
    template <bool CAREFUL>
    __device__ __forceinline__ void sum() {
        const unsigned q_at = Base::warp_at() + flash::lane_start<D>(), do_at = S::DO_AT + q_at;
        const unsigned k_at = S::K_AT + flash::lane_start_b<D>(), v_at = S::V_AT + flash::lane_start_b<D>();
        const unsigned k_turned = S::K_AT + flash::lane_start<D>();
        float s[M][N][4], dp[M][N][4];
        unsigned ds[N / 2][M][4], fragment[D / 16][M][4];
        mma::clear(dq);
        Loader k_loader = this->key_loader(a.key, a.key_strides), v_loader = this->key_loader(a.value, a.value_strides);
        const auto load = [&](int t) {
            const int left = keys.end_key - keys.first - t * B_c, slot = t % 2 * S::TILE;
            k_loader.template load<B_c>(shared + S::K_AT + slot, left);
            v_loader.template load<B_c>(shared + S::V_AT + slot, left);
        };
        load(0);
        NO_UNROLL
        for (int t = 0; t < keys.tiles; ++t) {
            cp_async_wait_all();  // tile t is here, and all warps are done with the one before
            __syncthreads();
            load(t + 1);
            if (t < keys.begin || t >= keys.end) continue;
            const unsigned slot = t % 2 * S::TILE;
            flash::multiply_qk<S>(s, fragment, shared, q_at, k_at + slot);
            flash::multiply_qk<S>(dp, fragment, shared, do_at, v_at + slot);
            const int start = keys.first + t * B_c;
            unsigned kept[M];
            UNROLL
            for (int m = 0; m < M; ++m)
                kept[m] = WORK == Work::DROPOUT ? keep<N>(a.dropout, seed, place.number * a.heads + head,
                                                          warp_start + 16 * m, start)
                                                : 0;
            gradients_of_fragments<WORK>(
                s, dp, a,
                [&](int m, int, int i, float& row_lse, float& row_delta) {
                    row_lse = lse[2 * m + i / 2], row_delta = delta[2 * m + i / 2];
                },
                [&](int m, int n, int i) { return kept[m] >> (4 * n + i) & 1; });
            if (!keys.full(t)) zero_outside(s, dp, [&](int row) { return this->seen(row, start); });
            as_operands<T>(ds, dp);
            if constexpr (CAREFUL)
                multiply_pv_taken<S>(dq, ds, shared + S::K_AT + slot);
            else
                flash::multiply_pv<S>(dq, ds, shared, k_turned + slot);
        }
        cp_async_wait_all();
    }
};

template <class S, Work WORK>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) options_query_fragments_kernel(const OptionsGradients g) {
    if (g.again != nullptr && *g.again == 0) return;
    extern __shared__ __align__(128) unsigned char bytes[];
    const OptionsArguments& a = g.forward;
    const Place place = place_of_block(a.cu_seqlens_q, a.S_q, a.batch, S::B_r);
    if (place.number < 0) return;
    GradientRows<S, WORK> block(g, place, reinterpret_cast<typename S::T*>(bytes));
    block.row_loader(a.query, a.query_strides).template load<S::B_r>(block.shared, block.rows);
    block.row_loader(g.grad_out, g.grad_out_strides).template load<S::B_r>(block.shared + S::DO_AT, block.rows);
    block.template sum<false>();
    bool nan = false;
    UNROLL
    for (int m = 0; m < S::M; ++m) nan |= attention::has_nan(block.dq[m]);
    if (hidden_reached(a, nan)) block.template sum<true>();
    float factors[2 * S::M];
    UNROLL
    for (int r = 0; r < 2 * S::M; ++r) factors[r] = a.scale;
    block.store(g.grad_query, block.dq, factors, g.again != nullptr);
}

// ------------------------------------------------------------------------------------------------ 3. Keys

// A warp owns 16 M keys and D / SPLIT columns of their dK and dV: SPLIT warps have the same keys, and compute their
// scores all alike.
template <typename T_, int D_, int M_, int SPLIT_>
struct KeyFragments {
    using T = T_;
    static constexpr int D = D_, M = M_, SPLIT = SPLIT_, KEY_WARPS = 4, WARPS = KEY_WARPS * SPLIT, COLS = D / SPLIT;
    static constexpr int B_r = 32, WARP_KEYS = 16 * M, B_c = WARP_KEYS * KEY_WARPS, THREADS = 32 * WARPS;
    static constexpr int BLOCKS = 8 / WARPS;  // per multiprocessor: registers allow 8 warps
    static constexpr bool HOLDS_Q = false;
    static_assert(COLS % 64 == 0 && B_r <= 32 && 2 * B_r <= THREADS);
    // Shared memory, in elements: K and V [B_c][D], two tiles of Q and two of dO, [B_r][D] each;
    // float: two times lse and delta, [B_r] each
    static constexpr int TILE = B_r * D, K_AT = 0, V_AT = B_c * D, Q_AT = 2 * B_c * D, DO_AT = Q_AT + 2 * TILE;
    static constexpr int NUMBERS_AT = DO_AT + 2 * TILE;
    static constexpr int BYTES = NUMBERS_AT * sizeof(T) + 4 * B_r * sizeof(float);
};

template <class S, Work WORK>
struct GradientKeys {
    using T = typename S::T;
    using Loader = flash::TileLoader<T, S::D, S::THREADS, true>;
    static constexpr int D = S::D, M = S::M, B_r = S::B_r, N = B_r / 8;
    const OptionsGradients& g;
    const OptionsArguments& a;
    T* const shared;
    const Place place;
    const Sequence sequence;
    const int group, count, warp, col, first, warp_keys;  // keys of the block; this warp's columns, first key and keys
    const int begin, end, full_begin, full_end;           // rows that see one of the warp's keys, and all
    const int64_t seed;
    float dk[M][S::COLS / 8][4], dv[M][S::COLS / 8][4];

    __device__ __forceinline__ GradientKeys(const OptionsGradients& g, const Place& place, T* shared)
        : g(g),
          a(g.forward),
          shared(shared),
          place(place),
          sequence(a, place.number),
          group(static_cast<int>(a.heads / a.kv_heads)),
          count(min(sequence.keys - place.start, S::B_c)),
          warp(static_cast<int>(threadIdx.x) / 32 % S::KEY_WARPS),
          col(static_cast<int>(threadIdx.x) / 32 / S::KEY_WARPS * S::COLS),
          first(place.start + warp * S::WARP_KEYS),
          warp_keys(min(sequence.keys - first, S::WARP_KEYS)),
          begin(sequence.first_row_of(first)),
          end(warp_keys > 0 ? sequence.end_of_rows(first + warp_keys - 1) : 0),
          full_begin(sequence.first_row_of(first + S::WARP_KEYS - 1)),
          full_end(warp_keys == S::WARP_KEYS ? sequence.end_of_rows(first) : 0),
          seed(seed_of<WORK == Work::DROPOUT>(a.dropout)) {}

    __device__ __forceinline__ void load_keys(const void* tensor, const RowStrides& strides, int at) const {
        Loader(row_at(static_cast<const T*>(tensor), strides, place.number, place.head,
                      sequence.first_key + place.start),
               strides.row, a.head_dim)
            .template load<S::B_c>(shared + at, count);
    }

    // Adds up the tiles of one head.   CAREFUL: see hidden_reached()
    template <bool CAREFUL>
    __device__ __forceinline__ void sum(int head) {
        const int from = sequence.first_row_of(place.start) / B_r * B_r;
        const int to = sequence.end_of_rows(place.start + count - 1);
        const unsigned k_at = S::K_AT + warp * S::WARP_KEYS * D + flash::lane_start<D>(), v_at = k_at + S::V_AT;
        const unsigned q_at = S::Q_AT + flash::lane_start_b<D>(), do_at = S::DO_AT + flash::lane_start_b<D>();
        const unsigned q_turned = S::Q_AT + flash::lane_start<D>() + col;
        const unsigned do_turned = S::DO_AT + flash::lane_start<D>() + col;
        const int lane = threadIdx.x % 32;
        float* const numbers = reinterpret_cast<float*>(shared + S::NUMBERS_AT);
        float s[M][N][4], dp[M][N][4];
        unsigned p[N / 2][M][4], ds[N / 2][M][4], fragment[D / 16][M][4];
        const int64_t row = sequence.first_row + from;
        Loader q_loader(row_at(static_cast<const T*>(a.query), a.query_strides, place.number, head, row),
                        a.query_strides.row, a.head_dim);
        Loader do_loader(row_at(static_cast<const T*>(g.grad_out), g.grad_out_strides, place.number, head, row),
                         g.grad_out_strides.row, a.head_dim);
        const float* const row_numbers =  // lse, then delta, of the rows of the first tile: one for each of 2 B_r threads
            (threadIdx.x < B_r ? a.lse : g.delta) + number_at(a, sequence, head, from) + threadIdx.x % B_r;
        const auto load = [&](int start, int slot) {
            q_loader.template load<B_r>(shared + S::Q_AT + slot * S::TILE, to - start);
            do_loader.template load<B_r>(shared + S::DO_AT + slot * S::TILE, to - start);
            if (threadIdx.x < 2 * B_r)
                cp_async_zfill<4>(numbers + slot * 2 * B_r + threadIdx.x, row_numbers + (start - from),
                                  start + static_cast<int>(threadIdx.x) % B_r < to);
        };
        __syncthreads();  // all warps are done with the head before
        load(from, 0);
        NO_UNROLL
        for (int start = from, slot = 0; start < to; start += B_r, slot ^= 1) {
            cp_async_wait_all();  // this tile is here, and all warps are done with the one before
            __syncthreads();
            load(start + B_r, slot ^ 1);
            if (start + B_r <= begin || start >= end) continue;
            const unsigned at = slot * S::TILE;
            flash::multiply_qk<S>(s, fragment, shared, k_at, q_at + at);
            flash::multiply_qk<S>(dp, fragment, shared, v_at, do_at + at);
            unsigned kept[2] = {};  // of the rows 2 (lane % 4) and the next one, and those 8 further on each time
            if constexpr (WORK == Work::DROPOUT) turn(kept, head, start);
            gradients_of_fragments<WORK>(
                s, dp, a,
                [&](int, int n, int i, float& row_lse, float& row_delta) {
                    const float* of_row = numbers + slot * 2 * B_r + mma::col(lane, 2 * n + i % 2);
                    row_lse = lse_of(of_row[0]), row_delta = of_row[B_r];
                },
                [&](int m, int n, int i) {
                    return kept[i % 2] >> (n / 2 * 8 * M + 4 * (2 * m + i / 2) + n % 2 * 2) & 1;
                });
            if (start < full_begin || start + B_r > full_end)
                zero_outside(s, dp, [&](int r) {
                    return flash::KeyRange{sequence.first_row_of(first + r) - start,
                                           sequence.end_of_rows(first + r) - start};
                });
            as_operands<T>(p, s);
            as_operands<T>(ds, dp);
            if constexpr (CAREFUL) {
                multiply_pv_taken<S>(dv, p, shared + S::DO_AT + at, col);
                multiply_pv_taken<S>(dk, ds, shared + S::Q_AT + at, col);
            } else {
                flash::multiply_pv<S>(dv, p, shared, do_turned + at);
                flash::multiply_pv<S>(dk, ds, shared, q_turned + at);
            }
        }
        cp_async_wait_all();
    }

    // keep() tells of rows lane / 4 and of keys 2 (lane % 4); here a lane has keys lane / 4 and rows 2 (lane % 4), and
    // asks the lane that knows. Bit 8 M i + j: bit j of keep() for the rows 16 i ... 16 i + 15 of the tile, shifted so
    // that the own key comes first.
    __device__ __forceinline__ void turn(unsigned (&kept)[2], int head, int start) const {
        const int lane = threadIdx.x % 32;
        unsigned known = 0;
        UNROLL
        for (int i = 0; i < B_r / 16; ++i) {
            const unsigned bits =
                keep<2 * M>(a.dropout, seed, place.number * a.heads + head, start + 16 * i, first);
            known |= bits << (8 * M * i);
        }
        UNROLL
        for (int e = 0; e < 2; ++e)
            kept[e] = __shfl_sync(FULL_WARP, known, (lane % 4 * 2 + e) * 4 + lane / 8) >> (lane / 4 % 2);
    }

    __device__ __forceinline__ void store(void* tensor, const float (&x)[M][S::COLS / 8][4], float factor) const {
        const int lane = threadIdx.x % 32;
        UNROLL
        for (int r = 0; r < 2 * M; ++r) {
            const int key = mma::row(lane, r);
            if (key >= warp_keys) continue;
            T* to = row_at(static_cast<T*>(tensor), g.grad_key_strides, place.number, place.head,
                           sequence.first_key + first + key);
            UNROLL
            for (int n = 0; n < S::COLS / 8; ++n) {
                const int at = col + 8 * n + mma::col(lane, 0);
                if (at < a.head_dim)
                    put(to + at, mma::pack<T>(mma::by_row(x)(r, 2 * n) * factor, mma::by_row(x)(r, 2 * n + 1) * factor),
                        g.again != nullptr);
            }
        }
    }
};

template <class S, Work WORK>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) options_keys_fragments_kernel(const OptionsGradients g) {
    if (g.again != nullptr && *g.again == 0) return;
    extern __shared__ __align__(128) unsigned char bytes[];
    const OptionsArguments& a = g.forward;
    const Place place = place_of_block(a.cu_seqlens_k, a.S_k, a.batch, S::B_c);
    if (place.number < 0) return;
    GradientKeys<S, WORK> block(g, place, reinterpret_cast<typename S::T*>(bytes));
    block.load_keys(a.key, a.key_strides, S::K_AT);
    block.load_keys(a.value, a.value_strides, S::V_AT);
    const auto heads = [&](auto add) {
        mma::clear(block.dk), mma::clear(block.dv);
        NO_UNROLL
        for (int i = 0; i < block.group; ++i) add(place.head * block.group + i);
    };
    heads([&](int head) { block.template sum<false>(head); });
    bool nan = false;
    UNROLL
    for (int m = 0; m < S::M; ++m) nan |= attention::has_nan(block.dk[m]) || attention::has_nan(block.dv[m]);
    if (hidden_reached(a, nan)) heads([&](int head) { block.template sum<true>(head); });
    block.store(g.grad_key, block.dk, a.scale);
    block.store(g.grad_value, block.dv, 1.0f);
}

// ----------------------------------------------------------------------------------------------- 4. Launcher

// Whether it did: no mask tensor, not a cap and dropout together, rows in pieces, and as much shared memory as the
// blocks need. For head_dim 256 that is 192 KB, which only large GPUs have.
template <typename T>
bool gradients_in_fragments(const OptionsGradients& g) {
    const OptionsArguments& a = g.forward;
    if (a.mask.kind != MaskKind::NONE || (a.softcap > 0 && a.dropout.seed != nullptr)) return false;
    if (!in_pieces<T>(a) || !in_pieces<T>(g.grad_out, g.grad_out_strides)) return false;
    const auto run = [&]<class Query, class Key>() {
        const int limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
        if (std::max(Query::BYTES, Key::BYTES) > limit) return false;
        const auto launch = [&]<Work WORK>() {
            const bool packed = a.cu_seqlens_q != nullptr;
            launch_options<Query>(options_query_fragments_kernel<Query, WORK>,
                                  a.heads * tiles_of(a.batch, a.S_q, packed, Query::B_r), "query", a.stream, g);
            launch_options<Key>(options_keys_fragments_kernel<Key, WORK>,
                                a.kv_heads * tiles_of(a.batch, a.S_k, packed, Key::B_c), "key", a.stream, g);
        };
        a.dropout.seed != nullptr ? launch.template operator()<Work::DROPOUT>()
        : a.softcap > 0           ? launch.template operator()<Work::SCORES>()
                                  : launch.template operator()<Work::PLAIN>();
        return true;
    };
    return a.head_dim <= 64    ? run.template operator()<QueryFragments<T, 64, 2, 4>, KeyFragments<T, 64, 2, 1>>()
           : a.head_dim <= 128 ? run.template operator()<QueryFragments<T, 128, 2, 4>, KeyFragments<T, 128, 1, 1>>()
                               : run.template operator()<QueryFragments<T, 256, 1, 8>, KeyFragments<T, 256, 1, 2>>();
}
