// stages.h - the stages of flash_attention.cu one at a time, for the test: what stages.cuh provides to binding.cpp.
//
// Each runs one of your device functions for one tile, in one block: B_r = 12 rows of Q and B_c = 64 keys, D = 64
// columns, 4 warps of 3 rows. All pointers are to float32 in device memory.
//
// The declarations are weak, so a flash_attention.cu that does not include stages.cuh (because its functions differ)
// still builds, without the stages.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

constexpr int STAGE_ROWS = 12, STAGE_KEYS = 64, STAGE_DIM = 64, STAGE_WARPS = 4;

#define STAGE __attribute__((weak)) void

// load_tile: tile[r][c] = source[r][c] * factor, 0 where source has no such row or column
//     source [rows_left, head_dim], tile [STAGE_KEYS, STAGE_DIM]
STAGE run_load_stage(const float* source, float* tile, int64_t rows_left, int head_dim, float factor,
                     cudaStream_t stream);

// compute_scores: s = q @ k^T          q [STAGE_ROWS, STAGE_DIM], k [STAGE_KEYS, STAGE_DIM], s [STAGE_ROWS, STAGE_KEYS]
STAGE run_scores_stage(const float* q, const float* k, float* s, cudaStream_t stream);

// mask_scores: masked = s, -infinity where a row may not see a key          s, masked [STAGE_ROWS, STAGE_KEYS]
STAGE run_mask_stage(const float* s, float* masked, int keys_left, int diagonal, cudaStream_t stream);

// online_softmax: the state (m, l, o) of older tiles and the scores s of a new one -> p and the new state
//     s, p [STAGE_ROWS, STAGE_KEYS], m, l [STAGE_ROWS], o [STAGE_ROWS, STAGE_DIM]
STAGE run_softmax_stage(const float* s, const float* m, const float* l, const float* o, float* p, float* new_m,
                        float* new_l, float* new_o, cudaStream_t stream);

// accumulate_output: sum = o + p @ v     p [STAGE_ROWS, STAGE_KEYS], v [STAGE_KEYS, STAGE_DIM], o, sum [.., STAGE_DIM]
STAGE run_output_stage(const float* p, const float* v, const float* o, float* sum, cudaStream_t stream);

// store_output: out = o / l, for the rows and columns that exist; l comes in 32 parts, one per lane
//     o [STAGE_ROWS, STAGE_DIM], l [STAGE_ROWS, 32], out [rows_left, head_dim]
STAGE run_store_stage(const float* o, const float* l, float* out, int64_t rows_left, int head_dim,
                      cudaStream_t stream);
