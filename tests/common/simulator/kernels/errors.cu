// Everything that can go wrong. The tests look for these lines by their comments.
#include <assert.h>
#include <unistd.h>
#include "common/cuda/not_implemented.h"
#include "test.h"

__global__ void divergent(float* out) {
    if (threadIdx.x < 40)
        __syncthreads();  // line: divergent
    else
        __syncwarp();  // in the second warp it names lanes that wait above
    out[threadIdx.x] = 1;
}
__global__ void early_return(float* out, int n) {
    if (threadIdx.x >= n) return;
    if (threadIdx.x == 0) __syncwarp();  // names lanes that wait below
    __syncthreads();                     // line: early_return
    out[threadIdx.x] = 1;
}
__global__ void two_barriers(float* out) {
    if (threadIdx.x % 2)
        __syncthreads();  // line: first barrier
    else
        __syncthreads();  // line: second barrier
}
__global__ void divergent_shuffle(float* out) {
    float v = threadIdx.x;
    if (threadIdx.x < 16) v += __shfl_xor_sync(0xffffffffu, v, 1);  // line: divergent_shuffle
    __syncthreads();
    out[threadIdx.x] = v;
}
__global__ void mixed_shuffle(float* out) {
    float v = threadIdx.x;
    if (threadIdx.x < 16)
        v = __shfl_up_sync(0xffffffffu, v, 1);
    else
        v = __shfl_down_sync(0xffffffffu, v, 1);  // line: mixed_shuffle
    out[threadIdx.x] = v;
}
__global__ void wrong_mask(float* out) {
    out[threadIdx.x] = __shfl_sync(0x1u, 1.0f, 0);  // line: wrong_mask
}
__global__ void forever(volatile float* out) {
    if (blockIdx.x == 1 && threadIdx.x == 17)
        while (out[0] >= 0) out[1] = 2;  // line: forever
}
__global__ void forever_with_barrier(volatile int* out) {
    while (out[0] == 0) __syncthreads();
}
__global__ void null_pointer(float* out, float* nothing) {
    if (threadIdx.x == 5) nothing[threadIdx.x] = 1;  // line: null_pointer
}
__global__ void wild_pointer(float* out) {
    if (blockIdx.x == 2) out[(1ll << 44) + threadIdx.x] = 1;  // line: wild_pointer
}
__global__ void past_dynamic(float* out) {
    extern __shared__ float s[];
    s[threadIdx.x + 1] = 1;  // line: past_dynamic
}
__global__ void past_static(float* out, int n) {
    __shared__ float tile[8][8];
    tile[threadIdx.x / 8 + n][threadIdx.x % 8] = 1;  // line: past_static
    __syncthreads();
    out[threadIdx.x] = tile[0][threadIdx.x % 8];
}
__global__ void misaligned(float* out) {
    reinterpret_cast<float4*>(out + 1)[threadIdx.x] = make_float4(0, 0, 0, 0);  // line: misaligned
}
__global__ void one_line(float* out) {
    // clang-format off
    if (threadIdx.x < 32) __syncthreads(); else __syncthreads();  // line: one_line
}
__global__ void sleeps(float* out) {
    for (;;) usleep(1000000);  // line: sleeps
}
__global__ void inner(float* out) { out[threadIdx.x] = 1; }
__global__ void launches(float* out) {
    inner<<<1, 1>>>(out);  // line: launches
}
__global__ void divides(int* out, int n) {
    out[threadIdx.x] = 7 / (n - static_cast<int>(threadIdx.x));  // line: divides
}
__global__ void asserts(float* out, int n) {
    assert(threadIdx.x < n);  // line: asserts
}
__global__ void traps(float* out) {
    if (threadIdx.x == 3) __trap();  // line: traps
}
__device__ __noinline__ int recurse(volatile int* out, int n) {
    volatile int local[64];
    local[n % 64] = out[0];
    return n == 0 ? 0 : recurse(out, n + 1) + local[(n + 1) % 64];  // line: recurse
}
__global__ void recursion(int* out) {
    if (threadIdx.x == 3) out[0] = recurse(out, 1);
}
__global__ void unfinished(float* out) {
    NOT_IMPLEMENTED();  // line: unfinished
}
__global__ void too_much_static(float* out) {
    __shared__ float s[13000];  // line: too_much_static
    s[threadIdx.x] = 1;
    out[0] = s[0];
}
__global__ void fine(float* out) { out[threadIdx.x] = 3; }

EXPORT(error_divergent, (float* out), { divergent<<<2, 128>>>(out); })
EXPORT(error_early_return, (float* out), { early_return<<<2, 128>>>(out, 100); })
EXPORT(error_two_barriers, (float* out), { two_barriers<<<1, 64>>>(out); })
EXPORT(error_divergent_shuffle, (float* out), { divergent_shuffle<<<1, 64>>>(out); })
EXPORT(error_mixed_shuffle, (float* out), { mixed_shuffle<<<1, 32>>>(out); })
EXPORT(error_wrong_mask, (float* out), { wrong_mask<<<1, 32>>>(out); })
EXPORT(error_forever, (float* out), { forever<<<4, 64>>>(out); })
EXPORT(error_forever_with_barrier, (int* out), { forever_with_barrier<<<1, 32>>>(out); })
EXPORT(error_null_pointer, (float* out), { null_pointer<<<2, 64>>>(out, nullptr); })
EXPORT(error_wild_pointer, (float* out), { wild_pointer<<<4, 64>>>(out); })
EXPORT(error_past_dynamic, (float* out), { past_dynamic<<<1, 64, 64 * sizeof(float)>>>(out); })
EXPORT(error_past_static, (float* out), { past_static<<<1, 64>>>(out, 1); })
EXPORT(error_misaligned, (float* out), { misaligned<<<1, 4>>>(out); })
EXPORT(error_one_line, (float* out), { one_line<<<1, 64>>>(out); })
EXPORT(error_sleeps, (float* out), { sleeps<<<1, 1>>>(out); })
EXPORT(error_launches, (float* out, int blocks), { launches<<<blocks, 4>>>(out); })
EXPORT(error_divides, (int* out), { divides<<<1, 32>>>(out, 9); })
EXPORT(error_asserts, (float* out), { asserts<<<1, 32>>>(out, 20); })
EXPORT(error_traps, (float* out), { traps<<<1, 32>>>(out); })
EXPORT(error_recursion, (int* out), { recursion<<<1, 64>>>(out); })
EXPORT(error_unfinished, (float* out), { unfinished<<<1, 32>>>(out); })
EXPORT(error_unfinished_host, (float* out), { NOT_IMPLEMENTED(); })  // line: unfinished_host
EXPORT(error_too_much_static, (float* out), { too_much_static<<<1, 32>>>(out); })
EXPORT(launch_fine, (float* out), { fine<<<2, 8>>>(out); })
