// operands.cuh - an operand's tile from global memory to registers, then to shared memory.
//
//   AlongK       rows run along k: A, and B of A B^T
//   AcrossK      rows run across k: B of A B
//   OperandB     one of the two
//
// A tile holds BK values of k and is stored in shared memory as [k][row of A] or [k][column of B]: for one k the values
// of neighboring rows (columns) are adjacent, and a thread reads four at a time.
//
// Loading has two halves. fetch() starts reading the next tile from global memory into registers, store() writes the
// registers to shared memory; code in between overlaps with the load.
//
// Entries past K are set to 0. Entries past the rows of A or columns of B may be anything, since they only affect
// entries of C that do not exist and are not stored.
//
// VECTOR: one 16-byte access for four floats of global memory; K and N are multiples of 4, and the matrices are 16-byte
// aligned.   WIDTH: the row stride of the tile, in floats
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "common/cuda/row_pieces.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/gemm/shape.cuh"

namespace gemm_steps {

// An operand whose rows run along k: A [M, K], and B of A B^T [N, K]. `lines` is M or N.
//
// A thread reads four consecutive k of a line and writes them to four rows of the tile: this transposes the tile. The
// 32 lanes of a warp hold 16 lines at two values of k, so they write to row k, columns line .. line + 15, and to row
// k + 4, the same columns.
template <int LINES, int WIDTH, int THREADS, bool VECTOR>
class AlongK {
    static constexpr int LINES_AT_ONCE = THREADS / (BK / 4), PARTS = LINES / LINES_AT_ONCE;
    static_assert(PARTS * LINES_AT_ONCE == LINES);
    const int line_ = threadIdx.x / (BK / 4), k_ = threadIdx.x % (BK / 4) * 4;
    const float* source_[PARTS];
    float4 values_[PARTS];
    int k_left_;

   public:
    __device__ __forceinline__ AlongK(const float* matrix, int lines, int K, int first_line) : k_left_(K - k_) {
        UNROLL
        for (int i = 0; i < PARTS; ++i) {  // past the last line: the last line again
            const int line = min(first_line + line_ + i * LINES_AT_ONCE, lines - 1);
            source_[i] = matrix + static_cast<size_t>(line) * K + k_;
        }
    }

    __device__ __forceinline__ void fetch() {
        UNROLL
        for (int i = 0; i < PARTS; ++i) {
            values_[i] = read_four<VECTOR>(source_[i], k_left_);
            source_[i] += BK;
        }
        k_left_ -= BK;
    }

    __device__ __forceinline__ void store(float (&tile)[BK][WIDTH]) const {
        UNROLL
        for (int i = 0; i < PARTS; ++i) {
            const int line = line_ + i * LINES_AT_ONCE;
            tile[k_][line] = values_[i].x;
            tile[k_ + 1][line] = values_[i].y;
            tile[k_ + 2][line] = values_[i].z;
            tile[k_ + 3][line] = values_[i].w;
        }
    }
};

// An operand whose rows run across k: B of A B [K, N]. `cols` is N. The tile has the matrix's layout.
template <int COLS, int WIDTH, int THREADS, bool VECTOR>
class AcrossK {
    static constexpr int K_AT_ONCE = THREADS / (COLS / 4), PARTS = BK / K_AT_ONCE;
    static_assert(PARTS * K_AT_ONCE == BK);
    const int k_ = threadIdx.x / (COLS / 4), col_ = threadIdx.x % (COLS / 4) * 4;
    const float* source_[PARTS];
    float4 values_[PARTS];
    int k_left_;
    const int cols_left_;
    const size_t step_;

   public:
    __device__ __forceinline__ AcrossK(const float* matrix, int cols, int K, int first_col)
        : k_left_(K - k_), cols_left_(cols - first_col - col_), step_(static_cast<size_t>(BK) * cols) {
        UNROLL
        for (int i = 0; i < PARTS; ++i)
            source_[i] = matrix + static_cast<size_t>(k_ + i * K_AT_ONCE) * cols + first_col + col_;
    }

    __device__ __forceinline__ void fetch() {
        UNROLL
        for (int i = 0; i < PARTS; ++i) {
            values_[i] = read_four<VECTOR>(source_[i], k_left_ > i * K_AT_ONCE ? cols_left_ : 0);
            source_[i] += step_;
        }
        k_left_ -= BK;
    }

    __device__ __forceinline__ void store(float (&tile)[BK][WIDTH]) const {
        UNROLL
        for (int i = 0; i < PARTS; ++i) *reinterpret_cast<float4*>(&tile[k_ + i * K_AT_ONCE][col_]) = values_[i];
    }
};

template <bool ALONG_K, int LINES, int WIDTH, int THREADS, bool VECTOR>
using OperandB =
    std::conditional_t<ALONG_K, AlongK<LINES, WIDTH, THREADS, VECTOR>, AcrossK<LINES, WIDTH, THREADS, VECTOR>>;

}  // namespace gemm_steps
