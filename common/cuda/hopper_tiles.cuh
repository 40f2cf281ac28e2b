// hopper_tiles.cuh - tiles in shared memory, loaded by a producer thread and consumed by warpgroups. Capability 9.0.
//
//   1. Tiles        Tile, aligned             rows, columns and TMA boxes of a tile; alignment
//                   k_major, mn_major         a tile as an operand of wgmma
//   2. Products     start_rows_by_rows        d = A B^T, A and B in shared memory or A in registers
//                   start_weights_by_rows     d (+)= P B, P in registers
//                   start_columns_by_rows     d = A^T B, A and B in shared memory
//                   load_rows, store_rows     a tile's rows <-> registers, for the first two
//   3. Stages       Stages                    the stages of a pipeline and their full / empty barriers
//                   wait_until_empty, fill    the producer's two steps
//                   wait_for, release_stage   the consumer's: wait for a stage, release it
//   4. Roles        role_of_warpgroup         producer, or which group of consumers
//                   RegisterShares            how many registers each role gets
//   5. Host         is_built                  whether a kernel was compiled for this GPU
//
//   wgmma.cuh, tma.cuh, mbarrier.cuh: the instructions, and how data and barriers are laid out in memory
//
// The overall structure: a block is one warpgroup that only issues loads, and GROUPS warpgroups of 64 rows each that
// only compute. They synchronize through the stages of the pipeline (Stages).
//
//   producer          empty? -> issue a TMA load           ... the stage after that
//   TMA                         writes it, signals `full`
//   consumers                   full? -> matmuls on it -> `empty` from every warp
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <utility>

#include "common/cuda/check.h"
#include "common/cuda/ldmatrix.cuh"
#include "common/cuda/mbarrier.cuh"
#include "common/cuda/shared_offset.cuh"
#include "common/cuda/tma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/cuda/wgmma.cuh"

namespace hopper {

using namespace mma;

constexpr int GROUP_ROWS = 64, GROUP_THREADS = 128;  // rows and threads of a warpgroup

// -------------------------------------------------------------------------------------------------- 1. Tiles
//
// [ROWS][D] elements of 16 bits, stored as consecutive boxes of 64 columns (tma.cuh); D is a multiple of 32, and half
// of the last box may be unused.

template <int ROWS_, int D_>
struct Tile {
    static constexpr int ROWS = ROWS_, D = D_, BOXES = (D + TMA_COLS - 1) / TMA_COLS;
    static constexpr int ROW_BYTES = TMA_COLS * 2, BOX_BYTES = ROWS * ROW_BYTES, BYTES = BOXES * BOX_BYTES;
    static_assert(D % 32 == 0 && ROWS % 8 == 0 && ROWS <= 256);
};

constexpr int ALIGNMENT = 1024;  // bytes; boxes start at multiples of this
constexpr int MAX_SHARED = 227 * 1024 - 512;  // bytes of tiles that a block may have, slack for ALIGNMENT included; the
                                              // rest is for barriers

// The first address at which a box may start.
__device__ __forceinline__ unsigned char* aligned(unsigned char* shared) {
    return shared + (ALIGNMENT - shared_offset(shared) % ALIGNMENT) % ALIGNMENT;
}

// From a given row of the tile on: each row is a row of A, or a column of B.
template <class Tile>
__device__ __forceinline__ KMajor k_major(const unsigned char* tile, int row = 0) {
    return KMajor::at(tile + row * Tile::ROW_BYTES);
}
// Each row of the tile is a row of B.
template <class Tile>
__device__ __forceinline__ MnMajor mn_major(const unsigned char* tile) {
    return MnMajor::at(tile, Tile::BOX_BYTES);
}

// ----------------------------------------------------------------------------------------------- 2. Products
//
// Each issues a few asynchronous instructions; once committed, they form a group for wgmma_wait(). d holds a
// warpgroup's 64 rows, see wgmma.cuh.

// The byte offset of columns 16 i ... 16 i + 15 of a tile.
template <class Tile>
__host__ __device__ constexpr int columns_at(int i) {
    return i / 4 * Tile::BOX_BYTES + i % 4 * 32;
}

// d [64][N] = A B^T, N rows of a tile B starting at `b`. a [64 rows of a tile A][D]
template <typename T, class A, class B, int N8>
__device__ __forceinline__ void start_rows_by_rows(float (&d)[N8][4], KMajor a, KMajor b) {
    wgmma_begin();
    UNROLL
    for (int i = 0; i < A::D / 16; ++i) wgmma<T>(d, a.plus(columns_at<A>(i)), b.plus(columns_at<B>(i)), i > 0);
}

// The same with the rows of A in registers, from load_rows.
template <typename T, class B, int N8>
__device__ __forceinline__ void start_rows_by_rows(float (&d)[N8][4], const unsigned (&a)[B::D / 16][4], KMajor b) {
    wgmma_begin();
    UNROLL
    for (int i = 0; i < B::D / 16; ++i) wgmma<T>(d, a[i], b.plus(columns_at<B>(i)), i > 0);
}

// d [64][D] += P B, or = P B unless `add`; 16 K rows of a tile B starting at `b`. p [64][16 K] as A operands of 16
// columns
template <typename T, class B, int K>
__device__ __forceinline__ void start_weights_by_rows(float (&d)[B::D / 8][4], const unsigned (&p)[K][4], MnMajor b,
                                                      bool add = true) {
    wgmma_begin();
    UNROLL
    for (int i = 0; i < K; ++i) wgmma<T>(d, p[i], b.plus(i * 16 * B::ROW_BYTES), add || i > 0);
}

// d [64][N] = A^T B, or += if `add`: A 64 columns, B at most 64 columns of a box of ROWS rows each.
template <typename T, int ROWS, int N8>
__device__ __forceinline__ void start_columns_by_rows(float (&d)[N8][4], MnMajor a, MnMajor b, bool add = false) {
    constexpr int STEP = 16 * TMA_COLS * 2;
    wgmma_begin();
    UNROLL
    for (int i = 0; i < ROWS / 16; ++i) wgmma<T>(d, a.plus(i * STEP), b.plus(i * STEP), add || i > 0);
}

// The address that this lane passes to ldmatrix or stmatrix for 16 columns of the 16 rows of one warp: that of its row.
// The 16-byte pieces of a row are in the order piece ^ (row % 8).
template <class Tile>
__device__ __forceinline__ unsigned lane_row_at(int first_row, int columns) {
    const int lane = threadIdx.x % 32, row = first_row + lane % 16, piece = columns % 4 * 2 + lane / 16;
    return columns / 4 * Tile::BOX_BYTES + row * Tile::ROW_BYTES + (piece ^ row % 8) * 16;
}

// 16 rows of a tile, those of one warp, as A operands.
template <class Tile>
__device__ __forceinline__ void load_rows(unsigned (&a)[Tile::D / 16][4], const unsigned char* tile, int first_row) {
    UNROLL
    for (int i = 0; i < Tile::D / 16; ++i)
        ldmatrix_x4(a[i][0], a[i][1], a[i][2], a[i][3], tile + lane_row_at<Tile>(first_row, i));
}
// The columns 16 i ... 16 i + 15 of such rows, from an A operand to the tile.
template <class Tile>
__device__ __forceinline__ void store_rows(unsigned char* tile, int first_row, int i, const unsigned (&a)[4]) {
    stmatrix_x4(tile + lane_row_at<Tile>(first_row, i), a[0], a[1], a[2], a[3]);
}

// ------------------------------------------------------------------------------------------------- 3. Stages
//
// For each stage: whether it has been filled, and whether all warps that use it are done. Lives in shared memory.

template <int COUNT_>
struct Stages {
    static constexpr int COUNT = COUNT_;
    Mbarrier full[COUNT], empty[COUNT];

    // One thread calls, then mbarrier_init_done() and __syncthreads().   producers: arrivals at `full`; 1 for TMA
    __device__ void init(int consumer_warps, int producers = 1) {
        for (int i = 0; i < COUNT; ++i) mbarrier_init(full[i], producers), mbarrier_init(empty[i], consumer_warps);
    }
};

template <int COUNT>
__device__ __forceinline__ void wait_until_empty(Stages<COUNT>& stages, const Ring<COUNT>& ring) {
    mbarrier_wait(stages.empty[ring.stage()], ring.parity() ^ 1);
}

// Loads the tile whose first row is [batch][head][row] into the ring's stage, which must be empty. `tiles`: the stages'
// memory; numbers: one float per row of the tile, loaded along with it.
template <class Tile, int COUNT>
__device__ __forceinline__ void fill(Stages<COUNT>& stages, const Ring<COUNT>& ring, unsigned char* tiles,
                                     const CUtensorMap& map, int row, int head, int batch) {
    Mbarrier& full = stages.full[ring.stage()];
    mbarrier_expect(full, Tile::BYTES);
    for (int i = 0; i < Tile::BOXES; ++i)
        tma_load(tiles + ring.stage() * Tile::BYTES + i * Tile::BOX_BYTES, map, full, i * TMA_COLS, row, head, batch);
}
template <class Tile, int COUNT>
__device__ __forceinline__ void fill(Stages<COUNT>& stages, const Ring<COUNT>& ring, unsigned char* tiles,
                                     const CUtensorMap& map, int row, int head, int batch,
                                     float (&numbers)[COUNT][Tile::ROWS], const float* from) {
    Mbarrier& full = stages.full[ring.stage()];
    constexpr unsigned NUMBERS = Tile::ROWS * sizeof(float);
    mbarrier_expect(full, Tile::BYTES + NUMBERS);
    for (int i = 0; i < Tile::BOXES; ++i)
        tma_load(tiles + ring.stage() * Tile::BYTES + i * Tile::BOX_BYTES, map, full, i * TMA_COLS, row, head, batch);
    bulk_load(numbers[ring.stage()], from, NUMBERS, full);
}

template <int COUNT>
__device__ __forceinline__ void wait_for(Stages<COUNT>& stages, const Ring<COUNT>& ring) {
    mbarrier_wait(stages.full[ring.stage()], ring.parity());
}

// Called by every consumer warp, once per fill, when it has finished reading the stage.
template <int COUNT>
__device__ __forceinline__ void release_stage(Stages<COUNT>& stages, int stage) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(stages.empty[stage]);
}

// Called by every warp that has written its part of a stage itself, for the tensor cores or TMA to read.
template <int COUNT>
__device__ __forceinline__ void signal_full(Stages<COUNT>& stages, int stage) {
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(stages.full[stage]);
}

// -------------------------------------------------------------------------------------------------- 4. Roles

constexpr int PRODUCER = -1;

// PRODUCER, or 0 ... GROUPS - 1. The shuffle tells the compiler that it is the same in all lanes, so values derived
// from it, such as an operand's address, are kept once per warp (in uniform registers), as wgmma wants.
__device__ __forceinline__ int role_of_warpgroup() { return __shfl_sync(FULL_WARP, threadIdx.x / GROUP_THREADS, 0) - 1; }

// The threads of a block start with equal shares of the SM's 65536 registers, and that is all it ever has: the producer
// releases most of its share, and consumers that ask for more than that would wait forever.
template <int GROUPS>
struct RegisterShares {
    static constexpr int AT_START = 65536 / (GROUP_THREADS * (1 + GROUPS)) / 8 * 8;
    static constexpr int OF_PRODUCER = GROUPS == 3 ? 32 : 24;
    static constexpr int OF_CONSUMER = (AT_START * (1 + GROUPS) - OF_PRODUCER) / GROUPS / 8 * 8;
    static_assert(OF_CONSUMER <= 240 && OF_CONSUMER > AT_START && AT_START > OF_PRODUCER);
};

// ---------------------------------------------------------------------------------------------------- 5. Host

// False if the kernel was compiled for a target other than sm_90a: then its body is empty and has no barriers. Asking
// the driver takes microseconds, so the answer is cached per kernel and device.
template <class Kernel>
bool is_built([[maybe_unused]] Kernel* kernel) {
#ifdef CUDA_SIMULATOR
    return true;  // files with such kernels are left out of builds for other targets
#else
    static std::mutex one_at_a_time;
    static std::map<std::pair<Kernel*, int>, bool> answers;
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    const std::lock_guard<std::mutex> guard(one_at_a_time);
    const auto [answer, is_new] = answers.try_emplace({kernel, device});
    if (is_new) {
        cudaFuncAttributes attributes;
        const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
        if (error != cudaSuccess) cudaGetLastError();  // no code for this GPU at all; clear the error
        answer->second = error == cudaSuccess && attributes.sharedSizeBytes > 0;
    }
    return answer->second;
#endif
}

}  // namespace hopper
