// step2_tma.cu - the matmul for any K, with tiles loaded by TMA, which signals an mbarrier. README.md walks through it.
//
//     python -m common.run common/kernels/hopper_steps/step2_tma.cu 512
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdlib>

#include "common/cuda/mbarrier.cuh"
#include "common/cuda/tma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/wgmma.cuh"
#include "common/kernels/hopper_steps/maps.h"
#include "common/kernels/hopper_steps/product.h"

using namespace hopper;

__global__ void __launch_bounds__(128)
    gemm_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* c, int K) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    constexpr unsigned TILE_BYTES = TILE * TILE * sizeof(__half);
    alignas(1024) __shared__ __half a_tile[TILE * TILE];
    alignas(1024) __shared__ __half b_tile[TILE * TILE];
    __shared__ Mbarrier full;
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);  // one arrival per phase: that of the thread that issues the loads
        mbarrier_init_done();
    }
    __syncthreads();

    float d[TILE / 8][4];
    for (int step = 0; step * TILE < K; ++step) {
        if (threadIdx.x == 0) {
            mbarrier_expect(full, 2 * TILE_BYTES);
            tma_load(a_tile, a, full, step * TILE, 0, 0, 0);
            tma_load(b_tile, b, full, step * TILE, 0, 0, 0);
        }
        mbarrier_wait(full, step % 2);  // phases 0, 1, 2, ... have parities 0, 1, 0, ...
        wgmma_begin();
        UNROLL
        for (int k = 0; k < TILE; k += 16)
            wgmma<__half>(d, KMajor::at(a_tile).plus(2 * k), KMajor::at(b_tile).plus(2 * k), step > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        keep_order(d);
        __syncthreads();  // no thread still reads the tiles: they may be refilled
    }
    write_accumulators(c, d);
#endif
}

int main(int count, char** arguments) {
    GemmProblem p(count > 1 ? std::atoi(arguments[1]) : 256);
    CUtensorMap a, b;
    if (!make_maps(a, b, p)) return 1;
    return p.finish([&] { gemm_kernel<<<1, 128>>>(a, b, p.c, p.K); });
}
