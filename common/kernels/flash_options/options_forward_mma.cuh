// options_forward_mma.cuh - the forward pass with options of 16-bit rows that lie in pieces of 16 bytes.
//
//   1. Shapes     FragmentShape        what a block, a warp and a thread own; shared memory
//   2. Scores     cap_and_mask         softcap and mask tensor, on a warp's accumulators
//   3. Weights    drop                 dropout, on the operands of P V
//   4. Kernel     ForwardRows          the loop over tiles of keys
//                 options_fragments_kernel
//   5. Launcher   forward_in_fragments
//
// The loop is that of common/cuda/flash_forward.cuh, whose products it uses: scores, weights and output stay in
// registers; a pass computes the weights of tile t, Q K^T of tile t + 1 and P V of tile t, which the compiler mixes,
// and copies K of tile t + 2 and V of t + 1 meanwhile; one barrier per tile. Only tiles with a hidden key are masked.
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/check.h"
#include "common/cuda/cp_async.cuh"
#include "common/cuda/flash_forward.cuh"
#include "common/cuda/flash_softmax.cuh"
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
#include "common/kernels/flash_options/options_tiles.cuh"

// ------------------------------------------------------------------------------------------------- 1. Shapes

// A warp owns 16 M rows. Why M = 2 where registers allow it: see Shape of flash_forward.cuh. For head_dim 256 they do
// not: O of 16 rows alone takes 128 of them.
template <typename T_, int D_, int M_, int WARPS_, int B_c_>
struct FragmentShape {
    using T = T_;
    static constexpr int D = D_, M = M_, WARPS = WARPS_, B_c = B_c_, B_r = 16 * M * WARPS;
    static constexpr int THREADS = 32 * WARPS, BLOCKS = 8 / WARPS;  // per multiprocessor: registers allow 8 warps
    static constexpr bool HOLDS_Q = false;
    // Shared memory, in elements: Q [B_r][D], two tiles of K and two of V, [B_c][D] each
    static constexpr int TILE = B_c * D, K_AT = B_r * D, V_AT = K_AT + 2 * TILE;
    static constexpr int BYTES = (V_AT + 2 * TILE) * sizeof(T);
};

// ------------------------------------------------------------------------------------------------- 2. Scores

// q.k -> scores in units of log2(e), with the cap and the mask tensor.   mask: of this head, see mask_from
template <int M, int N>
__device__ __forceinline__ void cap_and_mask(float (&s)[M][N][4], const OptionsArguments& a, const AttentionMask& mask,
                                             const Sequence& sequence, int first_row, int first_key) {
    const bool masked = mask.kind != MaskKind::NONE;
    const float unit = masked ? 1.0f : LOG2_E;
    if (a.softcap > 0) {
        const float inside = a.scale / a.softcap, outside = a.softcap * unit;
        UNROLL
        for (int i = 0; i < 4 * M * N; ++i) {
            float& x = s[i / (4 * N)][i / 4 % N][i % 4];
            x = outside * tanh_of(x * inside);
        }
    } else {
        const float factor = a.scale * unit;
        UNROLL
        for (int i = 0; i < 4 * M * N; ++i) s[i / (4 * N)][i / 4 % N][i % 4] *= factor;
    }
    if (!masked) return;
    const int lane = threadIdx.x % 32;
    UNROLL
    for (int i = 0; i < 4 * M * N; ++i) {
        float& x = s[i / (4 * N)][i / 4 % N][i % 4];
        const int row = first_row + i / (4 * N) * 16 + mma::d_row(lane, i % 4);
        const int key = first_key + i / 4 % N * 8 + mma::d_col(lane, i % 4);
        x = row < sequence.rows && key < sequence.keys ? in_log2(masked_score(x, mask, 0, row, key)) : -INFINITY;
    }
}

// ------------------------------------------------------------------------------------------------ 3. Weights

// Weights that dropout leaves out become 0.   head: batch * heads + head
template <int M, int K>
__device__ __forceinline__ void drop(unsigned (&p)[K][M][4], const Dropout& dropout, int64_t seed, int64_t head,
                                     int first_row, int first_key) {
    UNROLL
    for (int i = 0; i < K * M; ++i) {
        const int k = i / M, m = i % M;
        const Kept<false> kept = keep_tile(dropout, seed, head, first_row / 16 + m, first_key / 16 + k);
        UNROLL
        for (int at = 0; at < 4; ++at) p[k][m][at] &= kept.mask(at / 2, at % 2);
    }
}

// ------------------------------------------------------------------------------------------------- 4. Kernel

template <class S, Work WORK>
struct ForwardRows : FragmentRows<S> {
    using Base = FragmentRows<S>;
    using typename Base::Loader, typename Base::T;
    using Base::D, Base::M, Base::a, Base::shared, Base::place, Base::sequence, Base::head, Base::warp_start;
    using Base::keys;
    static constexpr int B_c = S::B_c;
    const float factor;  // what makes the scores powers of two
    const int64_t seed;
    flash::RowState<M> state;
    float o[M][D / 8][4];

    __device__ __forceinline__ ForwardRows(const OptionsArguments& a, const Place& place, T* shared)
        : Base(a, place, shared),
          factor(WORK == Work::PLAIN ? a.scale * LOG2_E : 1.0f),
          seed(seed_of<WORK == Work::DROPOUT>(a.dropout)) {}

    // state and o from all tiles.   CAREFUL: see hidden_reached()
    template <bool CAREFUL>
    __device__ __forceinline__ void attend() {
        const unsigned q_at = Base::warp_at() + flash::lane_start<D>();
        const unsigned k_at = S::K_AT + flash::lane_start_b<D>(), v_at = S::V_AT + flash::lane_start<D>();
        float s[M][B_c / 8][4];
        unsigned p[B_c / 16][M][4], q[D / 16][M][4];
        state = flash::RowState<M>();
        mma::clear(o);
        Loader k_loader = this->key_loader(a.key, a.key_strides), v_loader = this->key_loader(a.value, a.value_strides);
        const auto load = [&](Loader& from, int t, int slots_at) {
            from.template load<B_c>(shared + slots_at + t % 2 * S::TILE, keys.end_key - keys.first - t * B_c);
        };
        const auto add_output = [&](int t) {
            if constexpr (CAREFUL)
                multiply_pv_taken<S>(o, p, shared + S::V_AT + t % 2 * S::TILE);
            else
                flash::multiply_pv<S>(o, p, shared, v_at + t % 2 * S::TILE);
        };

        load(k_loader, 0, S::K_AT);
        NO_UNROLL
        for (int t = -1; t < keys.tiles; ++t) {
            cp_async_wait_all();  // K of tile t + 1 and V of t are here, and all warps are done with those before
            __syncthreads();
            load(k_loader, t + 2, S::K_AT);
            load(v_loader, t + 1, S::V_AT);
            if (t + 1 < keys.begin || t >= keys.end) continue;
            if (t >= keys.begin && t + 1 < keys.end) {
                weigh(p, s, t);
                flash::multiply_qk<S>(s, q, shared, q_at, k_at + (t + 1) % 2 * S::TILE);
                add_output(t);
            } else if (t >= keys.begin) {
                weigh(p, s, t);
                add_output(t);
                continue;
            } else {
                flash::multiply_qk<S>(s, q, shared, q_at, k_at + (t + 1) % 2 * S::TILE);
            }
            prepare(s, t + 1);
        }
        cp_async_wait_all();
    }

    // Weights of tile t.
    __device__ __forceinline__ void weigh(unsigned (&p)[B_c / 16][M][4], const float (&s)[M][B_c / 8][4], int t) {
        flash::weigh<T>(p, state, s, factor);
        if constexpr (WORK == Work::DROPOUT)
            drop(p, a.dropout, seed, place.number * a.heads + head, warp_start, keys.first + t * B_c);
    }

    // Scores of tile t, just computed, for weigh().
    __device__ __forceinline__ void prepare(float (&s)[M][B_c / 8][4], int t) {
        const int start = keys.first + t * B_c;
        if constexpr (WORK != Work::PLAIN)
            cap_and_mask(s, a, mask_from(a.mask, place.number, head), sequence, warp_start, start);
        float top[2 * M];
        bool exceeded = flash::needs_rescale(top, state, s, factor);
        if (!keys.full(t)) {
            flash::hide_outside(s, [&](int row) { return this->seen(row, start); });
            exceeded = flash::needs_rescale(top, state, s, factor);
        }
        if (exceeded) flash::rescale(state, o, top, factor);
    }

    __device__ __forceinline__ void store_output() {
        const int lane = threadIdx.x % 32;
        float factors[2 * M];
        UNROLL
        for (int r = 0; r < 2 * M; ++r) {
            const int row = mma::row(lane, r);
            const RowEnd end = end_of_row(a, head, state.shift[r], quad_sum(state.sum[r]));
            factors[r] = end.factor;
            if (lane % 4 == 0 && row < this->warp_rows)
                a.lse[number_at(a, sequence, head, warp_start + row)] = end.lse;
        }
        this->store(a.out, o, factors);
    }
};

template <class S, Work WORK>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) options_fragments_kernel(const OptionsArguments a) {
    extern __shared__ __align__(128) unsigned char bytes[];
    const Place place = place_of_block(a.cu_seqlens_q, a.S_q, a.batch, S::B_r);
    if (place.number < 0) return;
    ForwardRows<S, WORK> block(a, place, reinterpret_cast<typename S::T*>(bytes));
    block.row_loader(a.query, a.query_strides).template load<S::B_r>(block.shared, block.rows);
    block.template attend<false>();
    bool nan = false;
    UNROLL
    for (int m = 0; m < S::M; ++m) nan |= attention::has_nan(block.o[m]);
    if (hidden_reached(a, nan)) block.template attend<true>();
    block.store_output();
}

// ----------------------------------------------------------------------------------------------- 5. Launcher

// Whether it did: rows in pieces, and as much shared memory as a block needs. For head_dim 256 that is 192 KB, which
// only large GPUs have.
template <typename T>
bool forward_in_fragments(const OptionsArguments& a) {
    if (!in_pieces<T>(a)) return false;
    const auto run = [&]<int D>() {
        using S = FragmentShape<T, D, (D <= 128 ? 2 : 1), (D <= 128 ? 4 : 8), (D == 128 ? 32 : 64)>;
        if (S::BYTES > device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) return false;
        const int64_t blocks = a.heads * tiles_of(a.batch, a.S_q, a.cu_seqlens_q != nullptr, S::B_r);
        const bool plain = a.softcap == 0 && a.mask.kind == MaskKind::NONE && a.scale > 0;
        const auto kernel = a.dropout.seed != nullptr ? options_fragments_kernel<S, Work::DROPOUT>
                            : plain                   ? options_fragments_kernel<S, Work::PLAIN>
                                                      : options_fragments_kernel<S, Work::SCORES>;
        launch_options<S>(kernel, blocks, "query", a.stream, a);
        return true;
    };
    return a.head_dim <= 64    ? run.template operator()<64>()
           : a.head_dim <= 128 ? run.template operator()<128>()
                               : run.template operator()<256>();
}
