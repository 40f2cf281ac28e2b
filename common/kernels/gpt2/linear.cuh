// linear.cuh - a prefill's GEMM on Hopper: y = x @ weight^T + bias for a few hundred rows, where latency dominates.
//
//   1. LinearShape          tile sizes, stages, shared memory
//   2. load_tiles           producer: TMA loads of both operands; weights before the predecessor has finished
//   3. multiply             consumers: wgmma over the stages
//   4. sum_parts            split-K: partial sums to the CTA that finishes their columns, through DSMEM
//   5. load_bias, finish    epilogue: bias, gelu, and storing y
//   6. linear_kernel
//
// A tile of y is BM x BN, and every tile has its own CTA, all running at once. So there is no tile scheduler, and the
// time goes into what precedes the first wgmma and what follows the last one. To shorten it:
//
//   programmatic dependent launch    CTAs start, and load their weights, while the previous kernel finishes
//   split-K                          if there are few tiles, two CTAs of a cluster have half of K each
//   epilogue                         gelu; or writes queries, keys and values where attention reads them: in the cache
//
//   producer   w w w w | x x x x           w [BN][64], issued at once; x [BM][64], issued after the predecessor
//   groups               . wgmma ... | y   BM / 64 warpgroups, 64 rows each; a stage is an x and a w
//
// Split-K. CTA r of the cluster finishes columns r BN / SPLIT ... (r + 1) BN / SPLIT - 1 of the tile. The others send
// it their partial sums by st.async, 16 bytes per lane in fragment order, so a lane adds what lanes of the same number
// sent. The order of additions is fixed: bitwise reproducible.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include "common/cuda/check.h"
#include "common/cuda/dependent_launch.cuh"
#include "common/cuda/hopper_cluster.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/row_strides.h"
#include "common/cuda/unroll.cuh"
#include "common/kernels/gpt2/gelu.cuh"
#include "common/kernels/gpt2/gpt2.h"
#include "common/kernels/gpt2/vectors.cuh"

namespace hopper {

// --------------------------------------------------------------------------------------------------- 1. Shape

template <int BM_, int BN_, int SPLIT_, int STAGES_>
struct LinearShape {
    static constexpr int BM = BM_, BN = BN_, BK = TMA_COLS, SPLIT = SPLIT_, STAGES = STAGES_;
    static constexpr int GROUPS = BM / GROUP_ROWS, CONSUMERS = GROUPS * GROUP_THREADS, THREADS = CONSUMERS + 32;
    using X = Tile<BM, BK>;
    using W = Tile<BN, BK>;
    static constexpr int BLOCKS = BN / 8 / SPLIT;  // groups of 8 columns finished by a CTA
    static_assert(BLOCKS * SPLIT * 8 == BN);
    static constexpr int PARTS_BYTES = (SPLIT - 1) * BLOCKS * CONSUMERS * 16;  // float4 [SPLIT - 1][BLOCKS][CONSUMERS]
    static constexpr int STAGE_BYTES = X::BYTES + W::BYTES;
    static constexpr int SHARED = ALIGNMENT + STAGES * STAGE_BYTES + PARTS_BYTES;
    static_assert(SHARED <= MAX_SHARED);
};

struct LinearProblem {
    CUtensorMap x, weight;  // [M][K], [N][K]
    Linear linear;
    int row_tiles, steps;  // tiles of rows; steps of 64 columns of K
};

// ------------------------------------------------------------------------------------------------ 2. Producer

// Steps first ... last - 1 of K for one tile of y. One thread.
template <class S>
__device__ __forceinline__ void load_tiles(const LinearProblem& p, Stages<S::STAGES>& barriers, unsigned char* stages,
                                           int row, int column, int first, int last) {
    const auto load_weight = [&](int buffer, int step) {
        mbarrier_expect(barriers.full[buffer], S::STAGE_BYTES);
        tma_load(stages + buffer * S::STAGE_BYTES + S::X::BYTES, p.weight, barriers.full[buffer], step * S::BK,
                 column, 0, 0);
    };
    const int early = first + S::STAGES < last ? first + S::STAGES : last;
    for (int step = first; step < early; ++step) load_weight(step - first, step);
    wait_for_predecessor();
    Ring<S::STAGES> ring;
    for (int step = first; step < last; ++step, ring.advance()) {
        if (step >= early) {
            wait_until_empty(barriers, ring);
            load_weight(ring.stage(), step);
        }
        tma_load(stages + ring.stage() * S::STAGE_BYTES, p.x, barriers.full[ring.stage()], step * S::BK, row, 0, 0);
    }
}

// ----------------------------------------------------------------------------------------------- 3. Consumers

// d [64][BN] = the group's rows of x times the tile's columns, over `steps` stages
template <typename T, class S>
__device__ __forceinline__ void multiply(float (&d)[S::BN / 8][4], Stages<S::STAGES>& barriers,
                                         const unsigned char* stages, int group, int steps) {
    Ring<S::STAGES> ring;
    int before = 0;
    for (int step = 0; step < steps; ++step, ring.advance()) {
        wait_for(barriers, ring);
        const unsigned char* const buffer = stages + ring.stage() * S::STAGE_BYTES;
        const KMajor a = k_major<typename S::X>(buffer, group * GROUP_ROWS);
        const KMajor b = k_major<typename S::W>(buffer + S::X::BYTES);
        wgmma_begin();
        UNROLL
        for (int k = 0; k < S::BK / 16; ++k) wgmma<T>(d, a.plus(32 * k), b.plus(32 * k), step > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (step > 0) release_stage(barriers, before);
        before = ring.stage();
    }
    wgmma_wait<0>();
    keep_order(d);
}

// ------------------------------------------------------------------------------------------------- 4. Split-K

// y: those of d's column blocks that this CTA finishes, summed over the cluster. parts: this CTA's, see LinearShape.
template <class S>
__device__ __forceinline__ void sum_parts(float (&y)[S::BLOCKS][4], const float (&d)[S::BN / 8][4], float4* parts,
                                          Mbarrier& arrived, int rank) {
    parts += threadIdx.x;
    UNROLL
    for (int owner = 0; owner < S::SPLIT; ++owner) {
        const int from = (rank - owner + S::SPLIT) % S::SPLIT - 1;
        UNROLL
        for (int n = 0; n < S::BLOCKS; ++n) {
            const float(&sum)[4] = d[owner * S::BLOCKS + n];
            if (owner != rank) {
                const float4 part = make_float4(sum[0], sum[1], sum[2], sum[3]);
                cluster_send(parts + (from * S::BLOCKS + n) * S::CONSUMERS, *reinterpret_cast<const uint4*>(&part), arrived,
                             owner);
            } else {
                UNROLL
                for (int i = 0; i < 4; ++i) y[n][i] = sum[i];
            }
        }
    }
    while (S::SPLIT > 1 && !cluster_poll(arrived, 0)) {
    }
    UNROLL
    for (int from = 0; from < S::SPLIT - 1; ++from) {
        UNROLL
        for (int n = 0; n < S::BLOCKS; ++n) {
            const float4 part = parts[(from * S::BLOCKS + n) * S::CONSUMERS];
            y[n][0] += part.x, y[n][1] += part.y, y[n][2] += part.z, y[n][3] += part.w;
        }
    }
}

// ------------------------------------------------------------------------------------------------- 5. Epilogue

// The bias of a lane's columns, as pairs. column: the first one of this CTA
template <class S>
__device__ __forceinline__ void load_bias(unsigned (&bias)[S::BLOCKS], const Linear& p, int column) {
    UNROLL
    for (int n = 0; n < S::BLOCKS; ++n) {
        const int at = column + 8 * n;
        bias[n] = at < p.N ? static_cast<const unsigned*>(p.bias)[at / 2 + threadIdx.x % 4] : 0;
    }
}

// Writes a warp's 16 rows of the CTA's columns, first to `staged`, [16][BLOCKS + 1] pieces of 16 bytes; the padding
// piece puts the rows of a stmatrix in different banks. From there every lane takes the same piece of one row after
// another, so that it divides by head_dim only once. row, column: the warp's and the CTA's first ones
template <typename T, class S>
__device__ __forceinline__ void finish(const Linear& p, float (&y)[S::BLOCKS][4], const unsigned (&bias)[S::BLOCKS],
                                       uint4* staged, int row, int column) {
    const int lane = threadIdx.x % 32;
    UNROLL
    for (int n = 0; n < S::BLOCKS; ++n) {
        const float2 add = unpack<T>(bias[n]);
        y[n][0] += add.x, y[n][1] += add.y, y[n][2] += add.x, y[n][3] += add.y;
    }
    UNROLL
    for (int n = 0; n < S::BLOCKS; n += 2)
        stmatrix_x4(staged + lane % 16 * (S::BLOCKS + 1) + n + lane / 16, pack<T>(y[n][0], y[n][1]),
                    pack<T>(y[n][2], y[n][3]), pack<T>(y[n + 1][0], y[n + 1][1]), pack<T>(y[n + 1][2], y[n + 1][3]));
    __syncwarp();
    constexpr int AT_ONCE = 32 / S::BLOCKS;  // rows
    const int first = lane / S::BLOCKS, piece = lane % S::BLOCKS, at = column + 8 * piece;
    if (first >= AT_ONCE || at >= p.N) return;
    const int part = at / p.part_columns, in_part = at % p.part_columns;
    const RowStrides strides = p.strides[part];
    T* const to = static_cast<T*>(p.y[part]) + in_part / p.head_dim * strides.head + in_part % p.head_dim;
    int sequence = (row + first) / p.seq_len, token = (row + first) % p.seq_len;
    UNROLL_BY(4)
    for (int r = first; r < 16; r += AT_ONCE) {
        if (row + r >= p.M) return;
        uint4 bits = staged[r * (S::BLOCKS + 1) + piece];
        if (p.gelu) {
            float values[8];
            Vector<T>::unpack(values, bits);
            UNROLL
            for (float& one : values) one = fast_gelu(one);
            bits = Vector<T>::pack(values);
        }
        *reinterpret_cast<uint4*>(to + sequence * strides.batch + token * strides.row) = bits;
        token += AT_ONCE;
        for (; token >= p.seq_len; token -= p.seq_len) ++sequence;
    }
}

// --------------------------------------------------------------------------------------------------- 6. Kernel

// grid: tiles of y x SPLIT, row tiles fastest; a cluster is the SPLIT CTAs of a tile.
template <typename T, class S>
__global__ void __launch_bounds__(S::THREADS, 1) linear_kernel(const __grid_constant__ LinearProblem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char memory[];
    __shared__ Stages<S::STAGES> barriers;
    __shared__ Mbarrier arrived;
    unsigned char* const stages = aligned(memory);
    const int rank = static_cast<int>(blockIdx.x) % S::SPLIT, tile = static_cast<int>(blockIdx.x) / S::SPLIT;
    const int row = tile % p.row_tiles * S::BM, column = tile / p.row_tiles * S::BN;
    const int first = rank * p.steps / S::SPLIT, last = (rank + 1) * p.steps / S::SPLIT;
    if (threadIdx.x == 0) {
        barriers.init(S::GROUPS * 4);
        mbarrier_init(arrived, 1);
        if (S::SPLIT > 1) mbarrier_expect(arrived, S::PARTS_BYTES);
        mbarrier_init_done();
    }
    if constexpr (S::SPLIT > 1)
        cluster_sync();
    else
        __syncthreads();
    launch_dependents();
    const int group = __shfl_sync(FULL_WARP, threadIdx.x / GROUP_THREADS, 0);  // uniform, also for ptxas
    if (group == S::GROUPS) {
        if (threadIdx.x == S::CONSUMERS) load_tiles<S>(p, barriers, stages, row, column, first, last);
    } else {
        const int own = column + 8 * rank * S::BLOCKS;
        unsigned bias[S::BLOCKS];
        load_bias<S>(bias, p.linear, own);
        float d[S::BN / 8][4], y[S::BLOCKS][4];
        multiply<T, S>(d, barriers, stages, group, last - first);
        sum_parts<S>(y, d, reinterpret_cast<float4*>(stages + S::STAGES * S::STAGE_BYTES), arrived, rank);
        const int warp = threadIdx.x / 32;
        asm volatile("bar.sync 1, %0;" ::"n"(S::CONSUMERS) : "memory");  // no wgmma reads the stages anymore
        uint4* const staged = reinterpret_cast<uint4*>(stages) + warp * 16 * (S::BLOCKS + 1);
        finish<T, S>(p.linear, y, bias, staged, row + 16 * warp, own);
    }
#endif
}

}  // namespace hopper
