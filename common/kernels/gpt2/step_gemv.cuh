// step_gemv.cuh - a CTA's part of a weight matrix times up to 4 input rows, weights from the pipeline.
//
//   InputChunk<T>      a lane's share of a chunk's input columns
//   TileSums<T>        a warp's sums for a tile: 8 outputs of each row
//   multiply_tiles     column-parallel (QKV, FC1, LM_HEAD): warps split K, partial sums are combined in shared memory
//   multiply_slice     row-parallel (PROJ, FC2): warps split N; each holds the CTA's whole sum for its tiles
//
// A lane has 16 bytes of a chunk: lane 4 g + t has bytes 16 t ... 16 t + 15 of row g. A warp reads 512 contiguous
// bytes.
//
// 16 bits: mma.m16n8k16 with the weights as B. A holds the input: rows 0 .. 7 rounded, rows 8 .. 15 the rounding error,
// which makes the input as exact as 22 bits (float16) or 16 (bfloat16) for free. mma expects columns 2 t, 2 t + 1,
// 2 t + 8, 2 t + 9 in a lane; since A and B only have to agree, they are the lane's 8 contiguous ones, 4 in each of two
// mma. So neither operand is shuffled, and the input is stored in shared memory as the 16 bytes that a lane loads per
// mma.
//
// 32 bits: each lane multiplies its 4 columns, and 4 lanes add up their sums.
#pragma once
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/gpt2/step_plan.h"
#include "common/kernels/gpt2/weight_pipeline.cuh"

// __syncthreads() of the consumers.
__device__ __forceinline__ void cta_sync() { asm volatile("bar.sync 1, %0;" ::"n"(CTA_THREADS) : "memory"); }

struct Input {  // in shared memory, rows of `stride` bytes
    const unsigned char* at;
    int stride;
};
template <typename T>
constexpr int CHUNK_INPUT = INPUT_BYTES * CHUNK_ROW_BYTES / static_cast<int>(sizeof(T));

// Two columns of the input: float32, or 16 bits rounded and the rounding error.
template <typename T>
__device__ __forceinline__ uint2 input_of(float x, float y) {
    if constexpr (sizeof(T) == 4) {
        return make_uint2(__float_as_uint(x), __float_as_uint(y));
    } else {
        const unsigned rounded = mma::pack<T>(x, y);
        const float2 back = mma::unpack<T>(rounded);
        return make_uint2(rounded, mma::pack<T>(x - back.x, y - back.y));
    }
}

// ROWS: at most. Lanes of rows that do not exist duplicate the last one; their sums are discarded.
template <typename T, int ROWS>
struct InputChunk {
    static constexpr int COUNT = sizeof(T) == 4 ? ROWS : 2;  // 16 bits: for two mma
    uint4 x[COUNT];

    __device__ __forceinline__ InputChunk() {}
    __device__ __forceinline__ InputChunk(const Input& input, int rows, int chunk) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const unsigned char* const at = input.at + chunk * CHUNK_INPUT<T>;
        UNROLL
        for (int i = 0; i < COUNT; ++i) {
            const int row = ROWS == 1 ? 0 : min(sizeof(T) == 4 ? i : lane / 4, rows - 1);
            const int vector = sizeof(T) == 4 ? lane % 4 : lane % 4 * 2 + i;
            x[i] = reinterpret_cast<const uint4*>(at + row * input.stride)[vector];
        }
    }
};

template <typename T, int ROWS>
struct TileSums {
    float d[2][4] = {};  // accumulators of two independent mma; 32 bits: of the rows

    // Starts with the bias, 8 floats.
    __device__ __forceinline__ void begin(const float* bias) {
        if constexpr (sizeof(T) == 2) {
            const float2 both = __ldg(reinterpret_cast<const float2*>(bias) + threadIdx.x % 4);
            d[0][0] = both.x, d[0][1] = both.y;
        } else if (threadIdx.x % 4 == 0) {
            d[0][0] = d[0][1] = d[0][2] = d[0][3] = __ldg(bias + threadIdx.x % 32 / 4);
        }
    }
    // w: the lane's 16 bytes of a chunk
    __device__ __forceinline__ void add(const uint4& w, const InputChunk<T, ROWS>& input) {
        if constexpr (sizeof(T) == 2) {
            const unsigned b[2][2] = {{w.x, w.y}, {w.z, w.w}};
            UNROLL
            for (int i = 0; i < 2; ++i) {
                const unsigned a[4] = {input.x[i].x, input.x[i].y, input.x[i].z, input.x[i].w};
                mma::mma_m16n8k16<T>(d[i], a, b[i]);
            }
        } else {
            UNROLL
            for (int r = 0; r < ROWS; ++r) {
                const uint4 x = input.x[r];
                d[0][r] += __uint_as_float(w.x) * __uint_as_float(x.x) + __uint_as_float(w.y) * __uint_as_float(x.y) +
                           (__uint_as_float(w.z) * __uint_as_float(x.z) + __uint_as_float(w.w) * __uint_as_float(x.w));
            }
        }
    }
    // Lane 4 r + t: outputs 2 t and 2 t + 1 of row r, if there is such a row.
    __device__ __forceinline__ float2 pair() const {
        if constexpr (sizeof(T) == 2)
            return make_float2(d[0][0] + d[0][2] + (d[1][0] + d[1][2]), d[0][1] + d[0][3] + (d[1][1] + d[1][3]));
        const int lane = static_cast<int>(threadIdx.x) % 32;
        float2 result = make_float2(0.0f, 0.0f);
        UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const float sum = quad_sum(d[0][r]);
            const float x = __shfl_sync(FULL_WARP, sum, lane % 4 * 8);
            const float y = __shfl_sync(FULL_WARP, sum, lane % 4 * 8 + 4);
            if (lane / 4 == r) result = make_float2(x, y);
        }
        return result;
    }
    // Lane 8 r + i: output i of row r, if there is such a row.
    __device__ __forceinline__ float one() const {
        const int lane = static_cast<int>(threadIdx.x) % 32, from = lane / 8 * 4 + lane % 8 / 2;
        const float2 both = pair();
        const float even = __shfl_sync(FULL_WARP, both.x, from), odd = __shfl_sync(FULL_WARP, both.y, from);
        return lane % 2 ? odd : even;
    }
};

// The next `count` tiles, one batch -> partial [CTA_WARPS][TILE_BATCH][rows][8]. Warp w has chunks w, w + 8, ... of a
// stage; their input stays in registers for all tiles, 4 of which are processed together to hide latency.
template <typename T, int ROWS>
__device__ __forceinline__ void multiply_tiles(int rows, const Input& input, const Matrix& matrix, int count,
                                               float* partial, Consumer& weights) {
    constexpr int TOGETHER = 4;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    NO_UNROLL
    for (int first = 0; first < matrix.chunks; first += matrix.stage_chunks) {
        const int end = min(matrix.stage_chunks, matrix.chunks - first);
        InputChunk<T, ROWS> chunks[WARP_CHUNKS];
        UNROLL
        for (int g = 0; g < WARP_CHUNKS; ++g)
            chunks[g] = InputChunk<T, ROWS>(input, rows, first + min(warp + g * CTA_WARPS, end - 1));
        NO_UNROLL
        for (int tile = 0; tile < count; tile += TOGETHER) {
            const int here = min(TOGETHER, count - tile);
            TileSums<T, ROWS> sums[TOGETHER];
            const unsigned char* stages[TOGETHER];
            weights.wait_for(stages, here);
            UNROLL
            for (int u = 0; u < TOGETHER; ++u) stages[u] += lane * 16 + min(warp, end - 1) * CHUNK_BYTES;
            UNROLL
            for (int g = 0; g < WARP_CHUNKS; ++g) {
                if (g > 0 && warp + g * CTA_WARPS >= end) break;
                UNROLL
                for (int u = 0; u < TOGETHER; ++u)
                    sums[u].add(*reinterpret_cast<const uint4*>(stages[u] + g * CTA_WARPS * CHUNK_BYTES), chunks[g]);
            }
            weights.release(here);
            float* const of_tiles = partial + (warp * TILE_BATCH + tile) * rows * TILE_ROWS;
            float2* const to = reinterpret_cast<float2*>(of_tiles) + lane;
            UNROLL
            for (int u = 0; u < TOGETHER; ++u) {
                if (u >= here) break;
                const float2 sum = sums[u].pair();
                if (lane >= 4 * rows) continue;
                float2& place = to[u * rows * TILE_ROWS / 2];
                const float2 old = first > 0 ? place : make_float2(0.0f, 0.0f);
                place = warp < end ? make_float2(old.x + sum.x, old.y + sum.y) : old;
            }
        }
    }
}

// The next `chunks` chunks of a slice of `tiles` tiles. Warp w has tiles w, w + 8, ... in sums[0], sums[1], ... STAGES
// are multiplied together to hide latency; chunks that do not exist are `zeros` times weights that do.
template <typename T, int ROWS, int STAGES>
__device__ __forceinline__ void multiply_slice(int rows, const Input& input, const unsigned char* zeros,
                                               const Matrix& matrix, int tiles, int chunks,
                                               TileSums<T, ROWS> (&sums)[WARP_TILES], Consumer& weights) {
    constexpr int COUNT = STAGES * STAGE_CHUNKS;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int stage_chunks = matrix.stage_chunks;
    NO_UNROLL
    for (int first = 0; first < chunks; first += STAGES * stage_chunks) {
        const auto exists = [&](int i) {  // chunk i % STAGE_CHUNKS of stage i / STAGE_CHUNKS
            const int chunk = first + i / STAGE_CHUNKS * stage_chunks + i % STAGE_CHUNKS;
            return i % STAGE_CHUNKS < stage_chunks && chunk < chunks;
        };
        InputChunk<T, ROWS> inputs[COUNT];
        UNROLL
        for (int i = 0; i < COUNT; ++i) {
            const int chunk = first + i / STAGE_CHUNKS * stage_chunks + i % STAGE_CHUNKS;
            inputs[i] = InputChunk<T, ROWS>(exists(i) ? input : Input{zeros, 0}, rows, exists(i) ? chunk : 0);
        }
        int here = 0;
        UNROLL
        for (int s = 0; s < STAGES; ++s) here += first + s * stage_chunks < chunks;
        const unsigned char* stages[STAGES];
        weights.wait_for(stages, here);
        UNROLL
        for (int s = 0; s < STAGES; ++s) stages[s] += lane * 16 + warp * CHUNK_BYTES;
        UNROLL
        for (int u = 0; u < WARP_TILES; ++u) {
            if (warp + u * CTA_WARPS >= tiles) break;
            UNROLL
            for (int i = 0; i < COUNT; ++i) {
                const unsigned char* const chunk =
                    stages[i / STAGE_CHUNKS] + (exists(i) ? i % STAGE_CHUNKS * tiles * CHUNK_BYTES : 0);
                sums[u].add(*reinterpret_cast<const uint4*>(chunk + u * CTA_WARPS * CHUNK_BYTES), inputs[i]);
            }
        }
        weights.release(here);
    }
}
