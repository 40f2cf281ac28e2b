// What working code does, right or wrong by the letter: locks, counters that clear themselves, CAS loops, lanes that
// write the same, shuffles among what is left of a warp.
//
//   block_lock        a spin lock among the threads of a block, of several warps
//   last_block        the last block to come adds up all partial sums and clears the counter for the next launch
//   cas_loop          an atomic minimum of floats; the first value may be read plainly, since the atomicCAS checks it
//   equal, unequal    all lanes of a warp write the same element
//   pairs             atomicAdd() of half2 and bfloat162
//   partial_warp      a sum over a warp some of whose lanes have returned
//   unnamed           a shuffle from a lane that the mask does not name
//   volatile_tail     the last steps of a reduction without __syncwarp()
//   append_active     one atomicAdd() for the lanes that __activemask() names
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "case.h"

template <bool FENCE>
__global__ void block_lock(float* out) {
    __shared__ int lock, counter;
    const int t = threadIdx.x;
    if (t == 0) lock = 0, counter = 0;
    __syncthreads();
    if (t % 2 == 0) {
        for (bool done = false; !done;) {
            if (atomicCAS(&lock, 0, 1) == 0) {
                if (FENCE) __threadfence_block();
                counter += 2;  // line: block counter
                if (FENCE) __threadfence_block();
                atomicExch(&lock, 0);
                done = true;
            }
        }
    }
    __syncthreads();
    if (t == 0) out[0] = counter;
}
RUN(block_lock_with_fences, 1, 1, { block_lock<true><<<1, 96>>>(out.data); })
RUN(block_lock_without_fences, 1, 1, { block_lock<false><<<1, 96>>>(out.data); })

__device__ unsigned int blocks_done = 0;
__global__ void last_block(const float* in, float* partial, float* out) {
    __shared__ bool is_last;
    __shared__ float values[32];
    const int t = threadIdx.x;
    values[t] = in[blockIdx.x * 32 + t];
    __syncthreads();
    if (t == 0) {
        float sum = 0;
        for (int i = 0; i < 32; ++i) sum += values[i];
        partial[blockIdx.x] = sum;
        __threadfence();
        is_last = atomicInc(&blocks_done, gridDim.x) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last || t != 0) return;
    float sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += partial[i];
    out[0] = sum;
    blocks_done = 0;
}
CASE(last_block_clears_its_counter) {
    Array<float> in = ramp(256), partial(8), out(2);
    last_block<<<8, 32>>>(in.data, partial.data, out.data);
    last_block<<<8, 32>>>(in.data, partial.data, out.data + 1);
    out.download(result);
}

template <bool PLAIN>
__global__ void cas_loop(const float* in, float* total) {
    int* address = reinterpret_cast<int*>(total);
    int old;
    if (PLAIN)
        old = *address;  // line: plain read before CAS
    else
        old = atomicAdd(address, 0);
    int assumed;
    do {
        assumed = old;
        old = atomicCAS(address, assumed, __float_as_int(__int_as_float(assumed) + in[threadIdx.x]));  // line: first CAS
    } while (assumed != old);
}
RUN(cas_loop_atomic_read, 64, zeros(1), { cas_loop<false><<<1, 64>>>(in.data, out.data); })
RUN(cas_loop_plain_read, 64, zeros(1), { cas_loop<true><<<1, 64>>>(in.data, out.data); })

__global__ void equal_lanes(const float* in, float* out) {
    __shared__ float total;
    float sum = in[threadIdx.x];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    total = sum;  // line: equal write
    __syncthreads();
    out[threadIdx.x] = total;
}
__global__ void unequal_lanes(const float* in, float* out) {
    __shared__ float total;
    total = in[threadIdx.x];  // line: unequal write
    __syncthreads();
    out[threadIdx.x] = total;
}
RUN(lanes_write_equal_values, 32, 32, { equal_lanes<<<1, 32>>>(in.data, out.data); })
RUN(lanes_write_unequal_values, 32, 32, { unequal_lanes<<<1, 32>>>(in.data, out.data); })

__global__ void pairs(float* out) {
    __shared__ __half2 halves;
    __shared__ __nv_bfloat162 brains;
    if (threadIdx.x == 0) halves = __floats2half2_rn(0, 0), brains = __floats2bfloat162_rn(0, 0);
    __syncthreads();
    atomicAdd(&halves, __floats2half2_rn(1, 2));
    atomicAdd(&brains, __floats2bfloat162_rn(1, 2));
    __syncthreads();
    if (threadIdx.x != 0) return;
    out[0] = __low2float(halves), out[1] = __high2float(halves);
    out[2] = __low2float(brains), out[3] = __high2float(brains);
}
RUN(pair_atomics, 1, 4, { pairs<<<1, 64>>>(out.data); })

template <bool RETURN>
__global__ void partial_warp(const float* in, float* out, int n) {
    const int t = threadIdx.x;
    if (RETURN && t >= n) return;
    float sum = t < n ? in[t] : 0;
    for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffffu, sum, d);  // line: shuffle after return
    if (t == 0) out[0] = sum;
}
RUN(shuffle_after_return, 20, 1, { partial_warp<true><<<1, 32>>>(in.data, out.data, 20); })
RUN(shuffle_before_return, 20, 1, { partial_warp<false><<<1, 32>>>(in.data, out.data, 20); })

template <bool LEAVE>
__global__ void count_above(const float* in, float* out, int n) {
    int count = 0;
    for (int i = threadIdx.x; i < (LEAVE ? n : (n + 31) & ~31); i += 32)
        count += __popc(__ballot_sync(0xffffffffu, i < n && in[i] > 0));  // line: vote after return
    if (threadIdx.x == 0) out[0] = count;
}
RUN(ballot_after_return, 40, 1, { count_above<true><<<1, 32>>>(in.data, out.data, 40); })
RUN(ballot_before_return, 40, 1, { count_above<false><<<1, 32>>>(in.data, out.data, 40); })

__global__ void unnamed(const float* in, float* out) {
    const int t = threadIdx.x;
    float value = in[t];
    if (t < 16) value = __shfl_sync(0x0000ffffu, value, 20);  // line: unnamed source
    __syncwarp();
    out[t] = value;
}
RUN(shuffle_from_unnamed_lane, 32, 32, { unnamed<<<1, 32>>>(in.data, out.data); })

__global__ void volatile_tail(const float* in, float* out) {
    __shared__ float sums[64];
    const int t = threadIdx.x;
    sums[t] = in[t];
    __syncthreads();
    if (t < 32) {
        volatile float* tail = sums;
        for (int half = 32; half > 0; half /= 2) tail[t] = tail[t] + tail[t + half];  // line: tail step
    }
    if (t == 0) out[0] = sums[0];
}
RUN(volatile_tail, 64, 1, { volatile_tail<<<1, 64>>>(in.data, out.data); })

__global__ void append_active(const float* in, float* kept, int* count) {
    const int t = threadIdx.x;
    if (in[t] < 10) return;
    const unsigned together = __activemask();
    const int leader = __ffs(together) - 1;
    int first = 0;
    if (t % 32 == leader) first = atomicAdd(count, __popc(together));
    first = __shfl_sync(together, first, leader);
    kept[first + __popc(together & ((1u << t % 32) - 1))] = in[t];
}
CASE(active_lanes_aggregate) {
    Array<float> in = ramp(128), kept(128);
    Array<int> count = zeros<int>(1);
    append_active<<<1, 128>>>(in.data, kept.data, count.data);
    count.download(result);
}
