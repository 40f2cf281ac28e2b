// maps.h - tensor maps for A and B [64][K]: boxes of 64 rows and 64 columns.
#pragma once
#include <cuda.h>
#include <cuda_fp16.h>

#include <cstdio>

#include "common/cuda/tma.cuh"
#include "common/kernels/hopper_steps/product.h"

// Prints a message and returns false if TMA cannot address rows of this length.
inline bool make_maps(CUtensorMap& a, CUtensorMap& b, const GemmProblem& p) {
    const hopper::RowShape shape = {1, 1, TILE, p.K};
    const RowStrides strides = {TILE * p.K, TILE * p.K, p.K};  // batch, head and row stride
    if (hopper::make_tensor_map<__half>(a, p.a, shape, strides, TILE) &&
        hopper::make_tensor_map<__half>(b, p.b, shape, strides, TILE))
        return true;
    std::printf("K = %d: rows must be a multiple of 16 bytes\n", p.K);
    return false;
}
