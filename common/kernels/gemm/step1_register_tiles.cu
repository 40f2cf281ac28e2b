// step1_register_tiles.cu - GEMM, step 1: every thread owns 16 x 8 entries of C.
//
// In the kernel taught in task 2 a thread has 4 x 1 entries and a block 32 x 32. Here they are 16 x 8 and 128 x 128:
//
//                   read from shared memory       multiplications       A and B are read from global memory
//     taught        4 + 1 numbers for one k       4                     N / 32 and M / 32 times
//     here          16 + 8                        128                   N / 128 and M / 128 times
//
// So a number from shared memory is used 5.3 times instead of 0.8, and one from global memory four times as often. The
// rest is unchanged: load a tile, wait, multiply, wait.
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
    register_tiles_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int M, int N,
                          int K) {
    using S = LargeShape;
    __shared__ alignas(16) float a_tile[BK][S::BM];
    __shared__ alignas(16) float b_tile[BK][S::BN];

    const SideBySide<S> place;
    const int64_t matrix = blockIdx.z;
    AlongK<S::BM, S::BM, S::THREADS, false> a_loader(a + matrix * M * K, M, K, place.first_row);
    OperandB<B_ALONG_K, S::BN, S::BN, S::THREADS, false> b_loader(b + matrix * N * K, N, K, place.first_col);
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
    write_sums<S, false>(c + matrix * M * N, sums, place, M, N);
}

void register_tiles(const GemmProblem& p, cudaStream_t stream) {
    launch_matrices<LargeShape>(register_tiles_kernel<false>, register_tiles_kernel<true>, p, stream);
}

}  // namespace gemm_steps
