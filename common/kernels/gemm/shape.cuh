// shape.cuh - how C is tiled for blocks, warps and threads.
//
//   Shape                    the tile sizes
//   LargeShape, SmallShape   the two that are used
//   BK                       the number of k in a tile
//
//      C                   block's tile BM x BN          warp's piece WM x WN          thread's entries TM x TN
//      +--+--+--+--+       +-------+-------+             32 lanes as a grid of         groups of 4 rows x 4 columns,
//      |  |  |  |  |       | warp0 | warp1 |             LANE_ROWS x LANE_COLS         spread over the piece: see
//      +--+--+--+--+       +-------+-------+                                           lanes.cuh
//      |  |  |  |  |       | warp2 | warp3 |
//      +--+--+--+--+       +-------+-------+
//
// For every k a thread reads TM + TN numbers from shared memory and does TM * TN multiplications with them. The more
// entries it owns, the less it reads: 16 x 8 entries take 24 numbers for 128 multiplications; the taught kernel's 4 x 1
// take 5 for 4. Registers are the limit: a thread has at most 255.
#pragma once

namespace gemm_steps {

template <int BM_, int BN_, int WM_, int WN_, int TM_, int TN_>
struct Shape {
    static constexpr int BM = BM_, BN = BN_, WM = WM_, WN = WN_, TM = TM_, TN = TN_;
    static constexpr int LANE_ROWS = WM / TM, LANE_COLS = WN / TN;
    static constexpr int WARP_COLS = BN / WN;
    static constexpr int THREADS = BM / WM * WARP_COLS * 32;
    static_assert(LANE_ROWS * LANE_COLS == 32 && TM % 4 == 0 && TN % 4 == 0 && LANE_ROWS % 2 == 0);
};
using LargeShape = Shape<128, 128, 64, 64, 16, 8>;
using SmallShape = Shape<64, 64, 32, 32, 4, 8>;

constexpr int BK = 8;

}  // namespace gemm_steps
