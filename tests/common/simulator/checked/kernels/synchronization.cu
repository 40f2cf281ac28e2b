// Barriers and warp operations that some threads never reach. On a GPU this may hang, or go well by chance.
//
//   in_branch        __syncthreads() for some of the threads
//   in_two_branches  two __syncthreads(), one for each half of the threads
//   after_return     threads that have returned before the barrier
//   in_loop          a loop with a barrier that runs more often for some threads
//   per_block        a barrier that all threads of a block reach, or none: fine
//   absent_lanes     a shuffle whose mask names lanes that never come
//   not_in_mask      a mask that does not name the lane itself
//   waiting_lanes    half a warp in __syncwarp(), half in __syncthreads()
//   own_halves       masks that name just the lanes that come: fine
//   cuda_objects     a cuda::barrier and a cuda::atomic that init() and store() write first: fine
#include <cuda/atomic>
#include <cuda/barrier>

#include "case.h"
#include "common/cuda/warp.cuh"

__global__ void in_branch(const float* in, float* out) {
    __shared__ float values[64];
    const int t = threadIdx.x;
    values[t] = in[t];
    if (t < 40) __syncthreads();  // line: branch barrier
    out[t] = values[t];
}
RUN(barrier_in_branch, 64, 64, { in_branch<<<1, 64>>>(in.data, out.data); })

__global__ void in_two_branches(const float* in, float* out) {
    __shared__ float values[64];
    const int t = threadIdx.x;
    values[t] = in[t];
    if (t % 2 == 0) {
        __syncthreads();  // line: even barrier
        out[t] = values[63 - t];
    } else {
        __syncthreads();  // line: odd barrier
        out[t] = -values[63 - t];
    }
}
__global__ void in_one_line(const float* in, float* out) {
    __shared__ float values[64];
    const int t = threadIdx.x;
    values[t] = in[t];
    if (t % 2 == 0) __syncthreads(); else __syncthreads();  // line: both barriers
    out[t] = values[63 - t];
}
RUN(barriers_of_one_line, 64, 64, { in_one_line<<<1, 64>>>(in.data, out.data); })
RUN(barrier_in_two_branches, 64, 64, { in_two_branches<<<1, 64>>>(in.data, out.data); })

template <bool RETURN>
__global__ void after_return(const float* in, float* out, int n) {
    __shared__ float values[64];
    const int t = threadIdx.x;
    if (RETURN && t >= n) return;
    if (t < n) values[t] = in[t];
    __syncthreads();  // line: barrier after return
    if (t < n) out[t] = values[n - 1 - t];
}
RUN(barrier_before_return, 50, 50, { after_return<false><<<1, 64>>>(in.data, out.data, 50); })
RUN(barrier_after_return, 50, 50, { after_return<true><<<1, 64>>>(in.data, out.data, 50); })

// The sum of n values, 64 at a time. UNIFORM: all threads make the same number of steps.
template <bool UNIFORM>
__global__ void in_loop(const float* in, float* out, int n) {
    __shared__ float values[64];
    const int t = threadIdx.x;
    float sum = 0;
    for (int i = t; i < (UNIFORM ? n + t : n); i += 64) {
        values[t] = i < n ? in[i] : 0;
        __syncthreads();  // line: loop barrier
        sum += values[t ^ 1];
        __syncthreads();  // line: second loop barrier
    }
    out[t] = sum;
}
RUN(barrier_in_uniform_loop, 100, 64, { in_loop<true><<<1, 64>>>(in.data, out.data, 100); })
RUN(barrier_in_uneven_loop, 100, 64, { in_loop<false><<<1, 64>>>(in.data, out.data, 100); })

__global__ void per_block(const float* in, float* out) {
    __shared__ float values[64];
    const int t = threadIdx.x, i = blockIdx.x * 64 + t;
    if (blockIdx.x % 2 == 0) {
        values[t] = in[i];
        __syncthreads();
        out[i] = values[63 - t];
    } else {
        out[i] = in[i];
    }
}
RUN(barrier_in_some_blocks, 128, 128, { per_block<<<2, 64>>>(in.data, out.data); })

__global__ void absent_lanes(const float* in, float* out) {
    const int t = threadIdx.x;
    float value = in[t];
    if (t < 16) value += __shfl_xor_sync(FULL_WARP, value, 1);  // line: absent lanes
    __syncthreads();
    out[t] = value;
}
RUN(shuffle_with_absent_lanes, 64, 64, { absent_lanes<<<1, 64>>>(in.data, out.data); })

__global__ void not_in_mask(const float* in, float* out, unsigned mask) {
    __shared__ float values[32];
    const int t = threadIdx.x;
    values[t] = in[t];
    __syncwarp(mask);  // line: own lane missing
    out[t] = values[t];
}
RUN(syncwarp_full_mask, 32, 32, { not_in_mask<<<1, 32>>>(in.data, out.data, 0xffffffffu); })
RUN(syncwarp_without_own_lane, 32, 32, { not_in_mask<<<1, 32>>>(in.data, out.data, 0x0000ffffu); })

__global__ void waiting_lanes(const float* in, float* out) {
    const int t = threadIdx.x;
    float value = in[t];
    if (t < 16) {
        __syncwarp();  // line: waiting lanes
        value += 1;
    }
    __syncthreads();  // line: waiting threads
    out[t] = value;
}
RUN(syncwarp_with_absent_lanes, 32, 32, { waiting_lanes<<<1, 32>>>(in.data, out.data); })

__global__ void own_halves(const float* in, float* out) {
    const int t = threadIdx.x;
    float value = in[t];
    if (t < 16)
        value += __shfl_xor_sync(0x0000ffffu, value, 1);
    else
        value -= __shfl_xor_sync(0xffff0000u, value, 1);
    __syncthreads();
    out[t] = value;
}
RUN(shuffle_within_halves, 32, 32, { own_halves<<<1, 32>>>(in.data, out.data); })

__global__ void cuda_objects(float* out) {
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    __shared__ cuda::atomic<int, cuda::thread_scope_block> count;
    if (threadIdx.x == 0) init(&barrier, blockDim.x), count.store(0);
    __syncthreads();
    count.fetch_add(1);
    barrier.arrive_and_wait();
    out[threadIdx.x] = count.load();
}
RUN(cuda_barrier_and_atomic, 1, 64, { cuda_objects<<<1, 64>>>(out.data); })
