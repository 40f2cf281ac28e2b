// phase_product.cuh - a block's part of a matrix, times the input.
//
//   1. Input       InputPart<T>       a lane's columns of the input
//   2. Sums        UnitSums<T>        a warp's share of a unit's 8 numbers of each sequence
//   3. By rows     multiply_units     QKV, EXPAND, LOGITS: whole rows; sums of warps meet in shared memory
//   4. By columns  multiply_slice     PROJECTION, CONTRACT: some columns of many rows; each warp has rows of its own
//
// A group is 64 bytes of each row of a unit, 16 per lane:
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

// ---------------------------------------------------------------------------------------------------- 1. Input

struct Input {  // T [rows][stride bytes], in shared memory
    const unsigned char *high, *low;  // low: what rounding took away; nullptr: nothing
    int stride;
};

// at: bytes from a row's beginning to the lane's elements. ROWS: of the batch, at most.
template <typename T, int ROWS>
struct InputPart {
    uint4 high = make_uint4(0, 0, 0, 0), low = make_uint4(0, 0, 0, 0);

    __device__ __forceinline__ InputPart(const Input& input, int rows, int at) {
        const int row = threadIdx.x % 32 / 4;
        if (row >= rows) return;
        high = *reinterpret_cast<const uint4*>(input.high + row * input.stride + at);
        if (input.low) low = *reinterpret_cast<const uint4*>(input.low + row * input.stride + at);
    }
};
template <int ROWS>
struct InputPart<float, ROWS> {
    float4 x[ROWS];

    __device__ __forceinline__ InputPart(const Input& input, int rows, int at) {
        UNROLL
        for (int r = 0; r < ROWS; ++r)
            x[r] = r < rows ? *reinterpret_cast<const float4*>(input.high + r * input.stride + at)
                            : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
};

// ----------------------------------------------------------------------------------------------------- 2. Sums

template <typename T, int ROWS>
struct UnitSums {
    // rows lane / 4 and + 8, columns 2 (lane % 4) and + 1; of the first product of a group, and of the second one,
    // which need not wait for each other
    float d[2][4] = {};

    // weights: this lane's 16 bytes of a group
    __device__ __forceinline__ void add(const uint4& weights, const InputPart<T, ROWS>& input) {
        const uint4 high = input.high, low = input.low;
        const unsigned a[4] = {high.x, low.x, high.y, low.y}, b[2] = {weights.x, weights.y};
        const unsigned more_a[4] = {high.z, low.z, high.w, low.w}, more_b[2] = {weights.z, weights.w};
        mma::mma_m16n8k16<T>(d[0], a, b);
        mma::mma_m16n8k16<T>(d[1], more_a, more_b);
    }
    // use(row, which of the unit's 8 numbers, number), each by one lane of the warp
    template <class Use>
    __device__ __forceinline__ void each(int rows, Use use) const {
        const int lane = threadIdx.x % 32, row = lane / 4;
        if (row >= rows) return;
        use(row, lane % 4 * 2, d[0][0] + d[0][2] + (d[1][0] + d[1][2]));
        use(row, lane % 4 * 2 + 1, d[0][1] + d[0][3] + (d[1][1] + d[1][3]));
    }
};

template <int ROWS>
struct UnitSums<float, ROWS> {
    float sums[ROWS] = {};

    __device__ __forceinline__ void add(const uint4& weights, const InputPart<float, ROWS>& input) {
        const float w[4] = {__uint_as_float(weights.x), __uint_as_float(weights.y), __uint_as_float(weights.z),
                            __uint_as_float(weights.w)};
        UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const float4 x = input.x[r];
            sums[r] += w[0] * x.x + w[1] * x.y + (w[2] * x.z + w[3] * x.w);
        }
    }
    template <class Use>
    __device__ __forceinline__ void each(int rows, Use use) const {
        const int lane = threadIdx.x % 32;
        UNROLL
        for (int r = 0; r < ROWS; ++r) {
            if (r >= rows) break;
            const float sum = quad_sum(sums[r]);
            if (lane % 4 == r) use(r, lane / 4, sum);
        }
    }
};

// -------------------------------------------------------------------------------------------------- 3. By rows

// The warp's sums of `count` units, which are next in the stream -> partial [BLOCK_WARPS][UNIT_BATCH][rows][8]. The
// columns of a unit are divided among the warps, group by group. The block's run of units begins with the first of them
// or a multiple of UNIT_BATCH before.
template <typename T, int ROWS>
__device__ __forceinline__ void multiply_units(int rows, const Input& input, const Matrix& matrix, int count,
                                               float* partial, PieceReader& reader) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int last_of_piece = matrix.piece_units - 1;
    const unsigned char* piece = nullptr;
    NO_UNROLL
    for (int u = 0; u < count; ++u) {
        UnitSums<T, ROWS> sums;
        NO_UNROLL
        for (int first = 0; first < matrix.groups; first += matrix.piece_groups) {
            const int end = min(matrix.piece_groups, matrix.groups - first), inside = u & last_of_piece;
            if (inside == 0) piece = reader.wait();
            const unsigned char* const weights = piece + inside * matrix.groups * GROUP_BYTES + lane * 16;
            UNROLL_BY(4)
            for (int group = warp; group < end; group += BLOCK_WARPS)
                sums.add(*reinterpret_cast<const uint4*>(weights + group * GROUP_BYTES),
                         InputPart<T, ROWS>(input, rows, (first + group) * GROUP_ROW_BYTES + lane % 4 * 16));
            __syncwarp();  // mma takes whole warps
            if (inside == last_of_piece || u == count - 1) reader.release();
        }
        float* const to = partial + (warp * UNIT_BATCH + u) * rows * UNIT_ROWS;
        sums.each(rows, [&](int row, int number, float sum) { to[row * UNIT_ROWS + number] = sum; });
    }
}

// ----------------------------------------------------------------------------------------------- 4. By columns

// The numbers of a slice of `units` units, from `groups` groups of columns, which are next in the stream. Warp w has
// units w, w + 8, ... in sums[0], sums[1], ...
template <typename T, int ROWS>
__device__ __forceinline__ void multiply_slice(int rows, const Input& input, const Matrix& matrix, int units,
                                               int groups, UnitSums<T, ROWS> (&sums)[WARP_UNITS],
                                               PieceReader& reader) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    NO_UNROLL
    for (int first = 0; first < groups; first += matrix.piece_groups) {
        const int end = min(matrix.piece_groups, groups - first);
        const unsigned char* const piece = reader.wait();
        NO_UNROLL
        for (int group = 0; group < end; ++group) {
            const InputPart<T, ROWS> part(input, rows, (first + group) * GROUP_ROW_BYTES + lane % 4 * 16);
            UNROLL
            for (int i = 0; i < WARP_UNITS; ++i) {
                const int unit = warp + i * BLOCK_WARPS;
                if (unit >= units) break;
                const unsigned char* const weights = piece + (group * units + unit) * GROUP_BYTES;
                sums[i].add(*reinterpret_cast<const uint4*>(weights + lane * 16), part);
            }
        }
        reader.release();
    }
}
