#pragma once
#ifndef CUDA_SIMULATOR
static __device__ unsigned smid() { unsigned r; asm("mov.u32 %0, %smid;" : "=r"(r)); return r; }
#endif
__device__ __forceinline__ float warp_sum(float v) {
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(0xffffffff, v, d);
    return v;
}
