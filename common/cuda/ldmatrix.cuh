// ldmatrix.cuh - loads 8 x 8 matrices of 16-bit elements from shared memory into the fragments that mma.cuh multiplies.
// namespace mma.
//
//   ldmatrix_x4(r0, r1, r2, r3, row)      four matrices: a whole A tile of 16 x 16, or the B tiles of two mma
//   ldmatrix_x4_trans                     the same, each matrix transposed on the way
//   stmatrix_x4(row, r0, r1, r2, r3)      stores four matrices; compute capability 9.0
//   swizzle<ROW_BYTES>(row, chunk)        the position of a row's 16-byte chunk that avoids bank conflicts on columns
//   swizzled<COLS>(tile, row, chunk)      the address of that chunk
//
// Every row of a matrix is 16 bytes of shared memory, 16-byte aligned; rows may be anywhere. Each lane passes the
// address of one row, and receives two neighboring elements of every matrix:
//
//   given by                 received by
//     lane 0: row 0            [ L0  | L1  | L2  | L3  ]     matrix 0 -> r0: lane 4 i + j holds the elements 2 j and
//     lane 1: row 1            [ L4  | L5  | L6  | L7  ]     2 j + 1 of row i, the first in the low half of r0
//      ...                      ...
//     lane 7: row 7            [ L28 | L29 | L30 | L31 ]
//     lanes  8 ... 15: the rows of matrix 1 -> r1;   16 ... 23: matrix 2 -> r2;   24 ... 31: matrix 3 -> r3
//
// With _trans, lane 4 i + j holds element i of rows 2 j and 2 j + 1: column i instead of row i.
//
// All 32 lanes must call convergently. (The instruction can also load one or two matrices; no kernel here needs that.)
//
// How matrices become the operands of mma_m16n8k16, for tiles in shared memory:
//
//   A [rows][k] in memory      rows 0-7 columns 0-7, rows 8-15 columns 0-7, rows 0-7 columns 8-15, rows 8-15 columns
//                              8-15 -> a[0] ... a[3]: lane passes row lane % 16, columns from lane / 16 * 8
//   B [cols][k] in memory      columns (rows in memory) 0-7, k 0-7 then k 8-15 -> b[0], b[1]; columns 8-15 likewise,
//                              for the next mma: lane passes row lane / 16 * 8 + lane % 8, k from lane / 8 % 2 * 8.
//                              K in S = Q K^T.
//   B [k][cols] in memory      _trans: rows 0-7, rows 8-15 -> b[0], b[1]; columns 8-15 likewise, for the next mma: lane
//                              passes row lane % 16, columns from lane / 16 * 8. V in O = P V.
//
// Bank conflicts. Shared memory has 32 banks of 4 bytes; an access takes as many cycles as the number of different
// words it needs from any one bank. ldmatrix takes one cycle per matrix if its 8 rows of 16 bytes fall into 8 different
// groups of 4 banks. The 8 rows of a matrix are usually the same columns of 8 consecutive rows of a tile. In a tile
// with 128-byte rows they all start at the same bank: 8 cycles. Padding the rows (128 + 16 bytes) fixes that but wastes
// memory; the XOR swizzle does not: row r keeps its 16-byte chunk c at position c ^ (r % 8). Numbers below are chunks
// of the row:
//
//   position      0   1   2   3   4   5   6   7        position = 4 banks
//   row 0       [ 0   1   2   3   4   5   6   7 ]
//   row 1       [ 1   0   3   2   5   4   7   6 ]      a column of chunks, say chunk 2, is in every position once, so
//   row 2       [ 2   3   0   1   6   7   4   5 ]      8 rows are read in one cycle; a row still has all its chunks,
//   row 3       [ 3   2   1   0   7   6   5   4 ]      so writing it, chunk by chunk, has no conflicts either
//    ...
//
// Rows of 64 bytes: two of them share the 32 banks, so the pattern changes every second row: c ^ (r / 2 % 4).
#pragma once
#include <cuda_runtime.h>

#ifdef CUDA_SIMULATOR
#include "simulator/matrix.h"  // ldmatrix_x4, ldmatrix_x4_trans, stmatrix_x4
#else
#include "common/cuda/shared_offset.cuh"
#endif

namespace mma {

#ifdef CUDA_SIMULATOR
using ::ldmatrix_x4, ::ldmatrix_x4_trans, ::stmatrix_x4;
#else

__device__ __forceinline__ void ldmatrix_x4(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
                 : "r"(shared_offset(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3,
                                                  const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
                 : "r"(shared_offset(row))
                 : "memory");
}
__device__ __forceinline__ void stmatrix_x4(void* row, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_offset(row)), "r"(r0),
                 "r"(r1), "r"(r2), "r"(r3)
                 : "memory");
}
#endif

// The position of chunk `chunk` (16 bytes) in row `row` of a tile with rows of ROW_BYTES, any multiple of 16, whose
// first row starts at a multiple of 128 bytes. Over any 8 consecutive rows that start at a multiple of 8, chunk c takes
// one position in each group of 4 banks. (With an odd number of chunks no swizzle is needed: position = c.)
template <int ROW_BYTES>
__host__ __device__ constexpr int swizzle(int row, int chunk) {
    static_assert(ROW_BYTES > 0 && ROW_BYTES % 16 == 0, "a row must consist of 16-byte chunks");
    constexpr unsigned CHUNKS = ROW_BYTES / 16;
    constexpr unsigned POWER = CHUNKS & (0 - CHUNKS);     // the largest power of two that divides CHUNKS
    constexpr unsigned PATTERNS = POWER < 8 ? POWER : 8;  // number of different orders of chunks
    constexpr unsigned ROWS = 8 / PATTERNS;               // number of consecutive rows with the same order
    return static_cast<int>(static_cast<unsigned>(chunk) ^ (static_cast<unsigned>(row) / ROWS % PATTERNS));
}

// The address of that chunk.
//
//   tile   [rows][COLS], shared, elements of 1, 2, 4 or 8 bytes
template <int COLS, typename T>
__host__ __device__ constexpr T* swizzled(T* tile, int row, int chunk) {
    constexpr int PER_CHUNK = 16 / sizeof(T);
    return tile + row * COLS + swizzle<COLS * static_cast<int>(sizeof(T))>(row, chunk) * PER_CHUNK;
}

}  // namespace mma
