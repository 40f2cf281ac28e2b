// step2_vector_loads.cu - GEMM, step 2: global memory is accessed 16 bytes at a time.
//
// The only change: VECTOR is true in both loaders and in write_sums. A float4 is one instruction instead of four.
// (Shared memory is read four floats at a time from step 1 on.) So rows must start at multiples of 16 bytes; anything
// else is left to step 1.
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
    vector_loads_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int M, int N,
                        int K) {
    using S = LargeShape;
    constexpr bool VECTOR = true;
    __shared__ alignas(16) float a_tile[BK][S::BM];
    __shared__ alignas(16) float b_tile[BK][S::BN];

    const SideBySide<S> place;
    const int64_t matrix = blockIdx.z;
    AlongK<S::BM, S::BM, S::THREADS, VECTOR> a_loader(a + matrix * M * K, M, K, place.first_row);
    OperandB<B_ALONG_K, S::BN, S::BN, S::THREADS, VECTOR> b_loader(b + matrix * N * K, N, K, place.first_col);
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

void vector_loads(const GemmProblem& p, cudaStream_t stream) {
    launch_matrices<LargeShape>(vector_loads_kernel<false>, vector_loads_kernel<true>, p, stream);
}

}  // namespace gemm_steps
