// Races in global memory, atomics and fences.
//
//   neighbors        a barrier orders the threads of a block, also in global memory
//   other_block       no barrier orders two blocks; the next kernel does
//   overlap           blocks whose parts overlap by one element
//   stencil           in place: each thread reads what its neighbor writes
//   count             one counter for all: atomics, plain additions, an atomic next to a plain read
//   histogram         bins in shared memory
//   aggregated        one atomic per warp, its result handed out by a shuffle
//   last_block        the block that finishes last adds up what all have written: fence, then ticket
//   last_thread       the same for a total that all threads add to
//   locked            a spin lock
//   message           one thread waits for the flag of another one
//   ptx_message       the same by st.release and ld.acquire of inline PTX, or by relaxed ones, which order nothing else
#include "case.h"
#include "common/cuda/warp.cuh"

// data[t] = 2 in[t], then out[t] = data[t - 1].
template <bool WAIT>
__global__ void neighbors(const float* in, float* data, float* out) {
    const int t = threadIdx.x;
    data[t] = 2 * in[t];  // line: neighbor write
    if (WAIT) __syncthreads();
    out[t] = t > 0 ? data[t - 1] : 0;  // line: neighbor read
}
template <bool WAIT>
static void neighbors_case(float* result) {
    Array<float> in = ramp(64), data(64), out(64);
    neighbors<WAIT><<<1, 64>>>(in.data, data.data, out.data);
    out.download(result);
}
CASE(global_with_barrier) { neighbors_case<true>(result); }
CASE(global_without_barrier) { neighbors_case<false>(result); }

__global__ void doubled(const float* in, float* data) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    data[i] = 2 * in[i];
}
__global__ void from_block_before(const float* data, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = blockIdx.x > 0 ? data[i - blockDim.x] : 0;
}
// The same in one kernel.
__global__ void other_block(const float* in, float* data, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    data[i] = 2 * in[i];  // line: block write
    __syncthreads();
    out[i] = blockIdx.x > 0 ? data[i - blockDim.x] : 0;  // line: block read
}
CASE(blocks_in_two_kernels) {
    Array<float> in = ramp(128), data(128), out(128);
    doubled<<<4, 32>>>(in.data, data.data);
    from_block_before<<<4, 32>>>(data.data, out.data);
    out.download(result);
}
CASE(blocks_in_one_kernel) {
    Array<float> in = ramp(128), data(128), out(128);
    other_block<<<4, 32>>>(in.data, data.data, out.data);
    out.download(result);
}

// Every block writes 32 elements; the first of each is `step` further than that of the block before.
__global__ void overlap(const float* in, float* out, int step) {
    const int t = threadIdx.x;
    out[blockIdx.x * step + t] = in[blockIdx.x * 32 + t];  // line: overlapping write
}
RUN(blocks_side_by_side, 128, 128, { overlap<<<4, 32>>>(in.data, out.data, 32); })
RUN(blocks_overlap, 128, 125, { overlap<<<4, 32>>>(in.data, out.data, 31); })

// to[t] = from[t - 1] + from[t].
__global__ void stencil(const float* from, float* to) {
    const int t = threadIdx.x;
    const float left = t > 0 ? from[t - 1] : 0;  // line: stencil read
    to[t] = left + from[t];                      // line: stencil write
}
RUN(stencil_out_of_place, 64, 64, { stencil<<<1, 64>>>(in.data, out.data); })
CASE(stencil_in_place) {
    Array<float> data = ramp(64);
    stencil<<<1, 64>>>(data.data, data.data);
    data.download(result);
}

enum class Count { atomic, plain, peek };
// How many elements are above 9? `peek`: every thread also looks at the counter as it is at that moment.
template <Count HOW>
__global__ void count(const float* in, int* counter, int* seen) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (in[i] <= 9) return;
    if (HOW == Count::plain)
        counter[0] += 1;  // line: plain count
    else
        atomicAdd(counter, 1);  // line: atomic count
    if (HOW == Count::peek) seen[i] = counter[0];  // line: plain read
}
template <Count HOW>
static void count_case(float* result) {
    Array<float> in = ramp(128);
    Array<int> counter = zeros<int>(1), seen(128);
    count<HOW><<<2, 64>>>(in.data, counter.data, seen.data);
    counter.download(result);
}
CASE(counter_atomic) { count_case<Count::atomic>(result); }
CASE(counter_plain) { count_case<Count::plain>(result); }
CASE(counter_atomic_and_plain_read) { count_case<Count::peek>(result); }

// bins[b] = how many of the block's 128 elements are b modulo 16.
//   ATOMIC false   plain additions
//   WAIT false     nothing between setting the bins to zero and counting
template <bool ATOMIC, bool WAIT>
__global__ void histogram(const int* in, int* out) {
    __shared__ int bins[16];
    const int t = threadIdx.x;
    if (t < 16) bins[t] = 0;  // line: bins to zero
    if (WAIT) __syncthreads();
    if (ATOMIC)
        atomicAdd(&bins[in[t] % 16], 1);  // line: atomic bin
    else
        bins[in[t] % 16] += 1;  // line: plain bin
    __syncthreads();
    if (t < 16) out[t] = bins[t];
}
template <bool ATOMIC, bool WAIT>
static void histogram_case(float* result) {
    Array<int> in = integers(128), out(16);
    histogram<ATOMIC, WAIT><<<1, 128>>>(in.data, out.data);
    out.download(result);
}
CASE(histogram_right) { histogram_case<true, true>(result); }
CASE(histogram_plain) { histogram_case<false, true>(result); }
CASE(histogram_no_barrier) { histogram_case<true, false>(result); }

// Appends the elements above 9: one atomic per warp reserves room for all its lanes.
__global__ void aggregated(const float* in, int* size, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    const unsigned takers = __ballot_sync(FULL_WARP, in[i] > 9);
    int first = 0;
    if (lane == 0) first = atomicAdd(size, __popc(takers));
    first = __shfl_sync(FULL_WARP, first, 0);
    if (in[i] > 9) out[first + __popc(takers & ((1u << lane) - 1))] = in[i];
}
CASE(append_aggregated) {
    Array<float> in = ramp(128), out(118);
    Array<int> size = zeros<int>(1);
    aggregated<<<2, 64>>>(in.data, size.data, out.data);
    size.download(result);
}

enum class Fence { none, block, device, too_early };
template <Fence WIDTH>
__device__ void fence() {
    if (WIDTH == Fence::device) __threadfence();
    if (WIDTH == Fence::block) __threadfence_block();
}

// The sum of 32 values per block; the block with the last ticket adds up those sums. Between a block's sum and its
// ticket is a fence, and another one between the last ticket and the sums that it announces.
template <Fence WIDTH>
__global__ void last_block(const float* in, float* partial, unsigned* tickets, float* out) {
    __shared__ bool last;
    const int t = threadIdx.x;
    const float sum = warp_sum(in[blockIdx.x * 32 + t]);
    if (t == 0) {
        if (WIDTH == Fence::too_early) __threadfence();
        partial[blockIdx.x] = sum;  // line: partial write
        fence<WIDTH>();
        last = atomicAdd(tickets, 1u) == gridDim.x - 1;
        fence<WIDTH>();
        if (WIDTH == Fence::too_early) __threadfence();
    }
    __syncthreads();
    if (!last) return;
    const float total = warp_sum(t < gridDim.x ? partial[t] : 0);  // line: partial read
    if (t == 0) out[0] = total;
}
template <Fence WIDTH>
static void last_block_case(float* result) {
    Array<float> in = ramp(256), partial(8), out(1);
    Array<unsigned> tickets = zeros<unsigned>(1);
    last_block<WIDTH><<<8, 32>>>(in.data, partial.data, tickets.data, out.data);
    out.download(result);
}
CASE(last_block_with_fence) { last_block_case<Fence::device>(result); }
CASE(last_block_without_fence) { last_block_case<Fence::none>(result); }
CASE(last_block_narrow_fence) { last_block_case<Fence::block>(result); }
CASE(last_block_fence_too_early) { last_block_case<Fence::too_early>(result); }

// Every thread adds to a total; the one with the last ticket reads it with a plain load.
template <bool FENCE>
__global__ void last_thread(const float* in, float* total, unsigned* tickets, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(total, in[i]);  // line: atomic total
    if (FENCE) __threadfence();
    const unsigned ticket = atomicAdd(tickets, 1u);
    if (FENCE) __threadfence();
    if (ticket == gridDim.x * blockDim.x - 1) out[0] = total[0];  // line: total read
}
template <bool FENCE>
static void last_thread_case(float* result) {
    Array<float> in = ramp(128), total = zeros(1), out(1);
    Array<unsigned> tickets = zeros<unsigned>(1);
    last_thread<FENCE><<<2, 64>>>(in.data, total.data, tickets.data, out.data);
    out.download(result);
}
CASE(last_thread_with_fences) { last_thread_case<true>(result); }
CASE(last_thread_without_fences) { last_thread_case<false>(result); }

// The same with all threads writing and reading: the barriers carry the order from and to the thread with the ticket.
__global__ void last_block_all_threads(const float* in, float* data, unsigned* tickets, float* out) {
    __shared__ bool last;
    const int t = threadIdx.x;
    data[blockIdx.x * 32 + t] = 2 * in[blockIdx.x * 32 + t];
    __syncthreads();
    if (t == 0) {
        __threadfence();
        last = atomicAdd(tickets, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (!last) return;
    float sum = 0;
    for (int block = 0; block < gridDim.x; ++block) sum += data[block * 32 + t];
    out[t] = sum;
}
CASE(last_block_barriers_and_fence) {
    Array<float> in = ramp(256), data(256), out(32);
    Array<unsigned> tickets = zeros<unsigned>(1);
    last_block_all_threads<<<8, 32>>>(in.data, data.data, tickets.data, out.data);
    out.download(result);
}

// Each block adds its number to a total that one lock protects.
template <bool LOCK, bool FENCE>
__global__ void locked(int* lock, float* total) {
    if (LOCK)
        while (atomicCAS(lock, 0, 1) != 0) {
        }
    if (FENCE) __threadfence();
    total[0] += blockIdx.x;  // line: protected
    if (FENCE) __threadfence();
    if (LOCK) atomicExch(lock, 0);
}
template <bool LOCK, bool FENCE>
static void locked_case(float* result) {
    Array<float> total = zeros(1);
    Array<int> lock = zeros<int>(1);
    locked<LOCK, FENCE><<<16, 1>>>(lock.data, total.data);
    total.download(result);
}
CASE(lock_with_fences) { locked_case<true, true>(result); }
CASE(lock_without_fences) { locked_case<true, false>(result); }
CASE(no_lock) { locked_case<false, false>(result); }

// Thread 0 leaves a message for thread 32, which waits for the flag: in shared memory, within one block.
template <bool FENCE>
__global__ void message(const float* in, float* out) {
    __shared__ float text;
    __shared__ int flag;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        text = in[7];  // line: message write
        if (FENCE) __threadfence_block();
        atomicExch(&flag, 1);
    } else if (threadIdx.x == 32) {
        while (atomicAdd(&flag, 0) == 0) {
        }
        if (FENCE) __threadfence_block();
        out[0] = text;  // line: message read
    }
}
RUN(message_with_fences, 64, 1, { message<true><<<1, 64>>>(in.data, out.data); })
RUN(message_without_fences, 64, 1, { message<false><<<1, 64>>>(in.data, out.data); })

// One thread of warp 0 writes data and then the flag, one of warp 1 waits for the flag and reads the data.
template <bool ORDERED>
__global__ void ptx_message(float* data, int* flag, float* out) {
    if (threadIdx.x == 0) {
        data[0] = 7;  // line: ptx message
        if (ORDERED)
            asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(flag), "r"(1) : "memory");
        else
            asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(flag), "r"(1) : "memory");
    }
    if (threadIdx.x == 32) {
        int seen = 0;
        while (seen == 0) {
            if (ORDERED)
                asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
            else
                asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        }
        out[0] = data[0];  // line: ptx message read
    }
}
template <bool ORDERED>
static void ptx_message_case(float* result) {
    Array<float> data(1), out(1);
    Array<int> flag = zeros<int>(1);
    ptx_message<ORDERED><<<1, 64>>>(data.data, flag.data, out.data);
    out.download(result);
}
CASE(ptx_message_released) { ptx_message_case<true>(result); }
CASE(ptx_message_relaxed) { ptx_message_case<false>(result); }
