// Flags and locks that a volatile store releases.
#include "case.h"

enum Fences { both, none, only_writer, only_reader };

// Within a block: the writer sets the flag after a fence, the reader waits for it.
template <Fences FENCES>
__global__ void hand_over(float* out) {
    __shared__ volatile int ready;
    __shared__ float data;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        while (ready == 0);  // line: waits for the flag
        if (FENCES == both || FENCES == only_reader) __threadfence_block();
        out[0] = data;  // line: data read
    } else if (threadIdx.x == 32) {
        data = 42;  // line: data write
        if (FENCES == both || FENCES == only_writer) __threadfence_block();
        ready = 1;  // line: sets the flag
    }
}
RUN(flag_between_fences, 1, 1, { hand_over<both><<<1, 64>>>(out.data); })
RUN(flag_without_fences, 1, 1, { hand_over<none><<<1, 64>>>(out.data); })
RUN(flag_without_reading_fence, 1, 1, { hand_over<only_writer><<<1, 64>>>(out.data); })
RUN(flag_without_writing_fence, 1, 1, { hand_over<only_reader><<<1, 64>>>(out.data); })

// A lock that a plain store gives back.
__device__ volatile int lock_word;
template <bool FENCED>
__global__ void locked(float* total) {
    if (threadIdx.x != 0) return;
    while (atomicCAS((int*)&lock_word, 0, 1) != 0);  // line: takes the lock
    if (FENCED) __threadfence();
    total[0] = total[0] + 1;  // line: within the lock
    if (FENCED) __threadfence();
    lock_word = 0;  // line: gives the lock back
}
RUN(volatile_lock_with_fences, 1, zeros(1), { locked<true><<<8, 32>>>(out.data); })
RUN(volatile_lock_without_fences, 1, zeros(1), { locked<false><<<8, 32>>>(out.data); })

// Blocks take turns: a block waits until those before it have counted.
__device__ volatile unsigned turn;
__global__ void in_turn(float* out) {
    if (threadIdx.x == 0) {
        while (turn != blockIdx.x) {  // line: waits for its turn
        }
        __threadfence();
        out[0] = 2 * out[0] + 1;
        __threadfence();
        turn = blockIdx.x + 1;  // line: next turn
    }
}
CASE(blocks_in_turn) {
    Array<float> out = zeros(1);
    const unsigned first = 0;
    require(cudaMemcpyToSymbol(turn, &first, sizeof first));
    in_turn<<<4, 32>>>(out.data);
    out.download(result);
}

// Volatile alone makes no counter, nor does a fence.
__global__ void counted(volatile float* out) {
    __threadfence();
    out[0] = out[0] + 1;  // line: volatile count
}
RUN(volatile_counter, 1, zeros(1), { counted<<<1, 64>>>(out.data); })
