// step3_no_conflicts.cu - GEMM, step 3: shared memory accesses without bank conflicts.
//
// Shared memory has 32 banks of one float. A warp's access takes one pass if its lanes hit different banks, or the same
// addresses; otherwise it takes several. Two things are new:
//
//   Transposed tiles have rows of 132 floats. A warp of AlongK writes to row k, columns line .. line + 15, and to row
//   k + 4, the same columns. With 128 floats a row, both groups of 16 start in the same bank; with 132, the second
//   starts 4 * 132 floats later, which is 16 banks.
//
//   Lanes own groups of four in turn (Spread), not 16 consecutive rows. With consecutive rows, the groups that they
//   read at the same time are 16 (or 8) floats apart, and their banks coincide. Spread, they are adjacent, 16 bytes
//   each: all banks. And lanes are arranged in the grid such that among any four consecutive ones two read the same
//   four numbers of A, and two the same of B: neighboring lanes share what they read, and 32 lanes take two passes over
//   the banks. With rows of 8 lanes, four consecutive lanes would read four different groups of B.
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/unroll.cuh"
#include "common/kernels/gemm/lanes.cuh"
#include "common/kernels/gemm/operands.cuh"
#include "common/kernels/gemm/product.h"
#include "common/kernels/gemm/shape.cuh"

namespace gemm_steps {

//   a [matrices, M, K]; b [matrices, N, K] if B_ALONG_K, else [matrices, K, N]; c [matrices, M, N]
template <bool B_ALONG_K>
__global__ void __launch_bounds__(LargeShape::THREADS, 2)
    no_conflicts_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int M, int N,
                        int K) {
    using S = LargeShape;
    constexpr bool VECTOR = true;
    constexpr int A_WIDTH = S::BM + 4, B_WIDTH = S::BN + (B_ALONG_K ? 4 : 0);
    __shared__ alignas(16) float a_tile[BK][A_WIDTH];
    __shared__ alignas(16) float b_tile[BK][B_WIDTH];

    const Spread<S> place;
    const int64_t matrix = blockIdx.z;
    AlongK<S::BM, A_WIDTH, S::THREADS, VECTOR> a_loader(a + matrix * M * K, M, K, place.first_row);
    OperandB<B_ALONG_K, S::BN, B_WIDTH, S::THREADS, VECTOR> b_loader(b + matrix * N * K, N, K, place.first_col);
    float sums[S::TM][S::TN] = {};
    const int tiles = ceil_div(K, BK);
    for (int t = 0; t < tiles; ++t) {
        a_loader.fetch(), b_loader.fetch();
        a_loader.store(a_tile), b_loader.store(b_tile);
        __syncthreads();
        UNROLL
        for (int k = 0; k < BK; ++k) {
            Fragment<S> fragment;
            fragment.load(place, a_tile[k], b_tile[k]);
            fragment.multiply_add(sums);
        }
        __syncthreads();
    }
    write_sums<S, VECTOR>(c + matrix * M * N, sums, place, M, N);
}

void no_conflicts(const GemmProblem& p, cudaStream_t stream) {
    launch_matrices<LargeShape>(no_conflicts_kernel<false>, no_conflicts_kernel<true>, p, stream);
}

}  // namespace gemm_steps
