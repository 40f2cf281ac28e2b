// Warp operations and block-wide votes.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "test.h"

#define FULL 0xffffffffu
template <typename T>
__global__ void shuffles(T* out, int width, int amount) {
    const int lane = threadIdx.x;
    const T mine = T(lane);
    out[lane] = __shfl_sync(FULL, mine, amount, width);
    out[32 + lane] = __shfl_up_sync(FULL, mine, amount, width);
    out[64 + lane] = __shfl_down_sync(FULL, mine, amount, width);
    out[96 + lane] = __shfl_xor_sync(FULL, mine, amount, width);
}
EXPORT(shuffle_int, (int* out, int width, int amount), { shuffles<<<1, 32>>>(out, width, amount); })
EXPORT(shuffle_unsigned, (unsigned* out, int width, int amount), { shuffles<<<1, 32>>>(out, width, amount); })
EXPORT(shuffle_long, (long long* out, int width, int amount), { shuffles<<<1, 32>>>(out, width, amount); })
EXPORT(shuffle_float, (float* out, int width, int amount), { shuffles<<<1, 32>>>(out, width, amount); })
EXPORT(shuffle_double, (double* out, int width, int amount), { shuffles<<<1, 32>>>(out, width, amount); })
EXPORT(shuffle_half, (half* out, int width, int amount), { shuffles<<<1, 32>>>(out, width, amount); })
EXPORT(shuffle_bf16, (nv_bfloat16* out, int width, int amount), { shuffles<<<1, 32>>>(out, width, amount); })

__global__ void pairs(half2* out) {
    half2 mine = __floats2half2_rn(threadIdx.x, -float(threadIdx.x));
    out[threadIdx.x] = __shfl_xor_sync(FULL, mine, 1);
}
EXPORT(shuffle_half2, (half2* out), { pairs<<<1, 32>>>(out); })

__global__ void votes(unsigned* out, const int* in) {
    const int v = in[threadIdx.x], lane = threadIdx.x % 32;
    unsigned* mine = out + threadIdx.x * 12;
    mine[0] = __ballot_sync(FULL, v > 0);
    mine[1] = __any_sync(FULL, v > 5);
    mine[2] = __all_sync(FULL, v < 9);
    mine[3] = __match_any_sync(FULL, v);
    int all;
    mine[4] = __match_all_sync(FULL, v / 100, &all) + all;
    mine[5] = __reduce_add_sync(FULL, v);
    mine[6] = __reduce_min_sync(FULL, v);
    mine[7] = __reduce_max_sync(FULL, v);
    mine[8] = __reduce_and_sync(FULL, unsigned(v));
    mine[9] = __reduce_or_sync(FULL, unsigned(v));
    mine[10] = __reduce_xor_sync(FULL, unsigned(v));
    mine[11] = lane < 16 ? __ballot_sync(0x0000ffffu, v & 1) : __ballot_sync(0xffff0000u, v & 1);  // two halves
}
EXPORT(warp_votes, (unsigned* out, const int* in), { votes<<<1, 64>>>(out, in); })

__global__ void block_votes(int* out, const int* in) {
    const int v = in[threadIdx.x];
    out[threadIdx.x * 3] = __syncthreads_count(v > 0);
    out[threadIdx.x * 3 + 1] = __syncthreads_and(v);
    out[threadIdx.x * 3 + 2] = __syncthreads_or(v > 8);
}
EXPORT(block_votes_of, (int* out, const int* in, int n), { block_votes<<<1, n>>>(out, in); })

__global__ void ragged(float* out) {  // a last warp that is not full, and lanes that have returned
    float v = 1.0f;
    const unsigned mask = __activemask();
    for (int d = 16; d > 0; d /= 2) {
        const float other = __shfl_down_sync(FULL, v, d);
        if (threadIdx.x % 32 + d < min(32, blockDim.x - threadIdx.x / 32 * 32)) v += other;
    }
    if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = v, out[4 + threadIdx.x / 32] = __popc(mask);
}
EXPORT(warp_ragged, (float* out, int n), { ragged<<<1, n>>>(out); })

__global__ void inactive_source(float* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 20);
}
EXPORT(warp_inactive_source, (float* out), { inactive_source<<<1, 32>>>(out); })
