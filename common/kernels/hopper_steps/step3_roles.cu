// step3_roles.cu - the same with warp specialization: one warpgroup issues loads, one computes. README.md walks through
// it.
//
//     python -m common.run common/kernels/hopper_steps/step3_roles.cu 1024
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

constexpr unsigned TILE_BYTES = TILE * TILE * sizeof(__half);
constexpr int STAGES = 3;  // pairs of tiles: one being computed with, two in flight

struct Stages {
    __half a[STAGES][TILE * TILE], b[STAGES][TILE * TILE];
    Mbarrier full[STAGES], empty[STAGES];
};

// One thread runs ahead of the consumers until all stages are full.
__device__ void produce(Stages& stages, const CUtensorMap& a, const CUtensorMap& b, int K) {
    Ring<STAGES> ring;
    for (int k = 0; k < K; k += TILE, ring.advance()) {
        const int stage = ring.stage();
        mbarrier_wait(stages.empty[stage], ring.parity() ^ 1);  // returns at once in the first round: see mbarrier.cuh
        mbarrier_expect(stages.full[stage], 2 * TILE_BYTES);
        tma_load(stages.a[stage], a, stages.full[stage], k, 0, 0, 0);
        tma_load(stages.b[stage], b, stages.full[stage], k, 0, 0, 0);
    }
}

__device__ void consume(Stages& stages, float* c, int K) {
    Ring<STAGES> ring;
    float d[TILE / 8][4];
    for (int first = 0; first < K; first += TILE, ring.advance()) {
        const int stage = ring.stage();
        mbarrier_wait(stages.full[stage], ring.parity());
        wgmma_begin();
        UNROLL
        for (int k = 0; k < TILE; k += 16)
            wgmma<__half>(d, KMajor::at(stages.a[stage]).plus(2 * k), KMajor::at(stages.b[stage]).plus(2 * k),
                          first > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        keep_order(d);
        if (threadIdx.x % 32 == 0) mbarrier_arrive(stages.empty[stage]);  // one arrival from each of four warps
    }
    write_accumulators(c, d);
}

__global__ void __launch_bounds__(256, 1)
    gemm_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* c, int K) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char bytes[];
    Stages& stages = *reinterpret_cast<Stages*>(bytes + (1024 - shared_offset(bytes) % 1024) % 1024);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage)
            mbarrier_init(stages.full[stage], 1), mbarrier_init(stages.empty[stage], 4);
        mbarrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        fewer_registers<24>();
        if (threadIdx.x == 0) produce(stages, a, b, K);
    } else {
        more_registers<240>();
        consume(stages, c, K);
    }
#endif
}

int main(int count, char** arguments) {
    GemmProblem p(count > 1 ? std::atoi(arguments[1]) : 512);
    CUtensorMap a, b;
    if (!make_maps(a, b, p)) return 1;
    constexpr int SHARED = sizeof(Stages) + 1024;
    CUDA_CHECK(cudaFuncSetAttribute(gemm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED));
    return p.finish([&] { gemm_kernel<<<1, 256, SHARED>>>(a, b, p.c, p.K); });
}
