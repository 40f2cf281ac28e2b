// step4_pipelined.cu - GEMM, step 4: the next tile is loaded while the current one is multiplied.
//
// While tile t is multiplied, tile t + 1 is in flight from global memory to registers, and while one fragment is
// multiplied, the next one is loaded from shared memory; at the last k of a tile that is the first fragment of tile
// t + 1.
//
//     fetch t + 1 | k = 0:           | ... | k = 6:           | store t + 1 | barrier | k = 7:
//                 | load 1, multiply 0     | load 7, multiply 6                         load 0 of t + 1, multiply 7
//
// Tile t is in buffer t % 2. A thread that overwrites a buffer has passed a barrier that all threads reach only after
// reading it: one barrier per tile instead of two. A tile of zeros follows the last tile.
//
// This is the step that gemm_nn and gemm_nt use, so it supports everything: small tiles where large ones would leave
// SMs idle, and sizes and addresses that float4 cannot handle.
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
template <class S, bool B_ALONG_K, bool VECTOR>
__global__ void __launch_bounds__(S::THREADS, 2)
    pipelined_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int M, int N,
                     int K) {
    constexpr int A_WIDTH = S::BM + 4, B_WIDTH = S::BN + (B_ALONG_K ? 4 : 0);
    __shared__ alignas(16) float a_tile[2][BK][A_WIDTH];
    __shared__ alignas(16) float b_tile[2][BK][B_WIDTH];

    const Spread<S> place;
    const int64_t matrix = blockIdx.z;
    AlongK<S::BM, A_WIDTH, S::THREADS, VECTOR> a_loader(a + matrix * M * K, M, K, place.first_row);
    OperandB<B_ALONG_K, S::BN, B_WIDTH, S::THREADS, VECTOR> b_loader(b + matrix * N * K, N, K, place.first_col);
    float sums[S::TM][S::TN] = {};
    const int tiles = ceil_div(K, BK);

    Fragment<S> fragment[2];
    a_loader.fetch(), b_loader.fetch();
    a_loader.store(a_tile[0]), b_loader.store(b_tile[0]);
    __syncthreads();
    fragment[0].load(place, a_tile[0][0], b_tile[0][0]);
    NO_UNROLL
    for (int t = 0; t < tiles; ++t) {
        a_loader.fetch(), b_loader.fetch();
        UNROLL
        for (int k = 0; k < BK - 1; ++k) {
            fragment[(k + 1) % 2].load(place, a_tile[t % 2][k + 1], b_tile[t % 2][k + 1]);
            fragment[k % 2].multiply_add(sums);
        }
        const int next = (t + 1) % 2;
        a_loader.store(a_tile[next]), b_loader.store(b_tile[next]);
        __syncthreads();
        fragment[0].load(place, a_tile[next][0], b_tile[next][0]);
        fragment[1].multiply_add(sums);
    }
    write_sums<S, VECTOR>(c + matrix * M * N, sums, place, M, N);
}

template <class S, bool VECTOR>
static void launch(const GemmProblem& p, cudaStream_t stream) {
    launch_matrices<S>(pipelined_kernel<S, false, VECTOR>, pipelined_kernel<S, true, VECTOR>, p, stream);
}

void pipelined(const GemmProblem& p, bool large_tiles, cudaStream_t stream) {
    if (large_tiles)
        p.takes_vectors() ? launch<LargeShape, true>(p, stream) : launch<LargeShape, false>(p, stream);
    else
        p.takes_vectors() ? launch<SmallShape, true>(p, stream) : launch<SmallShape, false>(p, stream);
}

}  // namespace gemm_steps
