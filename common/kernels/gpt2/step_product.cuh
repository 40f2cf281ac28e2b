// step_product.cuh - a GEMV of a decode step: up to 4 rows times a weight matrix that is read once.
//
//   1. Sizes       GemvPlan, plan_step, Shared          how the matrix is divided among warps
//   2. Input       copy_rows, scale_rows             -> shared memory
//   3. Kernel      load_weights, step_kernel
//   4. Launcher    launch_step
//
//   step_outputs.cuh    where the results go, and what is applied to them
//
// Division of labor. A warp processes ROWS rows of the weight matrix, of which it reads CHUNKS pieces of 512 contiguous
// bytes each (16 per lane) before it needs the first one: ROWS * CHUNKS loads of 16 bytes per lane are in flight at
// once. Longer rows are divided among 2, 4 or 8 warps of the block (`slices`):
//
//     row n        | chunk 0 | chunk 1 | chunk 2 | chunk 3 | chunk 4 | ...
//     slice           0         1         0         1         0              of 2
//
// All blocks of a GEMV (except the vocabulary's) are resident at once, so the whole matrix is in flight at once. And
// not just from the kernel's start: weights depend on nothing, so a block issues their loads and then waits for its
// predecessor (common/cuda/dependent_launch.cuh). While one kernel computes, the weights of the next are being loaded.
//
// What remains is latency, from the predecessor's last store to this kernel's last store. To keep it short, everything
// that does not depend on the predecessor is read before; a layernorm needs no extra pass (gpt2.h); and the block
// synchronizes twice, when the input is in shared memory and when the warps' sums are. Sums are float32.
#pragma once
#include <algorithm>

#include "common/cuda/check.h"
#include "common/cuda/dependent_launch.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/gpt2/best.cuh"
#include "common/kernels/gpt2/gpt2.h"
#include "common/kernels/gpt2/step_outputs.cuh"
#include "common/kernels/gpt2/vectors.cuh"

constexpr int STEP_WARPS = 8;
constexpr int STEP_THREADS = 32 * STEP_WARPS;
constexpr int CHUNKS = 3;         // chunks of a row that a warp reads at once: 768 elements of 16 bits
constexpr int BLOCKS_PER_SM = 2;  // resident blocks that registers must allow

// --------------------------------------------------------------------------------------------------- 1. Sizes

struct GemvPlan {
    int vectors;    // 16-byte vectors per row of the weights
    int slices;     // warps that share a row: 1, 2, 4 or 8
    int rounds;     // how many times a warp reads CHUNKS chunks of a row
    int tile_rows;  // rows of the weights that a block processes at once
    int tiles;
    int blocks;
};

inline GemvPlan plan_step(const StepGemv& p, int rows_per_warp) {
    GemvPlan plan = {};
    plan.vectors = p.k * (p.type == FloatType::FLOAT32 ? 4 : 2) / 16;
    const int chunks = ceil_div(plan.vectors, 32);
    plan.slices = 1;
    while (plan.slices < STEP_WARPS && plan.slices * CHUNKS < chunks) plan.slices *= 2;
    plan.rounds = ceil_div(chunks, plan.slices * CHUNKS);
    plan.tile_rows = STEP_WARPS / plan.slices * rows_per_warp;
    plan.tiles = ceil_div(p.n, plan.tile_rows);
    plan.blocks = std::min(plan.tiles, BLOCKS_PER_SM * device_attribute(cudaDevAttrMultiProcessorCount));
    return plan;
}

// A thread's part of a row's sums: over one warp's columns. float64, so that no difference of large numbers has to be
// exact in float32.
struct Moments {
    double sum, squares;
};

// The block's shared memory:
//
//   input     [rows][K]                          T; if there is a layernorm, float: times norm_weight
//   scale     float [K]                          \ if there is a layernorm: norm_weight, and
//   moments   [rows][STEP_WARPS]                 / the warps' parts of a row's sums
//   partial   float [slices][rows][tile_rows]    sums of a tile
struct Shared {
    void* input;
    Moments* moments;
    float *scale, *partial;
    size_t bytes;
};

__host__ __device__ inline Shared shared_of(unsigned char* memory, const StepGemv& p, const GemvPlan& plan) {
    Shared shared = {};
    const bool norm = p.norm_weight != nullptr;
    const auto take = [&](size_t bytes) {
        unsigned char* const begin = memory + shared.bytes;
        shared.bytes += (bytes + 15) / 16 * 16;
        return begin;
    };
    shared.input = take(norm ? sizeof(float) * p.rows * p.k : size_t{16} * plan.vectors * p.rows);
    shared.moments = reinterpret_cast<Moments*>(take(norm ? sizeof(Moments) * p.rows * STEP_WARPS : 0));
    shared.scale = reinterpret_cast<float*>(take(norm ? sizeof(float) * p.k : 0));
    shared.partial = reinterpret_cast<float*>(take(sizeof(float) * plan.slices * p.rows * plan.tile_rows));
    return shared;
}

// --------------------------------------------------------------------------------------------------- 2. Input

__device__ __forceinline__ void copy_rows(void* input, const StepGemv& p, int vectors) {
    constexpr int BATCH = 4;  // loads per thread in flight
    const uint4* from = static_cast<const uint4*>(p.x);
    uint4* to = static_cast<uint4*>(input);
    const int count = p.rows * vectors;
    for (int first = threadIdx.x; first < count; first += BATCH * STEP_THREADS) {
        uint4 x[BATCH];
        UNROLL
        for (int i = 0; i < BATCH; ++i)
            if (first + i * STEP_THREADS < count) x[i] = __ldcg(from + first + i * STEP_THREADS);
        UNROLL
        for (int i = 0; i < BATCH; ++i)
            if (first + i * STEP_THREADS < count) to[first + i * STEP_THREADS] = x[i];
    }
}

// residual * scale -> input [rows, K], and the moments of residual's rows. A thread handles columns 4 i ... 4 i + 3 of
// all rows, i = its index, its index + STEP_THREADS, ...; it has written their `scale` itself.
template <int MAX_ROWS>
__device__ __forceinline__ void scale_rows(const Shared& shared, const StepGemv& p) {
    const int vectors = p.k / 4, warp = static_cast<int>(threadIdx.x) / 32;
    const float4* from = reinterpret_cast<const float4*>(p.residual);
    float4* to = static_cast<float4*>(shared.input);
    double sum[MAX_ROWS] = {}, squares[MAX_ROWS] = {};
    NO_UNROLL
    for (int i = threadIdx.x; i < vectors; i += STEP_THREADS) {
        float4 x[MAX_ROWS];
        UNROLL
        for (int r = 0; r < MAX_ROWS; ++r)
            if (r < p.rows) x[r] = __ldcg(from + r * vectors + i);
        const float4 s = reinterpret_cast<const float4*>(shared.scale)[i];
        UNROLL
        for (int r = 0; r < MAX_ROWS; ++r) {
            if (r >= p.rows) break;
            to[r * vectors + i] = make_float4(x[r].x * s.x, x[r].y * s.y, x[r].z * s.z, x[r].w * s.w);
            const double a = x[r].x, b = x[r].y, c = x[r].z, d = x[r].w;
            sum[r] += a + b + (c + d);
            squares[r] += a * a + b * b + (c * c + d * d);
        }
    }
    UNROLL
    for (int r = 0; r < MAX_ROWS; ++r) {
        if (r >= p.rows) break;
        UNROLL
        for (int distance = 16; distance > 0; distance /= 2) {
            sum[r] += __shfl_xor_sync(FULL_WARP, sum[r], distance);
            squares[r] += __shfl_xor_sync(FULL_WARP, squares[r], distance);
        }
        if (threadIdx.x % 32 == 0) shared.moments[r * STEP_WARPS + warp] = {sum[r], squares[r]};
    }
}

// Mean and 1 / standard deviation of row r.
__device__ __forceinline__ float2 mean_and_scale(const Shared& shared, const StepGemv& p, int r) {
    double sum = 0.0, squares = 0.0;
    UNROLL
    for (int w = 0; w < STEP_WARPS; ++w) {
        sum += shared.moments[r * STEP_WARPS + w].sum;
        squares += shared.moments[r * STEP_WARPS + w].squares;
    }
    const double share = 1.0 / p.k, mean = sum * share;
    const float variance = static_cast<float>(squares * share - mean * mean);
    return make_float2(static_cast<float>(mean), rsqrtf(fmaxf(variance, 0.0f) + p.eps));
}

// -------------------------------------------------------------------------------------------------- 3. Kernel

template <int ROWS>
__device__ __forceinline__ void load_weights(uint4 (&w)[ROWS][CHUNKS], const StepGemv& p, const GemvPlan& plan,
                                             int tile, int round) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int slice = warp % plan.slices, first = tile * plan.tile_rows + warp / plan.slices * ROWS;
    UNROLL
    for (int i = 0; i < ROWS; ++i) {
        const uint4* row = static_cast<const uint4*>(p.weight) + int64_t{first + i} * plan.vectors;
        UNROLL
        for (int c = 0; c < CHUNKS; ++c) {
            const int vector = ((round * CHUNKS + c) * plan.slices + slice) * 32 + lane;
            const bool inside = first + i < p.n && vector < plan.vectors;
            w[i][c] = inside ? __ldcs(row + vector) : make_uint4(0, 0, 0, 0);
        }
    }
}

// SIZE elements of a row of the input: vector number `vector`.
template <typename T, bool NORM>
__device__ __forceinline__ void load_input(float (&x)[Vector<T>::SIZE], const void* row, int vector) {
    if constexpr (NORM && sizeof(T) == 2) {
        const float4* from = static_cast<const float4*>(row) + 2 * vector;
        const float4 a = from[0], b = from[1];
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
        x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    } else {
        Vector<T>::unpack(x, static_cast<const uint4*>(row)[vector]);
    }
}

// Out: an Output of step_outputs.cuh. MAX_ROWS: sequences, of which p.rows exist.
template <typename T, class Out, int MAX_ROWS, int ROWS>
__global__ void __launch_bounds__(STEP_THREADS, BLOCKS_PER_SM) step_kernel(const StepGemv p, const GemvPlan plan) {
    constexpr int SIZE = Vector<T>::SIZE;
    constexpr bool NORM = Out::NORM;
    extern __shared__ __align__(16) unsigned char memory[];
    const Shared shared = shared_of(memory, p, plan);
    const size_t input_row = NORM ? sizeof(float) * p.k : size_t{16} * plan.vectors;  // bytes
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int slice = warp % plan.slices;
    // The thread's output of every tile: sequence out_row, row out_col of the weights
    const int out_row = static_cast<int>(threadIdx.x) / plan.tile_rows;
    const int out_col = static_cast<int>(threadIdx.x) % plan.tile_rows;
    float bias = 0.0f, weight_sum = 0.0f;
    const auto load_constants = [&](int tile) {
        const int n = tile * plan.tile_rows + out_col;
        if (out_row >= p.rows || n >= p.n) return;
        if (p.bias) bias = p.bias[n];
        if (NORM) weight_sum = p.weight_sum[n];
    };

    launch_dependents();
    uint4 w[ROWS][CHUNKS];
    load_weights<ROWS>(w, p, plan, blockIdx.x, 0);
    load_constants(blockIdx.x);
    if (NORM) {
        for (int i = threadIdx.x; i < p.k / 4; i += STEP_THREADS)
            for (int j = 4 * i; j < 4 * i + 4; ++j)
                shared.scale[j] = to_float(static_cast<const T*>(p.norm_weight)[j]);
    }
    wait_for_predecessor();
    if (NORM)
        scale_rows<MAX_ROWS>(shared, p);
    else
        copy_rows(shared.input, p, plan.vectors);
    __syncthreads();
    const float2 norm = NORM && out_row < p.rows ? mean_and_scale(shared, p, out_row) : make_float2(0.0f, 1.0f);

    Best best = {-INFINITY, 0};
    NO_UNROLL
    for (int tile = blockIdx.x; tile < plan.tiles; tile += gridDim.x) {
        const int n = tile * plan.tile_rows + out_col;
        const bool mine = out_row < p.rows && n < p.n;
        const Out output = mine ? Out(p, out_row, n) : Out();
        float sums[ROWS][MAX_ROWS] = {};
        NO_UNROLL
        for (int round = 0; round < plan.rounds; ++round) {
            UNROLL
            for (int c = 0; c < CHUNKS; ++c) {
                const int vector = ((round * CHUNKS + c) * plan.slices + slice) * 32 + lane;
                if (vector >= plan.vectors) break;
                float weights[ROWS][SIZE];
                UNROLL
                for (int i = 0; i < ROWS; ++i) Vector<T>::unpack(weights[i], w[i][c]);
                UNROLL
                for (int r = 0; r < MAX_ROWS; ++r) {
                    if (r >= p.rows) break;
                    float x[SIZE];
                    load_input<T, NORM>(x, static_cast<const unsigned char*>(shared.input) + r * input_row, vector);
                    UNROLL
                    for (int i = 0; i < ROWS; ++i)
                        UNROLL
                        for (int j = 0; j < SIZE; ++j) sums[i][r] += weights[i][j] * x[j];
                }
            }
            const bool last = round + 1 == plan.rounds;
            const int next_tile = last ? tile + static_cast<int>(gridDim.x) : tile;
            if (next_tile < plan.tiles) load_weights<ROWS>(w, p, plan, next_tile, last ? 0 : round + 1);
        }

        UNROLL
        for (int r = 0; r < MAX_ROWS; ++r) {
            if (r >= p.rows) break;
            UNROLL
            for (int i = 0; i < ROWS; ++i) {
                const float sum = warp_sum(sums[i][r]);
                const int col = warp / plan.slices * ROWS + i;
                if (lane == 0) shared.partial[(slice * p.rows + r) * plan.tile_rows + col] = sum;
            }
        }
        __syncthreads();
        if (mine) {
            float sum = 0.0f;
            for (int s = 0; s < plan.slices; ++s)
                sum += shared.partial[(s * p.rows + out_row) * plan.tile_rows + out_col];
            const float value = (sum - norm.x * weight_sum) * norm.y + bias;
            output.store(value);
            if (Out::FINDS_BEST && is_better({value, n}, best)) best = {value, n};
        }
        const int next_tile = tile + static_cast<int>(gridDim.x);
        if (next_tile >= plan.tiles) break;
        load_constants(next_tile);
        __syncthreads();
    }

    if constexpr (Out::FINDS_BEST) {  // tile_rows is a power of two <= 32: a sequence's are in one warp
        best = best_of_lanes(best, plan.tile_rows);
        if (out_col == 0 && out_row < p.rows) p.best[out_row * static_cast<int>(gridDim.x) + blockIdx.x] = best;
    }
}

// ------------------------------------------------------------------------------------------------ 4. Launcher

template <typename T, class Out, int MAX_ROWS, int ROWS>
void launch_step(const StepGemv& p) {
    const GemvPlan plan = plan_step(p, ROWS);
    const size_t bytes = shared_of(nullptr, p, plan).bytes;
    const auto kernel = step_kernel<T, Out, MAX_ROWS, ROWS>;
    if (p.early) return launch_after(kernel, plan.blocks, STEP_THREADS, bytes, p.stream, p, plan);
    kernel<<<plan.blocks, STEP_THREADS, bytes, p.stream>>>(p, plan);
    CUDA_CHECK_LAUNCH();
}
