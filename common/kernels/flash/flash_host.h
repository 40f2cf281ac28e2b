// flash_host.h - the backward pass's workspace; binding.cpp allocates it.
//
//   BackwardSpace      its layout, in 4-byte words
#pragma once
#include <cstdint>

#include "common/cuda/check.h"
#include "common/kernels/flash/flash.h"

// dQ accumulated in float32 (for 16-bit types), lse and delta of every padded row (PaddedRows of flash_sequences.cuh),
// a counter, a NaN flag, and for a fixed order of additions on Hopper GPUs a turn for each piece of the sum.
struct BackwardSpace {
    int tile;       // the tile of PaddedRows
    int64_t rows;   // per head
    int64_t count;  // in total
    int64_t sum, turns;

    BackwardSpace(const FlashGradients& g, BackwardKernel kernel) {
        const FlashArguments& a = g.forward;
        const bool wgmma = kernel == BackwardKernel::WGMMA;
        tile = wgmma ? 128 : 16;
        rows = a.packed() ? a.S_q / tile * tile + a.batch * tile : ceil_div(a.S_q, int64_t{tile}) * tile;
        count = a.matrices() * rows;
        const bool sums = wgmma || kernel == BackwardKernel::MMA;
        int columns = a.head_dim <= 64 ? 64 : a.head_dim <= 128 ? 128 : 256;
        if (wgmma && a.is_dense() && columns == 256 && a.head_dim <= 192) columns = 192;
        sum = sums ? count * columns : 0;
        turns = 2 + (wgmma && g.deterministic ? count / 64 * (columns <= 128 ? columns / 64 : 4) : 0);
    }
    int64_t words() const { return sum + 2 * count + turns; }

    float* lse(const FlashGradients& g) const { return g.workspace + sum; }
    float* delta(const FlashGradients& g) const { return lse(g) + count; }
    int* counter(const FlashGradients& g) const { return reinterpret_cast<int*>(delta(g) + count); }
    int* nan(const FlashGradients& g) const { return counter(g) + 1; }
};
