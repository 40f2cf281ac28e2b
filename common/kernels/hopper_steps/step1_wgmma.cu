// step1_wgmma.cu - a 64 x 64 x 64 matmul by one warpgroup and four wgmma. README.md walks through it.
//
//     python -m common.run common/kernels/hopper_steps/step1_wgmma.cu
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "common/cuda/tma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/wgmma.cuh"
#include "common/kernels/hopper_steps/product.h"

using namespace hopper;

// Copies a matrix [64][64] to shared memory in the layout that wgmma expects with the 128-byte swizzle: rows of 128
// bytes, and in row r the 16-byte pieces in the order piece ^ (r % 8).
__device__ void fill_tile(__half* tile, const __half* matrix) {
    for (int i = threadIdx.x; i < TILE * 8; i += blockDim.x) {
        const int row = i / 8, piece = i % 8;
        const uint4 eight = reinterpret_cast<const uint4*>(matrix)[row * 8 + piece];
        reinterpret_cast<uint4*>(tile)[row * 8 + (piece ^ row % 8)] = eight;
    }
}

__global__ void __launch_bounds__(128) gemm_kernel(const __half* a, const __half* b, float* c) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    alignas(1024) __shared__ __half a_tile[TILE * TILE];
    alignas(1024) __shared__ __half b_tile[TILE * TILE];
    fill_tile(a_tile, a);
    fill_tile(b_tile, b);
    fence_proxy_async();  // wgmma reads shared memory through another path (the async proxy)
    __syncthreads();

    float d[TILE / 8][4];
    const KMajor left = KMajor::at(a_tile), right = KMajor::at(b_tile);
    wgmma_begin();
    UNROLL
    for (int k = 0; k < TILE; k += 16)  // 16 elements are 32 bytes; the first wgmma overwrites d
        wgmma<__half>(d, left.plus(2 * k), right.plus(2 * k), k > 0);
    wgmma_commit();
    wgmma_wait<0>();  // until here, d must not be touched
    keep_order(d);
    write_accumulators(c, d);
#endif
}

int main() {
    GemmProblem p(TILE);
    return p.finish([&] { gemm_kernel<<<1, 128>>>(p.a, p.b, p.c); });
}
