// hopper_tiles.cuh - tiles in shared memory, which one thread asks for and warpgroups compute with. Capability 9.0.
//
//   1. Tiles        Tile, aligned             how many rows of how many columns, in which boxes; where they may begin
//                   k_major, mn_major         a tile as an operand of wgmma
//   2. Products     start_rows_by_rows        d = A B^T, A and B in shared memory or A in registers
//                   start_weights_by_rows     d (+)= P B, P in registers
//                   start_columns_by_rows     d = A^T B, A and B in shared memory
//                   load_rows, store_rows     a tile's rows <-> registers, for the first two
//   3. Slots        Slots                     room for a few tiles, and who may use which
//                   wait_until_empty, fill    the producer's two steps
//                   wait_for, give_back       a consumer's
//   4. Roles        role_of_warpgroup         producer or which group of consumers
//                   RegisterShares            how many registers each may have
//   5. Host         is_built                  whether a kernel has been compiled for this GPU
//
//   wgmma.cuh, tma.cuh, mbarrier.cuh: the instructions, and how data and barriers are in memory
//
// The picture behind all of it: a block is one warpgroup that only asks for tiles, and GROUPS warpgroups of 64 rows
// each that only compute. They meet at the slots.
//
//   producer          empty? -> issue a TMA load           ... the stage after that
//   TMA                         writes it, signals `full`
//   consumers                   full? -> products from it -> `empty` from every warp
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

constexpr int GROUP_ROWS = 64, GROUP_THREADS = 128;  // of a warpgroup

// -------------------------------------------------------------------------------------------------- 1. Tiles
//
// [ROWS][D] elements of 16 bits, in boxes of 64 columns one after the other (tma.cuh); D is a multiple of 32, and
// half of the last box may be unused.

template <int ROWS_, int D_>
struct Tile {
    static constexpr int ROWS = ROWS_, D = D_, BOXES = (D + TMA_COLS - 1) / TMA_COLS;
    static constexpr int ROW_BYTES = TMA_COLS * 2, BOX_BYTES = ROWS * ROW_BYTES, BYTES = BOXES * BOX_BYTES;
    static_assert(D % 32 == 0 && ROWS % 8 == 0 && ROWS <= 256);
};

constexpr int ALIGNMENT = 1024;  // bytes; where boxes may begin
constexpr int MAX_SHARED = 227 * 1024 - 512;  // bytes of tiles that a block may have, ALIGNMENT to spare included; the
                                              // rest is for barriers

// The first place where a box may begin.
__device__ __forceinline__ unsigned char* aligned(unsigned char* shared) {
    return shared + (ALIGNMENT - shared_offset(shared) % ALIGNMENT) % ALIGNMENT;
}

// From a row of the tile on: each row is a row of A, or a column of B.
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
// Each is a few instructions that the tensor cores work through while the warps go on: a group for wgmma_wait() once
// it is committed. d is a warpgroup's 64 rows, see wgmma.cuh.

// Where columns 16 i ... 16 i + 15 of a tile begin, in bytes.
template <class Tile>
__host__ __device__ constexpr int columns_at(int i) {
    return i / 4 * Tile::BOX_BYTES + i % 4 * 32;
}

// d [64][N] = A B^T, N rows of a tile B from `b` on. a [64 rows of a tile A][D]
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

// d [64][D] += P B, or = P B unless `add`, 16 K rows of a tile B from `b` on. p [64][16 K] as A operands of 16 columns
template <typename T, class B, int K>
__device__ __forceinline__ void start_weights_by_rows(float (&d)[B::D / 8][4], const unsigned (&p)[K][4], MnMajor b,
                                                      bool add = true) {
    wgmma_begin();
    UNROLL
    for (int i = 0; i < K; ++i) wgmma<T>(d, p[i], b.plus(i * 16 * B::ROW_BYTES), add || i > 0);
}

// d [64][N] = A^T B, or += if `add`, 64 and at most 64 columns of a box of ROWS rows each.
template <typename T, int ROWS, int N8>
__device__ __forceinline__ void start_columns_by_rows(float (&d)[N8][4], MnMajor a, MnMajor b, bool add = false) {
    constexpr int STEP = 16 * TMA_COLS * 2;
    wgmma_begin();
    UNROLL
    for (int i = 0; i < ROWS / 16; ++i) wgmma<T>(d, a.plus(i * STEP), b.plus(i * STEP), add || i > 0);
}

// Where this lane's row of 16 columns begins, of those that ldmatrix or stmatrix takes from it for the 16 rows of one
// warp. The pieces of a row are in the order piece ^ (row % 8).
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

// -------------------------------------------------------------------------------------------------- 3. Slots
//
// Of each slot: whether it has been filled, and whether all warps that use it are done. Lives in shared memory.

template <int COUNT_>
struct Slots {
    static constexpr int COUNT = COUNT_;
    Mbarrier full[COUNT], empty[COUNT];

    // One thread; then mbarrier_init_done() and a __syncthreads().   producers: who says `full`, one for the engine
    __device__ void init(int consumer_warps, int producers = 1) {
        for (int i = 0; i < COUNT; ++i) mbarrier_init(full[i], producers), mbarrier_init(empty[i], consumer_warps);
    }
};

template <int COUNT>
__device__ __forceinline__ void wait_until_empty(Slots<COUNT>& slots, const Ring<COUNT>& ring) {
    mbarrier_wait(slots.empty[ring.slot()], ring.parity() ^ 1);
}

// The tile whose first row is [batch][head][row] into the ring's slot, which is empty. `tiles`: the slots' memory;
// numbers: of the tile's rows, one each, which come along.
template <class Tile, int COUNT>
__device__ __forceinline__ void fill(Slots<COUNT>& slots, const Ring<COUNT>& ring, unsigned char* tiles,
                                     const CUtensorMap& map, int row, int head, int batch) {
    Mbarrier& full = slots.full[ring.slot()];
    mbarrier_expect(full, Tile::BYTES);
    for (int i = 0; i < Tile::BOXES; ++i)
        tma_load(tiles + ring.slot() * Tile::BYTES + i * Tile::BOX_BYTES, map, full, i * TMA_COLS, row, head, batch);
}
template <class Tile, int COUNT>
__device__ __forceinline__ void fill(Slots<COUNT>& slots, const Ring<COUNT>& ring, unsigned char* tiles,
                                     const CUtensorMap& map, int row, int head, int batch,
                                     float (&numbers)[COUNT][Tile::ROWS], const float* from) {
    Mbarrier& full = slots.full[ring.slot()];
    constexpr unsigned NUMBERS = Tile::ROWS * sizeof(float);
    mbarrier_expect(full, Tile::BYTES + NUMBERS);
    for (int i = 0; i < Tile::BOXES; ++i)
        tma_load(tiles + ring.slot() * Tile::BYTES + i * Tile::BOX_BYTES, map, full, i * TMA_COLS, row, head, batch);
    bulk_load(numbers[ring.slot()], from, NUMBERS, full);
}

template <int COUNT>
__device__ __forceinline__ void wait_for(Slots<COUNT>& slots, const Ring<COUNT>& ring) {
    mbarrier_wait(slots.full[ring.slot()], ring.parity());
}

// Every consumer warp, once for every filling, when nothing reads the stage any longer.
template <int COUNT>
__device__ __forceinline__ void give_back(Slots<COUNT>& slots, int slot) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(slots.empty[slot]);
}

// Every warp that has written its part of a slot itself, for the tensor cores or TMA to read.
template <int COUNT>
__device__ __forceinline__ void hand_over(Slots<COUNT>& slots, int slot) {
    fence_for_copy_engine();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(slots.full[slot]);
}

// -------------------------------------------------------------------------------------------------- 4. Roles

constexpr int PRODUCER = -1;

// PRODUCER, or 0 ... GROUPS - 1; the same in all lanes, for the compiler, too: what follows from it, such as the place
// of an operand, is then kept once per warp, where wgmma wants it.
__device__ __forceinline__ int role_of_warpgroup() { return __shfl_sync(FULL_WARP, threadIdx.x / GROUP_THREADS, 0) - 1; }

// What the threads of a block have at its start, equal shares of the SM's 65536 registers, is all that it
// ever has: the producer gives most of its own away, and consumers that want more than that would wait forever.
template <int GROUPS>
struct RegisterShares {
    static constexpr int AT_START = 65536 / (GROUP_THREADS * (1 + GROUPS)) / 8 * 8;
    static constexpr int OF_PRODUCER = GROUPS == 3 ? 32 : 24;
    static constexpr int OF_CONSUMER = (AT_START * (1 + GROUPS) - OF_PRODUCER) / GROUPS / 8 * 8;
    static_assert(OF_CONSUMER <= 240 && OF_CONSUMER > AT_START && AT_START > OF_PRODUCER);
};

// ---------------------------------------------------------------------------------------------------- 5. Host

// False if the kernel was compiled for another target than sm_90a: then it is empty, and has no barriers. The driver takes
// microseconds to say so, and is asked once about each kernel and device.
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
        if (error != cudaSuccess) cudaGetLastError();  // no code for this GPU at all; the error is dealt with
        answer->second = error == cudaSuccess && attributes.sharedSizeBytes > 0;
    }
    return answer->second;
#endif
}

}  // namespace hopper
