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
// the lane's 8 neighbouring ones: the first 4 in one mma, the other 4 in a second. Neither needs to be shuffled, and
// the input lies in shared memory as a lane wants it, 16 bytes for each mma:
//
//     of columns 4 i ... 4 i + 3    rounded, 2 columns | the rest, 2 | rounded, 2 | the rest, 2
//
// 32 bits: each lane multiplies for itself, and 4 lanes add up in the end.
#pragma once
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/gpt2/phase_block.cuh"
#include "common/kernels/gpt2/piece_stream.cuh"

// ---------------------------------------------------------------------------------------------------- 1. Input

struct Input {  // in shared memory, rows of `stride` bytes
    const unsigned char* at;
    int stride;
};

// Lanes whose row there is not have another one's: what comes out for them is for nobody. group: which 64 bytes of a
// row of the weights. ROWS: of the batch, at most.
template <typename T, int ROWS>
struct InputPart {
    uint4 a[2];  // of two products, as mma takes them

    __device__ __forceinline__ InputPart() {}
    __device__ __forceinline__ InputPart(const Input& input, int rows, int group) {
        const int lane = static_cast<int>(threadIdx.x) % 32, row = ROWS == 1 ? 0 : min(lane / 4, rows - 1);
        const unsigned char* const begin = input.at + row * input.stride + group * input_group_bytes<T>();
        const uint4* const mine = reinterpret_cast<const uint4*>(begin) + lane % 4 * 2;
        a[0] = mine[0], a[1] = mine[1];
    }
};
template <int ROWS>
struct InputPart<float, ROWS> {
    float4 x[ROWS];

    __device__ __forceinline__ InputPart() {}
    __device__ __forceinline__ InputPart(const Input& input, int rows, int group) {
        UNROLL
        for (int r = 0; r < ROWS; ++r)
            x[r] = *reinterpret_cast<const float4*>(input.at + min(r, rows - 1) * input.stride +
                                                    group * input_group_bytes<float>() + threadIdx.x % 4 * 16);
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
        const unsigned a[2][4] = {{input.a[0].x, input.a[0].y, input.a[0].z, input.a[0].w},
                                  {input.a[1].x, input.a[1].y, input.a[1].z, input.a[1].w}};
        const unsigned b[2][2] = {{weights.x, weights.y}, {weights.z, weights.w}};
        mma::mma_m16n8k16<T>(d[0], a[0], b[0]);
        mma::mma_m16n8k16<T>(d[1], a[1], b[1]);
    }
    // All numbers -> to [rows][8]. wanted: else zeros; add: to what is there.
    __device__ __forceinline__ void store(float* to, int rows, bool wanted, bool add) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        if (lane >= 4 * rows) return;
        float2* const place = reinterpret_cast<float2*>(to) + lane;
        const float even = d[0][0] + d[0][2] + (d[1][0] + d[1][2]), odd = d[0][1] + d[0][3] + (d[1][1] + d[1][3]);
        const float2 old = add ? *place : make_float2(0.0f, 0.0f);
        *place = wanted ? make_float2(old.x + even, old.y + odd) : old;
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
    __device__ __forceinline__ void store(float* to, int rows, bool wanted, bool add) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const float number = mine();
        if (lane < rows * UNIT_ROWS) to[lane] = (add ? to[lane] : 0.0f) + (wanted ? number : 0.0f);
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
        for (int g = 0; g < WARP_GROUPS; ++g)
            parts[g] = InputPart<T, ROWS>(input, rows, first + min(warp + g * BLOCK_WARPS, end - 1));
        NO_UNROLL
        for (int unit = 0; unit < count; unit += UNITS_AT_ONCE) {
            const int here = min(UNITS_AT_ONCE, count - unit);
            UnitSums<T, ROWS> sums[UNITS_AT_ONCE];
            const unsigned char* pieces[UNITS_AT_ONCE];
            reader.wait_for(pieces, here);
            UNROLL
            for (int u = 0; u < UNITS_AT_ONCE; ++u) pieces[u] += lane * 16 + min(warp, end - 1) * GROUP_BYTES;
            UNROLL
            for (int g = 0; g < WARP_GROUPS; ++g) {
                if (g > 0 && warp + g * BLOCK_WARPS >= end) break;
                UNROLL
                for (int u = 0; u < UNITS_AT_ONCE; ++u)
                    sums[u].add(*reinterpret_cast<const uint4*>(pieces[u] + g * BLOCK_WARPS * GROUP_BYTES), parts[g]);
            }
            reader.release(here);
            float* const to = partial + (warp * UNIT_BATCH + unit) * rows * UNIT_ROWS;
            UNROLL
            for (int u = 0; u < UNITS_AT_ONCE; ++u)
                if (u < here) sums[u].store(to + u * rows * UNIT_ROWS, rows, warp < end, first > 0);
        }
    }
}

// ----------------------------------------------------------------------------------------------- 4. By columns

// The numbers of a slice of `units` units, from `groups` groups of columns, which are next in the stream. Warp w has
// units w, w + 8, ... in sums[0], sums[1], ...
//
// PIECES of the stream are multiplied together, so that what one waits for is hidden behind the others; where there are
// fewer groups, the rest is `zeros` (as much as a group of the input) times weights that are there: memory without
// weights might hold no number.
template <typename T, int ROWS, int PIECES>
__device__ __forceinline__ void multiply_slice(int rows, const Input& input, const unsigned char* zeros,
                                               const Matrix& matrix, int units, int groups,
                                               UnitSums<T, ROWS> (&sums)[WARP_UNITS], PieceReader& reader) {
    constexpr int PARTS = PIECES * PIECE_GROUPS;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int piece_groups = matrix.piece_groups;
    NO_UNROLL
    for (int first = 0; first < groups; first += PIECES * piece_groups) {
        int here = 0;
        UNROLL
        for (int p = 0; p < PIECES; ++p) here += first + p * piece_groups < groups;
        InputPart<T, ROWS> parts[PARTS];
        UNROLL
        for (int i = 0; i < PARTS; ++i) {
            const int in_piece = i % PIECE_GROUPS, group = first + i / PIECE_GROUPS * piece_groups + in_piece;
            const bool inside = in_piece < piece_groups && group < groups;
            parts[i] = InputPart<T, ROWS>(inside ? input : Input{zeros, 0}, rows, inside ? group : 0);
        }
        const unsigned char* pieces[PIECES];
        reader.wait_for(pieces, here);
        UNROLL
        for (int p = 0; p < PIECES; ++p) pieces[p] += lane * 16 + warp * GROUP_BYTES;
        UNROLL
        for (int u = 0; u < WARP_UNITS; ++u) {
            if (warp + u * BLOCK_WARPS >= units) break;
            UNROLL
            for (int i = 0; i < PARTS; ++i) {
                const int piece = i / PIECE_GROUPS, in_piece = i % PIECE_GROUPS;
                const bool inside = in_piece < piece_groups && first + piece * piece_groups + in_piece < groups;
                const unsigned char* const group = pieces[piece] + (inside ? in_piece * units * GROUP_BYTES : 0);
                sums[u].add(*reinterpret_cast<const uint4*>(group + u * BLOCK_WARPS * GROUP_BYTES), parts[i]);
            }
        }
        reader.release(here);
    }
}
