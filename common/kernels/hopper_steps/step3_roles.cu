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
constexpr int SLOTS = 3;  // pairs of tiles: one being computed with, two in flight

struct Slots {
    __half a[SLOTS][TILE * TILE], b[SLOTS][TILE * TILE];
    Mbarrier full[SLOTS], empty[SLOTS];
};

// One thread runs ahead of the consumers until all stages are full.
__device__ void produce(Slots& slots, const CUtensorMap& a, const CUtensorMap& b, int K) {
    Ring<SLOTS> ring;
    for (int k = 0; k < K; k += TILE, ring.advance()) {
        const int slot = ring.slot();
        mbarrier_wait(slots.empty[slot], ring.parity() ^ 1);  // returns at once in the first round: see mbarrier.cuh
        mbarrier_expect(slots.full[slot], 2 * TILE_BYTES);
        tma_load(slots.a[slot], a, slots.full[slot], k, 0, 0, 0);
        tma_load(slots.b[slot], b, slots.full[slot], k, 0, 0, 0);
    }
}

__device__ void consume(Slots& slots, float* c, int K) {
    Ring<SLOTS> ring;
    float d[TILE / 8][4];
    for (int first = 0; first < K; first += TILE, ring.advance()) {
        const int slot = ring.slot();
        mbarrier_wait(slots.full[slot], ring.parity());
        wgmma_begin();
        UNROLL
        for (int k = 0; k < TILE; k += 16)
            wgmma<__half>(d, KMajor::at(slots.a[slot]).plus(2 * k), KMajor::at(slots.b[slot]).plus(2 * k),
                          first > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        keep_order(d);
        if (threadIdx.x % 32 == 0) mbarrier_arrive(slots.empty[slot]);  // one arrival from each of four warps
    }
    write_product(c, d);
}

__global__ void __launch_bounds__(256, 1)
    product_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* c, int K) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char bytes[];
    Slots& slots = *reinterpret_cast<Slots*>(bytes + (1024 - shared_offset(bytes) % 1024) % 1024);
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < SLOTS; ++slot) mbarrier_init(slots.full[slot], 1), mbarrier_init(slots.empty[slot], 4);
        mbarrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        fewer_registers<24>();
        if (threadIdx.x == 0) produce(slots, a, b, K);
    } else {
        more_registers<240>();
        consume(slots, c, K);
    }
#endif
}

int main(int count, char** arguments) {
    Product p(count > 1 ? std::atoi(arguments[1]) : 512);
    CUtensorMap a, b;
    if (!make_maps(a, b, p)) return 1;
    constexpr int SHARED = sizeof(Slots) + 1024;
    CUDA_CHECK(cudaFuncSetAttribute(product_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED));
    return p.finish([&] { product_kernel<<<1, 256, SHARED>>>(a, b, p.c, p.K); });
}
