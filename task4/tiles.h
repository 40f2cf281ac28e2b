// tiles.h - the tile sizes that flash_attention.cu uses for each head_dim.
//
//   B_r      rows of Q per block
//   B_c      keys per tile, a multiple of 32
//   warps    per block; each has B_r / warps rows
//
// `python -m task4.plan` shows what a choice costs before anything is compiled; `python -m task4.tune` measures all of
// them on this machine's GPU and writes the fastest here.
#pragma once

struct TileSizes {
    int B_r, B_c, warps;
};

#ifdef TUNING_SHARED_KB  // python -m task4.tune compiles tiles of other sizes
constexpr int SHARED_KB = TUNING_SHARED_KB;
#else
constexpr int SHARED_KB = 64;  // per block; the maximum on Turing (sm_75)
#endif

// Chosen by python -m task4.tune --solution, 64 KB, NVIDIA H200
constexpr TileSizes TILES_32 = {64, 96, 8};   // head_dim 1 .. 32
constexpr TileSizes TILES_64 = {48, 64, 4};   // 33 .. 64
constexpr TileSizes TILES_96 = {64, 32, 4};   // 65 .. 96
constexpr TileSizes TILES_128 = {48, 32, 4};  // 97 .. 128
