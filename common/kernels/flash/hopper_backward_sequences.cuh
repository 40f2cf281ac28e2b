// hopper_backward_sequences.cuh - which rows see which keys, for hopper_backward.cuh: windows, packed sequences.
//
//   SequenceKeys    the policy
//
// In the workspaces (dQ's sum, lse and delta) every packed sequence starts at a multiple of 128 rows (PaddedRows), so a
// tile of rows belongs to one sequence. In the tensors the sequence may end within a tile, which then holds rows of the
// next sequence: their lse in the workspace is infinity, so P is 0.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/hopper_rows.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/seen_row.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/attention_policies.cuh"
#include "common/kernels/flash/flash_sequences.cuh"
#include "common/kernels/flash/hopper_backward_work.cuh"

struct SequenceKeys {
    static constexpr int PADDED_TILE = 128;
    static constexpr bool MORE_CTAS_THAN_WORK_TILES = true;  // packed sequences may have fewer blocks than the bound
    struct Problem : BackwardProblem {
        const int *cu_seqlens_q, *cu_seqlens_k;  // [batch + 1] of packed sequences, or nullptr
        int batch, heads;                        // sequences; heads of query
        bool lower_right;
        int window_left, window_right;  // -1: unbounded
        float inside;     // scale / softcap; scores are then its tanh, and factor is softcap * log2(e)
        float log2_to_t;  // softcap: from log2(P) + lse to tanh
        Dropout dropout;
        int64_t key_head, key_row;  // strides of dK and dV, in elements
        int* nan;                   // set to 1 if dK or dV has a NaN
    };

    // A work tile: B_c keys of a sequence, and the tiles of rows that see any of them. Keys that no row sees get one
    // tile, in which they are hidden.
    struct alignas(16) WorkTile {
        int batch_kv, k_start, first, tiles;
        Band<int> band;
        int row, key, sum_row;  // where the sequence starts in Q, K and the workspaces
        int dropout_heads;      // added to a head's index for its random numbers
        bool adds;              // whether it contributes to dQ
        int2 whole[2];          // steps that start at these rows see all keys of a group: from, to

        // A tile's turns go from its first block of keys to its last.
        __device__ __forceinline__ int turn(int row) const {
            return k_start <= max(row + band.lowest, 0) ? 0 : k_start;
        }
    };

    // A work tile as the consumers keep it: in shared memory, since it is too large for their registers.
    struct ConsumerWorkTile {
        const WorkTile* work;
        __device__ __forceinline__ explicit ConsumerWorkTile(const WorkTile& at) : work(&at) {}
        __device__ __forceinline__ const WorkTile& operator*() const { return *work; }
        __device__ __forceinline__ const WorkTile* operator->() const { return work; }
    };

    // The blocks of a head: those of the first sequence, the second, ... A CTA's numbers increase, so it resumes the
    // search for a block's sequence at the previous one.
    template <class S>
    struct WorkOrder {
        const Problem& a;
        int sequence = 0, block = 0;  // the sequence of the last work tile, its first block
        static constexpr int NONE = -1;

        static __device__ __forceinline__ bool skips(const WorkTile& work) { return work.tiles == NONE; }

        __device__ __forceinline__ WorkTile at(int number) {
            WorkTile work = {};
            if (number >= a.batch_kv * a.k_blocks) return work;
            HeadAndBlock place(a, number);
            work.batch_kv = place.batch_kv;
            int rows = a.S_q, keys = a.S_k;
            if (a.cu_seqlens_q != nullptr) {
                if (place.block < block) sequence = block = 0;
                for (;; ++sequence) {
                    if (sequence == a.batch) return work.tiles = NONE, work;
                    keys = rows_of(a.cu_seqlens_k, sequence, a.S_k, work.key);
                    const int blocks = ceil_div(keys, S::B_c);
                    if (place.block < block + blocks) break;
                    block += blocks;
                }
                place.block -= block;
                rows = rows_of(a.cu_seqlens_q, sequence, a.S_q, work.row);
                work.sum_row = (work.row & -PADDED_TILE) + sequence * PADDED_TILE;  // as in PaddedRows
                work.dropout_heads = sequence * a.heads;
            }
            work.band.set(rows, keys, a.causal, a.lower_right, a.window_left, a.window_right);
            work.k_start = place.block * S::B_c;
            const int begin = work.band.first_row_of(work.k_start);
            const int end = work.band.end_of_rows(min(work.k_start + S::B_c, keys) - 1);
            work.adds = begin < end;
            work.first = work.adds ? begin / S::B_r : 0;
            work.tiles = work.adds ? ceil_div(end, S::B_r) - work.first : 1;
            UNROLL
            for (int group = 0; group < S::GROUPS; ++group) {
                const int key = work.k_start + group * hopper::GROUP_ROWS, last = key + hopper::GROUP_ROWS - 1;
                work.whole[group] = {last < keys ? last - work.band.highest : rows,
                                     min(rows, key - work.band.lowest + 1) - S::STEP};
            }
            return work;
        }
    };

    template <class S>
    static __device__ __forceinline__ bool hides(const Problem&, const WorkTile& work, int /*key*/, int group,
                                                 int row) {
        const int2 whole = work.whole[group];
        return row < whole.x || row > whole.y;
    }
    template <class S, int N8>
    static __device__ __forceinline__ void hide(float (&s)[N8][4], const Problem&, const WorkTile& work, int warp_key,
                                                int row) {
        int begin[2], end[2];
        UNROLL
        for (int i = 0; i < 2; ++i) {
            const int key = work.k_start + warp_key + mma::d_row(threadIdx.x % 32, 2 * i);
            begin[i] = key - work.band.highest - row;
            end[i] = key < work.band.keys ? key - work.band.lowest + 1 - row : 0;
        }
        hopper::hide_outside(s, begin, end);
    }

    template <class S, int D8>
    static __device__ __forceinline__ void store(const Problem& a, const WorkTile& work, void* gradient, int key,
                                                 const float (&d)[D8][4], float factor) {
        using T = typename S::T;
        if (attention::has_nan(d)) atomicOr(a.nan, 1);
        T* to = static_cast<T*>(gradient) + work.batch_kv * a.key_head + (work.key + key) * a.key_row;
        hopper::write_rows<T>(to, d, {factor, factor}, work.band.keys - key, a.head_dim, a.key_row);
    }
};
