// options_fragments.cuh - what the kernels share that keep weights in registers, as operands of the next product.
//
//   Work                which of the options an instance of a kernel knows
//   WarpKeys            which tiles of keys a warp goes through
//   put                 a few neighboring elements; only those that are NaN so far, if asked
//   FragmentRows        what a block has that owns rows: where it stands, and how its result is stored
//   multiply_pv_taken   O += P V where V may hold NaN
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/flash_forward.cuh"
#include "common/cuda/flash_tiles.cuh"
#include "common/cuda/float_conversion.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash_options/options.h"
#include "common/kernels/flash_options/options_sequences.cuh"
#include "common/kernels/flash_options/options_tiles.cuh"

// All know packed sequences, windows and sinks: what is asked at the ends of a row.
//
//             forward                                        backward
// PLAIN       nothing else, and scale > 0                    nothing else
// SCORES      softcap, a mask tensor, any scale              softcap
// DROPOUT     all of it                                      dropout
enum class Work { PLAIN, SCORES, DROPOUT };

// A block goes through the tiles 0 ... tiles - 1, which begin at key `first`. A warp computes begin ... end - 1 of
// them, and all its rows see all of full_begin ... full_end - 1.
template <class S>
struct WarpKeys {
    int first, end_key, tiles, begin, end, full_begin, full_end;

    // rows: of the block; warp_start, warp_rows: of this warp, 0 or less if it has none
    __device__ __forceinline__ WarpKeys(const Sequence& s, int start, int rows, int warp_start, int warp_rows) {
        constexpr int B_c = S::B_c;
        first = s.first_key_of(start) / B_c * B_c, end_key = s.end_of_keys(start + rows - 1);
        tiles = end_key > first ? ceil_div(end_key - first, B_c) : 0;
        begin = tiles + 1, end = full_begin = full_end = 0;
        if (warp_rows <= 0) return;
        const int last = warp_start + warp_rows - 1;
        const int from = s.first_key_of(warp_start), to = s.end_of_keys(last);
        if (from >= to) return;
        begin = (from - first) / B_c, end = ceil_div(to - first, B_c);
        full_begin = ceil_div(s.first_key_of(last) - first, B_c);
        full_end = max(s.end_of_keys(warp_start) - first, 0) / B_c;
    }
    __device__ __forceinline__ bool full(int t) const { return t >= full_begin && t < full_end; }
};

// pieces: unsigned or uint4, to an address that is a multiple of their size
template <typename T, typename Pieces>
__device__ __forceinline__ void put(T* to, const Pieces& pieces, bool only_nan) {
    if (only_nan) {
        const T* elements = reinterpret_cast<const T*>(&pieces);
        UNROLL
        for (int i = 0; i < static_cast<int>(sizeof(Pieces) / sizeof(T)); ++i)
            if (to_float(to[i]) != to_float(to[i])) to[i] = elements[i];
    } else {
        *reinterpret_cast<Pieces*>(to) = pieces;
    }
}

// S: T, D, B_r, B_c, THREADS and M, of which a warp has 16 M rows
template <class S>
struct FragmentRows {
    using T = typename S::T;
    using Loader = flash::TileLoader<T, S::D, S::THREADS, true>;
    static constexpr int D = S::D, M = S::M, WARP_ROWS = 16 * M;
    const OptionsArguments& a;
    T* const shared;
    const Place place;
    const Sequence sequence;
    const int head, kv_head, rows, warp_start, warp_rows;  // rows of the block; of this warp, 0 or less if it has none
    const WarpKeys<S> keys;

    __device__ __forceinline__ FragmentRows(const OptionsArguments& a, const Place& place, T* shared)
        : a(a),
          shared(shared),
          place(place),
          sequence(a, place.number),
          head(place.head),
          kv_head(head / static_cast<int>(a.heads / a.kv_heads)),
          rows(min(sequence.rows - place.start, S::B_r)),
          warp_start(place.start + static_cast<int>(threadIdx.x) / 32 * WARP_ROWS),
          warp_rows(min(sequence.rows - warp_start, WARP_ROWS)),
          keys(sequence, place.start, rows, warp_start, warp_rows) {}

    // The rows of the block, and the keys from the first tile on.
    __device__ __forceinline__ Loader row_loader(const void* tensor, const RowStrides& strides) const {
        return Loader(row_at(static_cast<const T*>(tensor), strides, place.number, head,
                             sequence.first_row + place.start),
                      strides.row, a.head_dim);
    }
    __device__ __forceinline__ Loader key_loader(const void* tensor, const RowStrides& strides) const {
        return Loader(row_at(static_cast<const T*>(tensor), strides, place.number, kv_head,
                             sequence.first_key + keys.first),
                      strides.row, a.head_dim);
    }
    // Where this warp's rows of a tile [B_r][D] begin.
    __device__ __forceinline__ static int warp_at() { return static_cast<int>(threadIdx.x) / 32 * WARP_ROWS * D; }
    // The keys that a row of this warp sees, counted from `start`.
    __device__ __forceinline__ flash::KeyRange seen(int row, int start) const {
        return {sequence.first_key_of(warp_start + row) - start, sequence.end_of_keys(warp_start + row) - start};
    }

    // The warp's rows of x, times factor, to a tensor that lies as the output: through those of the first tile in
    // shared memory, which this warp alone has read. So it is written 16 bytes at a time.
    __device__ __forceinline__ void store(void* tensor, const float (&x)[M][D / 8][4], const float (&factor)[2 * M],
                                          bool only_nan = false) {
        const int lane = threadIdx.x % 32;
        T* tile = shared + warp_at();
        __syncwarp();
        UNROLL
        for (int r = 0; r < 2 * M; ++r) {
            UNROLL
            for (int n = 0; n < D / 8; ++n)
                store_pair<D>(tile, mma::row(lane, r), 8 * n + mma::col(lane, 0), mma::by_row(x)(r, 2 * n) * factor[r],
                              mma::by_row(x)(r, 2 * n + 1) * factor[r]);
        }
        __syncwarp();
        T* to = row_at(static_cast<T*>(tensor), a.out_strides, place.number, head, sequence.first_row + warp_start);
        UNROLL
        for (int i = 0; i < WARP_ROWS * D / 8; i += 32) {
            const int row = (i + lane) / (D / 8), piece = (i + lane) % (D / 8);
            if (row < warp_rows && piece * 8 < a.head_dim)
                put(to + row * a.out_strides.row + piece * 8,
                    *reinterpret_cast<const uint4*>(Tile<T, D>::at(tile, row, piece)), only_nan);
        }
    }
};

// multiply_pv where V may hold NaN and infinity: a weight of 0 takes nothing of V. Slow.
//   tile [16 K][D]: V, shared; col: the first column of V that o has
template <class S, int M, int N, int K>
__device__ __forceinline__ void multiply_pv_taken(float (&o)[M][N][4], const unsigned (&p)[K][M][4],
                                                  typename S::T* tile, int col = 0) {
    const int lane = threadIdx.x % 32;
    NO_UNROLL
    for (int key = 0; key < 16 * K; ++key) {  // its weights of a row lie in one lane of the quad
        const int half = key / 8 % 2 * 2, from = lane / 4 * 4 + key % 8 / 2;
        float weight[2 * M];
        UNROLL
        for (int r = 0; r < 2 * M; ++r) {
            const unsigned pair = __shfl_sync(FULL_WARP, p[key / 16][r / 2][half + r % 2], from);
            const float2 two = mma::unpack<typename S::T>(pair);
            weight[r] = key % 2 == 0 ? two.x : two.y;
        }
        UNROLL
        for (int c = 0; c < 2 * N; ++c) {
            const float x = Tile<typename S::T, S::D>::element(tile, key, col + mma::col(lane, c));
            UNROLL
            for (int r = 0; r < 2 * M; ++r)
                if (weight[r] != 0) mma::by_row(o)(r, c) += weight[r] * x;
        }
    }
}
