// product.h - shared by the launcher and the steps.
//
//   GemmProblem                  pointers and sizes of a batched GEMM
//   launch_matrices              launches a kernel for all matrices of the batch
//   register_tiles, vector_loads, no_conflicts, pipelined      the four steps, one file each
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "common/cuda/alignment.h"
#include "common/cuda/check.h"

namespace gemm_steps {

struct GemmProblem {
    const float *a, *b;
    float* c;
    int64_t batch;
    int M, N, K;
    bool b_transposed;

    // Whether all accesses of four floats are aligned.
    bool takes_vectors() const { return K % 4 == 0 && N % 4 == 0 && all_aligned({a, b, c}); }
};

using Kernel = void (*)(const float* a, const float* b, float* c, int M, int N, int K);

// kernel_nn for A B, kernel_nt for A B^T.   grid (tiles of rows, tiles of columns, matrices), block (S::THREADS)
template <class S>
void launch_matrices(Kernel kernel_nn, Kernel kernel_nt, const GemmProblem& p, cudaStream_t stream) {
    const Kernel kernel = p.b_transposed ? kernel_nt : kernel_nn;
    for (int64_t first = 0; first < p.batch; first += MAX_GRID_YZ) {
        const auto matrices = static_cast<unsigned>(std::min<int64_t>(p.batch - first, MAX_GRID_YZ));
        const dim3 grid(ceil_div(p.M, S::BM), ceil_div(p.N, S::BN), matrices);
        const float* a = p.a + first * p.M * p.K;
        const float* b = p.b + first * p.N * p.K;
        float* c = p.c + first * p.M * p.N;
        kernel<<<grid, S::THREADS, 0, stream>>>(a, b, c, p.M, p.N, p.K);
        CUDA_CHECK_LAUNCH();
    }
}

// Any sizes and alignment.
void register_tiles(const GemmProblem& p, cudaStream_t stream);
// Only if takes_vectors().
void vector_loads(const GemmProblem& p, cudaStream_t stream);
void no_conflicts(const GemmProblem& p, cudaStream_t stream);
// Any; with small or large tiles.
void pipelined(const GemmProblem& p, bool large_tiles, cudaStream_t stream);

}  // namespace gemm_steps
