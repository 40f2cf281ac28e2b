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
    const unsigned char *high, *low;  // low: what rounding took away
    int stride;
    bool has_low;
};

// Lanes whose row there is not have another one's: what comes out for them is for nobody. at: bytes from a row's beginning to the lane's elements. ROWS: of the batch, at most.
template <typename T, int ROWS>
struct InputPart {
    unsigned a[2][4] = {};  // of two products, as mma takes them

    __device__ __forceinline__ InputPart() {}
    __device__ __forceinline__ InputPart(const Input& input, int rows, int at) {
        const int row = min(static_cast<int>(threadIdx.x) % 32 / 4, rows - 1);
        const uint4 high = *reinterpret_cast<const uint4*>(input.high + row * input.stride + at);
        a[0][0] = high.x, a[0][2] = high.y, a[1][0] = high.z, a[1][2] = high.w;
        if (!input.has_low) return;
        const uint4 low = *reinterpret_cast<const uint4*>(input.low + row * input.stride + at);
        a[0][1] = low.x, a[0][3] = low.y, a[1][1] = low.z, a[1][3] = low.w;
    }
};
template <int ROWS>
struct InputPart<float, ROWS> {
    float4 x[ROWS];

    __device__ __forceinline__ InputPart() {}
    __device__ __forceinline__ InputPart(const Input& input, int rows, int at) {
        UNROLL
        for (int r = 0; r < ROWS; ++r)
            x[r] = *reinterpret_cast<const float4*>(input.high + min(r, rows - 1) * input.stride + at);
    }
};

// ----------------------------------------------------------------------------------------------------- 2. Sums

static_assert(MAX_STEP_ROWS * UNIT_ROWS <= 32, "a lane for each number of a unit");

template <typename T, int ROWS>
struct UnitSums {
    // rows lane / 4 and + 8, columns 2 (lane % 4) and + 1; of the first product of a group, and of the second one,
    // which need not wait for each other
    float d[2][4] = {};

    // bias: of the unit, 8 numbers
    __device__ __forceinline__ void begin(const float* bias) {
        const float2 both = __ldg(reinterpret_cast<const float2*>(bias) + threadIdx.x % 4);
        d[0][0] = both.x, d[0][1] = both.y;
    }
    // weights: this lane's 16 bytes of a group
    __device__ __forceinline__ void add(const uint4& weights, const InputPart<T, ROWS>& input) {
        const unsigned b[2][2] = {{weights.x, weights.y}, {weights.z, weights.w}};
        mma::mma_m16n8k16<T>(d[0], input.a[0], b[0]);
        mma::mma_m16n8k16<T>(d[1], input.a[1], b[1]);
    }
    // Number lane % 8 of sequence lane / 8, if there is such a sequence.
    __device__ __forceinline__ float mine() const {
        const int lane = threadIdx.x % 32, from = lane / 8 * 4 + lane % 8 / 2;
        const float even = __shfl_sync(FULL_WARP, d[0][0] + d[0][2] + (d[1][0] + d[1][2]), from);
        const float odd = __shfl_sync(FULL_WARP, d[0][1] + d[0][3] + (d[1][1] + d[1][3]), from);
        return lane % 2 ? odd : even;
    }
};

template <int ROWS>
struct UnitSums<float, ROWS> {
    float sums[ROWS] = {};

    __device__ __forceinline__ void begin(const float* bias) {
        if (threadIdx.x % 4 > 0) return;
        const float one = __ldg(bias + threadIdx.x % 32 / 4);
        UNROLL
        for (int r = 0; r < ROWS; ++r) sums[r] = one;
    }
    __device__ __forceinline__ void add(const uint4& weights, const InputPart<float, ROWS>& input) {
        const float w[4] = {__uint_as_float(weights.x), __uint_as_float(weights.y), __uint_as_float(weights.z),
                            __uint_as_float(weights.w)};
        UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const float4 x = input.x[r];
            sums[r] += w[0] * x.x + w[1] * x.y + (w[2] * x.z + w[3] * x.w);
        }
    }
    __device__ __forceinline__ float mine() const {
        const int lane = threadIdx.x % 32;
        float number = 0.0f;
        UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const float sum = __shfl_sync(FULL_WARP, quad_sum(sums[r]), lane % 8 * 4);
            if (lane / 8 == r) number = sum;
        }
        return number;
    }
};

// -------------------------------------------------------------------------------------------------- 3. By rows

// The warp's sums of `count` units, a batch, which are next in the stream -> partial [BLOCK_WARPS][UNIT_BATCH][rows][8].
// Warp w has groups w, w + 8, ... of a piece: their input stays in registers while the units pass by, UNITS_AT_ONCE of
// them together, so that what one waits for is hidden behind the others.
template <typename T, int ROWS>
__device__ __forceinline__ void multiply_units(int rows, const Input& input, const Matrix& matrix, int count,
                                               float* partial, PieceReader& reader) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    NO_UNROLL
    for (int first = 0; first < matrix.groups; first += matrix.piece_groups) {
        const int end = min(matrix.piece_groups, matrix.groups - first);
        InputPart<T, ROWS> parts[WARP_GROUPS];
        UNROLL
        for (int g = 0; g < WARP_GROUPS; ++g) {
            const int group = first + min(warp + g * BLOCK_WARPS, end - 1);
            parts[g] = InputPart<T, ROWS>(input, rows, group * GROUP_ROW_BYTES + lane % 4 * 16);
        }
        NO_UNROLL
        for (int unit = 0; unit < count; unit += UNITS_AT_ONCE) {
            const int here = min(UNITS_AT_ONCE, count - unit);
            UnitSums<T, ROWS> sums[UNITS_AT_ONCE];
            const unsigned char* pieces[UNITS_AT_ONCE];
            UNROLL
            for (int u = 0; u < UNITS_AT_ONCE; ++u) pieces[u] = reader.wait(min(u, here - 1)) + lane * 16;
            UNROLL
            for (int g = 0; g < WARP_GROUPS; ++g) {
                const int group = warp + g * BLOCK_WARPS;
                if (g > 0 && group >= end) break;
                UNROLL
                for (int u = 0; u < UNITS_AT_ONCE; ++u)
                    sums[u].add(*reinterpret_cast<const uint4*>(pieces[u] + min(group, end - 1) * GROUP_BYTES), parts[g]);
            }
            reader.release(here);
            float* const to = partial + (warp * UNIT_BATCH + unit) * rows * UNIT_ROWS + lane;
            UNROLL
            for (int u = 0; u < UNITS_AT_ONCE; ++u) {
                const float sum = warp < end ? sums[u].mine() : 0.0f;
                if (u >= here || lane >= rows * UNIT_ROWS) continue;
                float& all = to[u * rows * UNIT_ROWS];
                all = first == 0 ? sum : all + sum;
            }
        }
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
        const unsigned char* const piece = reader.wait() + lane * 16;
        NO_UNROLL
        for (int group = 0; group < end; group += GROUPS_AT_ONCE) {
            InputPart<T, ROWS> parts[GROUPS_AT_ONCE];
            const unsigned char* from[GROUPS_AT_ONCE];
            UNROLL
            for (int g = 0; g < GROUPS_AT_ONCE; ++g) {
                const int which = min(group + g, end - 1);
                parts[g] = InputPart<T, ROWS>(input, rows, (first + which) * GROUP_ROW_BYTES + lane % 4 * 16);
                from[g] = piece + (which * units + warp) * GROUP_BYTES;
            }
            UNROLL
            for (int i = 0; i < WARP_UNITS; ++i) {
                if (warp + i * BLOCK_WARPS >= units) break;
                uint4 weights[GROUPS_AT_ONCE];
                UNROLL
                for (int g = 0; g < GROUPS_AT_ONCE; ++g)
                    weights[g] = *reinterpret_cast<const uint4*>(from[g] + i * BLOCK_WARPS * GROUP_BYTES);
                UNROLL
                for (int g = 0; g < GROUPS_AT_ONCE; ++g)
                    if (group + g < end) sums[i].add(weights[g], parts[g]);
            }
        }
        reader.release();
    }
}
