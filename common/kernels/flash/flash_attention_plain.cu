// flash_attention_plain.cu - attention for every type, layout, option and head_dim, forward: what the faster kernels do
// not support.
//
//   1. Shapes      RowShape                        what a block owns; shared memory
//   2. Kernel      flash_plain_kernel              the loop over tiles of keys
//   3. Launcher    plain_forward, block_forward    pick the shape
//
//   flash_sequences.cuh   which rows of which sequence a block has
//   plain_tiles.cuh       tiles and matmuls, for all three types
//   plain_scores.cuh      softcap, masks and dropout on accumulators
//   plain_walks.cuh       which tiles of keys a block visits
//
// FlashAttention-2 (Dao 2023, arXiv:2307.08691, Algorithm 1) in its simplest form: a warp owns 16 rows of Q and their
// output; a block loops over the keys tile by tile with the online softmax of common/cuda/flash_softmax.cuh. K of the
// next tile is copied during P V, V during Q K^T and the softmax. Every option is a uniform branch: an unused one costs
// a comparison.
//
// The row sum, and so lse, includes all weights; dropout removes some from P V only. A sink is one more weight in the
// sum, without a value: it is added after the last tile. NaN and infinity at hidden keys reach no row: hidden_reached()
// of plain_scores.cuh.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/cp_async.cuh"
#include "common/cuda/exp2.cuh"
#include "common/cuda/flash_softmax.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/mma.cuh"
#include "common/cuda/seen_row.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/plain_launch.h"
#include "common/kernels/flash/plain_scores.cuh"
#include "common/kernels/flash/flash_sequences.cuh"
#include "common/kernels/flash/plain_tiles.cuh"
#include "common/kernels/flash/plain_walks.cuh"

// ------------------------------------------------------------------------------------------------- 1. Shapes

template <typename T_, int D_, int WARPS_, int B_c_>
struct RowShape {
    using T = T_;
    static constexpr int D = D_, WARPS = WARPS_, B_c = B_c_, B_r = 16 * WARPS, THREADS = 32 * WARPS;
    // Shared memory, in elements
    static constexpr int Q_AT = 0;                                      // Q [B_r][D]
    static constexpr int K_AT = Q_AT + Tile<T, D>::elements(B_r);       // K [B_c][D]
    static constexpr int V_AT = K_AT + Tile<T, D>::elements(B_c);       // V [B_c][D]
    static constexpr int P_AT = V_AT + Tile<T, D>::elements(B_c);       // P [B_r][B_c], each warp its own rows
    static constexpr int BYTES = (P_AT + Tile<T, B_c>::elements(B_r)) * sizeof(T);
};

// ------------------------------------------------------------------------------------------------- 2. Kernel

template <class S, class Tiles>
__global__ void __launch_bounds__(S::THREADS)
    flash_plain_kernel(const FlashArguments a, bool pieces, const Tiles tiles) {
    using T = typename S::T;
    constexpr int D = S::D, B_c = S::B_c, N = B_c / 8;
    extern __shared__ __align__(128) unsigned char bytes[];
    T* shared = reinterpret_cast<T*>(bytes);
    const Place place = place_of_block(a.cu_seqlens_q, a.S_q, a.batch, a.heads, S::B_r, true);
    if (place.number < 0) return;
    const Sequence sequence(a, place.number);
    const int head = place.head, kv_head = head / static_cast<int>(a.heads / a.kv_heads);
    const int rows = min(sequence.rows - place.start, S::B_r);
    const auto walk = tiles.template keys<B_c>(sequence, place, rows);
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;  // this warp's first row of the block
    const AttentionMask mask = mask_from(a.mask, place.number, head);
    const int64_t seed = seed_of(a.dropout);

    const auto load_keys = [&](const void* tensor, const RowStrides& strides, int at, const auto& tile) {
        const T* from =
            row_at(static_cast<const T*>(tensor), strides, place.number, kv_head, sequence.first_key + tile.start());
        load_tile<T, B_c, D, S::THREADS>(shared + at, from, strides.row, tile.left(), a.head_dim, pieces);
    };
    load_tile<T, S::B_r, D, S::THREADS>(
        shared + S::Q_AT,
        row_at(static_cast<const T*>(a.query), a.query_strides, place.number, head, sequence.first_row + place.start),
        a.query_strides.row, rows, a.head_dim, pieces);

    flash::RowState<1> state;
    float o[1][D / 8][4];
    T* p = shared + S::P_AT;
#pragma unroll 1
    for (bool careful = false, done = false; !done; careful = true) {  // a second pass only if hidden_reached()
        state = flash::RowState<1>();
        mma::clear(o);
        if (walk.more()) load_keys(a.key, a.key_strides, S::K_AT, walk);
#pragma unroll 1
        for (auto tile = walk, next = walk; tile.more(); tile = next) {
            cp_async_wait_all();
            __syncthreads();  // K has arrived, and all threads are done with the last tile's V
            load_keys(a.value, a.value_strides, S::V_AT, tile);
            float s[1][N][4], slopes[1][N][4], top[2];
            mma::clear(s);
            flash::multiply<false, false, D, D, D>(s, shared, S::Q_AT, first, S::K_AT, 0);
            apply_options(s, slopes, a, mask, sequence, place.start + first, tile.start());
            UNROLL
            for (int n = 0; n < 4 * N; ++n) s[0][n / 4][n % 4] = in_log2(s[0][n / 4][n % 4]);
            if (flash::needs_rescale(top, state, s, 1.0f)) flash::rescale(state, o, top, 1.0f);
            const unsigned kept =
                keep<N>(a.dropout, seed, place.number * a.heads + head, place.start + first, tile.start());
            UNROLL
            for (int n = 0; n < 2 * N; ++n) {
                const int r = n % 2, at = 4 * (n / 2) + 2 * r;  // a pair of accumulators
                float w[2];
                UNROLL
                for (int i = 0; i < 2; ++i) {
                    w[i] = exp2_approx(s[0][n / 2][2 * r + i] - state.row_max[r]);
                    state.sum[r] += w[i];
                    if (!(kept >> (at + i) & 1)) w[i] = 0;
                }
                store_pair<B_c>(p, first + mma::row(lane, r), 8 * (n / 2) + mma::col(lane, 0), w[0], w[1]);
            }
            cp_async_wait_all();
            __syncthreads();  // V has arrived, and all threads are done with K
            next.advance();
            if (next.more()) load_keys(a.key, a.key_strides, S::K_AT, next);
            if (careful)
                multiply_taken<false, B_c, D, B_c>(o, shared, S::P_AT, first, S::V_AT, 0);
            else
                flash::multiply<false, true, B_c, D, B_c>(o, shared, S::P_AT, first, S::V_AT, 0);
        }
        cp_async_wait_all();
        done = careful || !hidden_reached(a, attention::has_nan(o[0]));
    }

    UNROLL
    for (int r = 0; r < 2; ++r) {
        const int row = first + mma::row(lane, r);
        const RowEnd end = end_of_row(a, head, state.row_max[r], quad_sum(state.sum[r]));
        if (row >= rows) continue;
        if (a.lse != nullptr && lane % 4 == 0) a.lse[number_at(a, sequence, head, place.start + row)] = end.lse;
        T* out = row_at(static_cast<T*>(a.out), a.out_strides, place.number, head,
                        sequence.first_row + place.start + row);
        UNROLL
        for (int n = 0; n < D / 8; ++n)
            store_row(out, 8 * n + mma::col(lane, 0), a.head_dim, o[0][n][2 * r] * end.factor,
                      o[0][n][2 * r + 1] * end.factor);
    }
}

// ----------------------------------------------------------------------------------------------- 3. Launcher

template <class S, class Tiles>
static void launch(const FlashArguments& a, const Tiles& tiles) {
    using T = typename S::T;
    const int64_t blocks = a.heads * tiles_of(a.batch, a.S_q, a.packed(), S::B_r);
    launch_plain<S>(flash_plain_kernel<S, Tiles>, blocks, "query", a.stream, a, in_pieces<T>(a), tiles);
}

void plain_forward(const FlashArguments& a) {
    check_row_count(a);
    for_type_and_head_dim(a, [&]<typename T, int D>() {
        if constexpr (sizeof(T) == 2)
            launch<RowShape<T, D, 4, 32>>(a, AllTiles());
        else
            launch<RowShape<T, D, (D <= 128 ? 4 : 2), (D <= 64 ? 32 : 16)>>(a, AllTiles());
    });
}

void block_forward(const FlashArguments& a, const BlockLists& lists) {
    check_row_count(a);
    const ListedTiles tiles = {lists, {}, static_cast<int>(a.S_q) / lists.block, static_cast<int>(a.S_k) / lists.block};
    for_type_and_head_dim(a, [&]<typename T, int D>() {
        if constexpr (D <= MAX_BLOCK_HEAD_DIM) launch<RowShape<T, D, 2, (sizeof(T) * D <= 256 ? 32 : 16)>>(a, tiles);
    });
}
