// What GPUs do where the programming guide leaves it open or leaves it to the hardware: every kernel here gives the same
// numbers on a GPU since Volta.
//
//   early_return        threads that have returned count as arrived at a __syncthreads()
//   counted             and are not counted in its votes
//   uneven_loop         the same for those that leave a loop with a barrier early and return
//   shuffle_after_return  a sum over the warp after some of its lanes have returned: theirs are zeros
//   active_in_branch    __activemask() in a branch names the lanes that took it
//   active_in_loop      and in a loop those that still are in it
//   aggregated          one atomicAdd for all lanes of a warp that come together
//   spin_beside         lanes that ask who is here while others of their warp wait for them in a spin loop
#include "test.h"

#define FULL 0xffffffffu

__global__ void early_return(float* out, const float* in, int n) {
    __shared__ float values[128];
    const int t = threadIdx.x;
    if (t >= n) return;
    values[t] = in[t];
    __syncthreads();
    out[t] = values[n - 1 - t];
}
EXPORT(hardware_early_return, (float* out, const float* in, int n), { early_return<<<1, 128>>>(out, in, n); })

__global__ void counted(int* out, int n) {
    const int t = threadIdx.x;
    if (t >= n) return;
    out[3 * t] = __syncthreads_count(t % 2 == 0);
    out[3 * t + 1] = __syncthreads_and(t < n);
    out[3 * t + 2] = __syncthreads_or(t >= n);
}
EXPORT(hardware_counted, (int* out, int n), { counted<<<1, 128>>>(out, n); })

__global__ void uneven_loop(float* out, const float* in, int n) {
    __shared__ float values[64];
    const int t = threadIdx.x;
    float sum = 0;
    for (int i = t; i < n; i += 64) {
        values[t] = in[i];
        __syncthreads();
        sum += values[t];
        __syncthreads();
    }
    out[t] = sum;
}
EXPORT(hardware_uneven_loop, (float* out, const float* in, int n), { uneven_loop<<<1, 64>>>(out, in, n); })

__global__ void shuffle_after_return(float* out, const float* in, int n) {
    const int t = threadIdx.x;
    if (t >= n) return;
    float sum = in[t];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(FULL, sum, d);
    if (t == 0) out[0] = sum;
}
EXPORT(hardware_shuffle_after_return, (float* out, const float* in, int n), {
    shuffle_after_return<<<1, 32>>>(out, in, n);
})

__global__ void active_in_branch(unsigned* out) {
    const int t = threadIdx.x;
    out[t] = 0;
    if (t % 3 == 0) {
        out[t] = __activemask();
    } else if (t % 3 == 1) {
        out[t] = __activemask();
    }
}
EXPORT(hardware_active_in_branch, (unsigned* out), { active_in_branch<<<1, 64>>>(out); })

__global__ void active_in_loop(unsigned* out) {
    const int t = threadIdx.x;
    for (int turn = 0; turn < t % 4; ++turn) out[t * 4 + turn] = __popc(__activemask());
}
EXPORT(hardware_active_in_loop, (unsigned* out), { active_in_loop<<<1, 32>>>(out); })

__device__ int aggregated_add(int* counter) {
    const unsigned together = __activemask();
    const int leader = __ffs(together) - 1, lane = threadIdx.x % 32;
    int first = 0;
    if (lane == leader) first = atomicAdd(counter, __popc(together));
    first = __shfl_sync(together, first, leader);
    return first + __popc(together & ((1u << lane) - 1));
}
__global__ void aggregated(int* out, int* counter, const int* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && in[i] > 0) out[aggregated_add(counter)] = in[i];
}
EXPORT(hardware_aggregated, (int* out, int* counter, const int* in, int n), {
    aggregated<<<(n + 127) / 128, 128>>>(out, counter, in, n);
})

__global__ void spin_beside(int* out, int* flag) {
    const int t = threadIdx.x;
    if (t == 0) {
        out[0] = __popc(__activemask()) > 0;
        __threadfence();
        atomicExch(flag, 1);
    } else if (t == 1) {
        while (atomicAdd(flag, 0) == 0) {
        }
        out[1] = 2;
    }
}
EXPORT(hardware_spin_beside, (int* out, int* flag), { spin_beside<<<1, 32>>>(out, flag); })
