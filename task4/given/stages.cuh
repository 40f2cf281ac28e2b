// stages.cuh - runs your device functions one at a time, for `python -m task4.test --stages`. Nothing to do here.
//
// flash_attention.cu includes this as its last line. One block per stage: it puts the stage's input where the kernel
// would have it (shared memory or registers), calls your function, and writes out the result. Shared memory
// that a stage writes is filled with NaN first, so that missing writes show up.
#pragma once
#include "task4/given/stages.h"

#ifndef TUNING_SHARED_KB  // python -m task4.tune compiles the kernel alone

constexpr int UNWRITTEN = 0x7fc00000;  // the NaN that the test fills outputs with

using StageTiles = Tiles<STAGE_ROWS, STAGE_KEYS, STAGE_DIM, STAGE_WARPS>;

// fill and copy_rows end with a barrier, so that any thread can read what was filled or copied.
__device__ inline void fill(float* tile, int size, float value) {
    for (int i = threadIdx.x; i < size; i += blockDim.x) tile[i] = value;
    __syncthreads();
}

// to[r * to_length + c] = from[r * from_length + c], c < cols
__device__ inline void copy_rows(float* to, int to_length, const float* from, int from_length, int rows, int cols) {
    for (int i = threadIdx.x; i < rows * cols; i += blockDim.x)
        to[i / cols * to_length + i % cols] = from[i / cols * from_length + i % cols];
    __syncthreads();
}

// The row and column of the tile that correspond to a thread's r and c.
__device__ inline int stage_row(int r) { return threadIdx.x / 32 * StageTiles::ROWS + r; }
__device__ inline int stage_col(int c) { return threadIdx.x % 32 + 32 * c; }

__global__ void __launch_bounds__(StageTiles::THREADS)
    load_stage_kernel(const float* source, float* out, int64_t rows_left, int head_dim, float factor) {
    using T = StageTiles;
    __shared__ __align__(16) float tile[T::B_c * T::K_STRIDE];
    fill(tile, T::B_c * T::K_STRIDE, __int_as_float(UNWRITTEN));
    load_tile<T, T::B_c, T::K_STRIDE>(tile, source, rows_left, head_dim, factor);
    __syncthreads();
    copy_rows(out, T::D, tile, T::K_STRIDE, T::B_c, T::D);
}

__global__ void __launch_bounds__(StageTiles::THREADS)
    scores_stage_kernel(const float* q, const float* k, float* out) {
    using T = StageTiles;
    __shared__ __align__(16) float q_tile[T::B_r * T::D], k_tile[T::B_c * T::K_STRIDE];
    fill(k_tile, T::B_c * T::K_STRIDE, 0.0f);
    copy_rows(q_tile, T::D, q, T::D, T::B_r, T::D);
    copy_rows(k_tile, T::K_STRIDE, k, T::D, T::B_c, T::D);
    float s[T::ROWS][T::KEYS];
    compute_scores<T>(s, q_tile, k_tile, stage_row(0));
    for (int r = 0; r < T::ROWS; ++r) {
        for (int c = 0; c < T::KEYS; ++c) out[stage_row(r) * T::B_c + stage_col(c)] = s[r][c];
    }
}

__global__ void __launch_bounds__(StageTiles::THREADS)
    mask_stage_kernel(const float* in, float* out, int keys_left, int diagonal) {
    using T = StageTiles;
    float s[T::ROWS][T::KEYS];
    for (int r = 0; r < T::ROWS; ++r) {
        for (int c = 0; c < T::KEYS; ++c) s[r][c] = in[stage_row(r) * T::B_c + stage_col(c)];
    }
    mask_scores<T>(s, stage_row(0), keys_left, diagonal);
    for (int r = 0; r < T::ROWS; ++r) {
        for (int c = 0; c < T::KEYS; ++c) out[stage_row(r) * T::B_c + stage_col(c)] = s[r][c];
    }
}

// Lane 0 starts with the whole sum l of its rows, the other lanes with 0.
__global__ void __launch_bounds__(StageTiles::THREADS)
    softmax_stage_kernel(const float* in, const float* m, const float* l, const float* o, float* p, float* new_m,
                         float* new_l, float* new_o) {
    using T = StageTiles;
    __shared__ __align__(16) float p_tile[T::B_r * T::B_c];
    fill(p_tile, T::B_r * T::B_c, __int_as_float(UNWRITTEN));
    const int lane = threadIdx.x % 32;
    float s[T::ROWS][T::KEYS];
    RowState<T> state;
    for (int r = 0; r < T::ROWS; ++r) {
        const int row = stage_row(r);
        for (int c = 0; c < T::KEYS; ++c) s[r][c] = in[row * T::B_c + stage_col(c)];
        for (int c = 0; c < T::COLS; ++c) state.o[r][c] = o[row * T::D + stage_col(c)];
        state.m[r] = m[row];
        state.l[r] = lane == 0 ? l[row] : 0.0f;
    }
    online_softmax<T>(s, state, p_tile, stage_row(0));
    for (int r = 0; r < T::ROWS; ++r) {
        const int row = stage_row(r);
        const float sum = warp_sum(state.l[r]);
        for (int c = 0; c < T::COLS; ++c) new_o[row * T::D + stage_col(c)] = state.o[r][c];
        if (lane == 0) {
            new_m[row] = state.m[r];
            new_l[row] = sum;
        }
    }
    __syncthreads();
    copy_rows(p, T::B_c, p_tile, T::B_c, T::B_r, T::B_c);
}

__global__ void __launch_bounds__(StageTiles::THREADS)
    output_stage_kernel(const float* p, const float* v, const float* o, float* out) {
    using T = StageTiles;
    __shared__ __align__(16) float p_tile[T::B_r * T::B_c], v_tile[T::B_c * T::D];
    copy_rows(p_tile, T::B_c, p, T::B_c, T::B_r, T::B_c);
    copy_rows(v_tile, T::D, v, T::D, T::B_c, T::D);
    RowState<T> state = {};
    for (int r = 0; r < T::ROWS; ++r) {
        for (int c = 0; c < T::COLS; ++c) state.o[r][c] = o[stage_row(r) * T::D + stage_col(c)];
    }
    accumulate_output<T>(state, p_tile, v_tile, stage_row(0));
    for (int r = 0; r < T::ROWS; ++r) {
        for (int c = 0; c < T::COLS; ++c) out[stage_row(r) * T::D + stage_col(c)] = state.o[r][c];
    }
}

__global__ void __launch_bounds__(StageTiles::THREADS)
    store_stage_kernel(const float* o, const float* l, float* out, int64_t rows_left, int head_dim) {
    using T = StageTiles;
    RowState<T> state = {};
    for (int r = 0; r < T::ROWS; ++r) {
        state.l[r] = l[stage_row(r) * 32 + threadIdx.x % 32];
        for (int c = 0; c < T::COLS; ++c) state.o[r][c] = o[stage_row(r) * T::D + stage_col(c)];
    }
    store_output<T>(out, state, stage_row(0), rows_left, head_dim);
}

void run_load_stage(const float* source, float* tile, int64_t rows_left, int head_dim, float factor,
                    cudaStream_t stream) {
    load_stage_kernel<<<1, StageTiles::THREADS, 0, stream>>>(source, tile, rows_left, head_dim, factor);
    CUDA_CHECK_LAUNCH();
}

void run_scores_stage(const float* q, const float* k, float* s, cudaStream_t stream) {
    scores_stage_kernel<<<1, StageTiles::THREADS, 0, stream>>>(q, k, s);
    CUDA_CHECK_LAUNCH();
}

void run_mask_stage(const float* s, float* masked, int keys_left, int diagonal, cudaStream_t stream) {
    mask_stage_kernel<<<1, StageTiles::THREADS, 0, stream>>>(s, masked, keys_left, diagonal);
    CUDA_CHECK_LAUNCH();
}

void run_softmax_stage(const float* s, const float* m, const float* l, const float* o, float* p, float* new_m,
                       float* new_l, float* new_o, cudaStream_t stream) {
    softmax_stage_kernel<<<1, StageTiles::THREADS, 0, stream>>>(s, m, l, o, p, new_m, new_l, new_o);
    CUDA_CHECK_LAUNCH();
}

void run_output_stage(const float* p, const float* v, const float* o, float* sum, cudaStream_t stream) {
    output_stage_kernel<<<1, StageTiles::THREADS, 0, stream>>>(p, v, o, sum);
    CUDA_CHECK_LAUNCH();
}

void run_store_stage(const float* o, const float* l, float* out, int64_t rows_left, int head_dim,
                     cudaStream_t stream) {
    store_stage_kernel<<<1, StageTiles::THREADS, 0, stream>>>(o, l, out, rows_left, head_dim);
    CUDA_CHECK_LAUNCH();
}

#endif  // TUNING_SHARED_KB
