// phase_product.cuh - a batch of units: 8 rows of the weights each, times the input, as sums of warps in shared memory.
//
//   1. Sums        UnitSums<T>        a warp's share of a unit's 8 numbers of each sequence
//   2. Batch       multiply_units     the units that meet at one __syncthreads()
//
// The columns of a unit are divided among the warps, group by group; a group is 64 bytes of each row, 16 per lane:
//
//     row g of the unit:     lane 4 g     lane 4 g + 1     lane 4 g + 2     lane 4 g + 3       for g = 0 ... 7
//
// so a warp reads 512 neighbouring bytes at once, the fastest that shared memory knows, and each lane has 8 elements of
// 16 bits, or 4 of 32, of one row.
//
// 16 bits: tensor cores. mma multiplies 16 rows of A with 16 columns of 8 rows of B. B are the weights; A is the input,
// rows 0 ... 7 as many sequences, rows 8 ... 15 what their rounding took away. What a lane of mma holds are columns
// 2 t, 2 t + 1, 2 t + 8 and 2 t + 9; but which column of the matrix that is, A and B only have to agree on. Here it is
// the lane's 8 neighbouring ones: the first 4 in one mma, the other 4 in a second. Neither needs to be shuffled.
//
// 32 bits: each lane multiplies for itself, and 4 lanes add up in the end.
#pragma once
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/gpt2/phase_block.cuh"
#include "common/kernels/gpt2/piece_stream.cuh"

// ----------------------------------------------------------------------------------------------------- 1. Sums

// ROWS: of the batch, at most.
template <typename T, int ROWS>
struct UnitSums {
    // rows lane / 4 and + 8, columns 2 (lane % 4) and + 1; of the first product of a group, and of the second one,
    // which need not wait for each other
    float d[2][4] = {};

    // weights: this lane's 16 bytes of a group; at: bytes from the row's beginning to the lane's elements of the input
    __device__ __forceinline__ void add(const uint4& weights, const BlockMemory& m, int rows, int at, bool has_low) {
        const int row = threadIdx.x % 32 / 4;
        uint4 high = make_uint4(0, 0, 0, 0), low = high;
        if (row < rows) {
            high = *reinterpret_cast<const uint4*>(m.high + row * m.high_stride + at);
            if (has_low) low = *reinterpret_cast<const uint4*>(m.low + row * m.low_stride + at);
        }
        const unsigned a[4] = {high.x, low.x, high.y, low.y}, b[2] = {weights.x, weights.y};
        const unsigned more_a[4] = {high.z, low.z, high.w, low.w}, more_b[2] = {weights.z, weights.w};
        mma::mma_m16n8k16<T>(d[0], a, b);
        mma::mma_m16n8k16<T>(d[1], more_a, more_b);
    }
    // to [rows][8]
    __device__ __forceinline__ void store(float* to, int rows) const {
        const int lane = threadIdx.x % 32, row = lane / 4;
        if (row < rows)
            *reinterpret_cast<float2*>(to + row * UNIT_ROWS + lane % 4 * 2) =
                make_float2(d[0][0] + d[0][2] + (d[1][0] + d[1][2]), d[0][1] + d[0][3] + (d[1][1] + d[1][3]));
    }
};

template <int ROWS>
struct UnitSums<float, ROWS> {
    float sums[ROWS] = {};

    __device__ __forceinline__ void add(const uint4& weights, const BlockMemory& m, int rows, int at, bool) {
        const float w[4] = {__uint_as_float(weights.x), __uint_as_float(weights.y), __uint_as_float(weights.z),
                            __uint_as_float(weights.w)};
        UNROLL
        for (int r = 0; r < ROWS; ++r) {
            if (r >= rows) break;
            const float4 x = *reinterpret_cast<const float4*>(m.high + r * m.high_stride + at);
            sums[r] += w[0] * x.x + w[1] * x.y + (w[2] * x.z + w[3] * x.w);
        }
    }
    __device__ __forceinline__ void store(float* to, int rows) const {
        const int lane = threadIdx.x % 32;
        UNROLL
        for (int r = 0; r < ROWS; ++r) {
            if (r >= rows) break;
            const float sum = quad_sum(sums[r]);
            if (lane % 4 == r) to[r * UNIT_ROWS + lane / 4] = sum;
        }
    }
};

// ---------------------------------------------------------------------------------------------------- 2. Batch

// The warp's sums of `count` units, which are next in the stream -> partial [BLOCK_WARPS][UNIT_BATCH][rows][8]. The
// block's run of units begins with the first of them or a multiple of UNIT_BATCH before.
template <typename T, int ROWS>
__device__ __forceinline__ void multiply_units(const Steps& a, const BlockMemory& m, const Phase& phase, int count,
                                               float* partial, bool has_low, PieceReader& reader) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int rows = a.model.rows, last_of_piece = phase.piece_units - 1;
    const unsigned char* piece = nullptr;
    NO_UNROLL
    for (int u = 0; u < count; ++u) {
        UnitSums<T, ROWS> sums;
        NO_UNROLL
        for (int first = 0; first < phase.groups; first += phase.piece_groups) {
            const int end = min(phase.piece_groups, phase.groups - first), inside = u & last_of_piece;
            if (inside == 0) piece = reader.wait();
            const unsigned char* const weights = piece + inside * phase.groups * GROUP_BYTES + lane * 16;
            UNROLL_BY(4)
            for (int group = warp; group < end; group += BLOCK_WARPS)
                sums.add(*reinterpret_cast<const uint4*>(weights + group * GROUP_BYTES), m, rows,
                         (first + group) * GROUP_ROW_BYTES + lane % 4 * 16, has_low);
            __syncwarp();  // mma takes whole warps
            if (inside == last_of_piece || u == count - 1) reader.release();
        }
        sums.store(partial + (warp * UNIT_BATCH + u) * rows * UNIT_ROWS, rows);
    }
}
