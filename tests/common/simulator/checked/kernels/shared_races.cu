// Races in shared memory: two threads of a block touch the same bytes, one of them writes, and no barrier is between.
//
//   shift            write, then read by another thread
//   sum_of_tiles     read, then the next tile is written over it
//   bucket           two threads write the same element
//   flag             all write the same value to the same element
//   broadcast        one thread writes, all read
//   max_then_sum     two reductions through the same array
//   tree             each step of a tree reduction needs the step before
//   double_buffer    two buffers save one barrier of two, not both
//   scan             in place, or from one buffer into the other
//   narrow           elements of two bytes and of one byte side by side, each with its own thread
//   overlapping_bytes, colliding_bytes   the same, but two threads for some bytes
//   vector_write     16 bytes written at once, 4 of them read
//   slices           a pointer into the part of another thread
//   votes            __syncthreads_count() and its like are barriers, too
#include <cuda_fp16.h>

#include "case.h"
#include "common/cuda/warp.cuh"

// out[t] = in[t - 1].
template <bool WAIT>
__global__ void shift(const float* in, float* out) {
    __shared__ float tile[64];
    const int t = threadIdx.x;
    tile[t] = in[t];  // line: shift write
    if (WAIT) __syncthreads();
    out[t] = t > 0 ? tile[t - 1] : 0;  // line: shift read
}
RUN(shift_with_barrier, 64, 64, { shift<true><<<1, 64>>>(in.data, out.data); })
RUN(shift_without_barrier, 64, 64, { shift<false><<<1, 64>>>(in.data, out.data); })

// out[t] = in[63 - t]. A thread may read what no thread has written yet.
template <bool WAIT>
__global__ void reverse(const float* in, float* out) {
    __shared__ float line[64];
    const int t = threadIdx.x;
    line[t] = in[t];  // line: reverse write
    if (WAIT) __syncthreads();
    out[t] = line[63 - t];  // line: reverse read
}
RUN(reverse_with_barrier, 64, 64, { reverse<true><<<1, 64>>>(in.data, out.data); })
RUN(reverse_without_barrier, 64, 64, { reverse<false><<<1, 64>>>(in.data, out.data); })

// Four tiles of 64 go through the same array; out[t] is the sum over the tiles of element 63 - t.
template <bool WAIT>
__global__ void sum_of_tiles(const float* in, float* out) {
    __shared__ float tile[64];
    const int t = threadIdx.x;
    float sum = 0;
    for (int step = 0; step < 4; ++step) {
        tile[t] = in[step * 64 + t];  // line: tile write
        __syncthreads();
        sum += tile[63 - t];  // line: tile read
        if (WAIT) __syncthreads();
    }
    out[t] = sum;
}
RUN(tiles_two_barriers, 256, 64, { sum_of_tiles<true><<<1, 64>>>(in.data, out.data); })
RUN(tiles_one_barrier, 256, 64, { sum_of_tiles<false><<<1, 64>>>(in.data, out.data); })

// Element t / 2 comes from thread t: from both threads of a pair, or from the even one.
template <bool BOTH>
__global__ void bucket(const float* in, float* out) {
    __shared__ float pairs[32];
    const int t = threadIdx.x;
    if (BOTH || t % 2 == 0) pairs[t / 2] = in[t];  // line: bucket write
    __syncthreads();
    out[t] = pairs[t / 2];
}
RUN(one_writer, 64, 64, { bucket<false><<<1, 64>>>(in.data, out.data); })
RUN(two_writers, 64, 64, { bucket<true><<<1, 64>>>(in.data, out.data); })

// Is any element above 40? All threads that find one write the same 1.
template <bool ATOMIC>
__global__ void flag(const float* in, float* out) {
    __shared__ int found;
    const int t = threadIdx.x;
    if (t == 0) found = 0;
    __syncthreads();
    if (in[t] > 40) {
        if (ATOMIC)
            atomicExch(&found, 1);
        else
            found = 1;  // line: flag write
    }
    __syncthreads();
    out[t] = found;
}
RUN(same_value_atomic, 64, 64, { flag<true><<<1, 64>>>(in.data, out.data); })
RUN(same_value_plain, 64, 64, { flag<false><<<1, 64>>>(in.data, out.data); })

// Thread 0 sums up the row for all.
template <bool WAIT>
__global__ void broadcast(const float* in, float* out) {
    __shared__ float total;
    const int t = threadIdx.x;
    if (t == 0) {
        float sum = 0;
        for (int i = 0; i < 64; ++i) sum += in[i];
        total = sum;  // line: broadcast write
    }
    if (WAIT) __syncthreads();
    out[t] = in[t] / total;  // line: broadcast read
}
RUN(broadcast_with_barrier, 64, 64, { broadcast<true><<<1, 64>>>(in.data, out.data); })
RUN(broadcast_without_barrier, 64, 64, { broadcast<false><<<1, 64>>>(in.data, out.data); })

// Softmax of 64 values. One warp may write its sum while the other still reads the maxima.
template <bool WAIT>
__global__ void max_then_sum(const float* in, float* out) {
    __shared__ float partial[2];  // one value per warp
    const int t = threadIdx.x, warp = t / 32;
    const float warp_maximum = warp_max(in[t]);
    if (t % 32 == 0) partial[warp] = warp_maximum;
    __syncthreads();
    const float maximum = fmaxf(partial[0], partial[1]);  // line: maxima read
    if (WAIT) __syncthreads();
    const float term = expf(in[t] - maximum), warp_total = warp_sum(term);
    if (t % 32 == 0) partial[warp] = warp_total;  // line: sum write
    __syncthreads();
    out[t] = term / (partial[0] + partial[1]);
}
RUN(two_reductions_three_barriers, 64, 64, { max_then_sum<true><<<1, 64>>>(in.data, out.data); })
RUN(two_reductions_two_barriers, 64, 64, { max_then_sum<false><<<1, 64>>>(in.data, out.data); })

// Each step adds the upper half to the lower half.
template <bool WAIT>
__global__ void tree(const float* in, float* out) {
    __shared__ float sums[128];
    const int t = threadIdx.x;
    sums[t] = in[t];
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
        if (t < half) sums[t] += sums[t + half];  // line: tree step
        if (WAIT) __syncthreads();
    }
    if (t == 0) out[0] = sums[0];
}
RUN(tree_with_barriers, 128, 1, { tree<true><<<1, 128>>>(in.data, out.data); })
RUN(tree_without_barriers, 128, 1, { tree<false><<<1, 128>>>(in.data, out.data); })

// The next tile is loaded into one buffer while the other is read: one barrier per step is enough, one every second
// step is not.
template <bool EVERY_STEP>
__global__ void double_buffer(const float* in, float* out) {
    __shared__ float buffer[2][64];
    const int t = threadIdx.x, before = t > 0 ? t - 1 : 0;
    float sum = 0;
    buffer[0][t] = in[t];
    for (int step = 0; step < 4; ++step) {
        if (EVERY_STEP || step % 2 == 0) __syncthreads();
        if (step < 3) buffer[(step + 1) % 2][t] = in[(step + 1) * 64 + t];  // line: next write
        sum += buffer[step % 2][before];                                     // line: current read
    }
    out[t] = sum;
}
RUN(double_buffer_right, 256, 64, { double_buffer<true><<<1, 64>>>(in.data, out.data); })
RUN(double_buffer_half_the_barriers, 256, 64, { double_buffer<false><<<1, 64>>>(in.data, out.data); })

// Inclusive prefix sums. Between two buffers one barrier per step orders everything.
__global__ void scan_ping_pong(const float* in, float* out) {
    __shared__ float buffer[2][64];
    const int t = threadIdx.x;
    int from = 0;
    buffer[0][t] = in[t];
    __syncthreads();
    for (int distance = 1; distance < 64; distance *= 2) {
        buffer[1 - from][t] = buffer[from][t] + (t >= distance ? buffer[from][t - distance] : 0);
        __syncthreads();
        from = 1 - from;
    }
    out[t] = buffer[from][t];
}
// In place, a thread overwrites what another one still has to read: that takes a second barrier between read and write.
template <bool WAIT>
__global__ void scan_in_place(const float* in, float* out) {
    __shared__ float sums[64];
    const int t = threadIdx.x;
    sums[t] = in[t];
    __syncthreads();
    for (int distance = 1; distance < 64; distance *= 2) {
        const float other = t >= distance ? sums[t - distance] : 0;  // line: scan read
        if (WAIT) __syncthreads();
        sums[t] += other;  // line: scan write
        __syncthreads();
    }
    out[t] = sums[t];
}
RUN(scan_two_buffers, 64, 64, { scan_ping_pong<<<1, 64>>>(in.data, out.data); })
RUN(scan_in_place_two_barriers, 64, 64, { scan_in_place<true><<<1, 64>>>(in.data, out.data); })
RUN(scan_in_place_one_barrier, 64, 64, { scan_in_place<false><<<1, 64>>>(in.data, out.data); })

// Neighboring threads read and write neighboring elements that share a word, never the same element.
template <typename T>
__global__ void narrow(const float* in, float* out) {
    __shared__ T values[64];
    const int t = threadIdx.x;
    values[t] = T(in[t]);
    __syncthreads();
    for (int i = 0; i < 3; ++i) {
        values[t ^ 1] = T(static_cast<float>(values[t ^ 1]) + 1);
        __syncthreads();
        values[t] = T(static_cast<float>(values[t]) + 1);
        __syncthreads();
    }
    out[t] = static_cast<float>(values[63 - t]);
}
RUN(adjacent_halves, 64, 64, { narrow<__half><<<1, 64>>>(in.data, out.data); })
RUN(adjacent_bytes, 64, 64, { narrow<unsigned char><<<1, 64>>>(in.data, out.data); })
// Two bytes written at once, one of them by another thread, too.
__global__ void overlapping_bytes(const float* in, float* out) {
    __shared__ unsigned short words[32];
    const int t = threadIdx.x;
    unsigned char* bytes = reinterpret_cast<unsigned char*>(words);
    if (t < 32)
        words[t] = static_cast<unsigned short>(in[t]);  // line: word write
    else
        bytes[2 * (t - 32) + 1] = 0;  // line: byte write
    __syncthreads();
    out[t] = words[t / 2];
}
RUN(byte_of_a_word, 64, 64, { overlapping_bytes<<<1, 64>>>(in.data, out.data); })

// 64 threads write 32 bytes: thread t and thread t + 32 the same one, its neighbors in between.
__global__ void colliding_bytes(const float* in, float* out) {
    __shared__ unsigned char bytes[32];
    const int t = threadIdx.x;
    bytes[t % 32] = static_cast<unsigned char>(in[t % 32]);  // line: colliding write
    __syncthreads();
    out[t] = bytes[31 - t % 32];
}
RUN(bytes_with_two_writers, 64, 64, { colliding_bytes<<<1, 64>>>(in.data, out.data); })

// 16 threads write four floats each, all 64 read one.
template <bool WAIT>
__global__ void vector_write(const float4* in, float* out) {
    __shared__ float4 quads[16];
    const int t = threadIdx.x;
    if (t < 16) quads[t] = in[t];  // line: vector write
    if (WAIT) __syncthreads();
    const float* values = reinterpret_cast<const float*>(quads);
    out[t] = values[t];  // line: component read
}
RUN(vector_with_barrier, 64, 64, { vector_write<true><<<1, 64>>>(reinterpret_cast<float4*>(in.data), out.data); })
RUN(vector_without_barrier, 64, 64, { vector_write<false><<<1, 64>>>(reinterpret_cast<float4*>(in.data), out.data); })

// Every thread owns four elements of dynamic shared memory and reads those of the thread before.
__device__ float sum_of_slice(const float* slice) {
    return slice[0] + slice[1] + slice[2] + slice[3];  // line: slice read
}
template <bool WAIT>
__global__ void slices(const float* in, float* out) {
    extern __shared__ float scratch[];
    const int t = threadIdx.x;
    float* mine = scratch + 4 * t;
    for (int i = 0; i < 4; ++i) mine[i] = in[4 * t + i];  // line: slice write
    if (WAIT) __syncthreads();
    out[t] = sum_of_slice(t > 0 ? mine - 4 : mine);
}
RUN(other_slice_with_barrier, 256, 64, { slices<true><<<1, 64, 256 * sizeof(float)>>>(in.data, out.data); })
RUN(other_slice_without_barrier, 256, 64, { slices<false><<<1, 64, 256 * sizeof(float)>>>(in.data, out.data); })

__global__ void votes(const float* in, float* out) {
    __shared__ float first[64], second[64], third[64];
    const int t = threadIdx.x;
    first[t] = in[t];
    const int count = __syncthreads_count(in[t] > 9);
    second[t] = first[63 - t];
    const int some = __syncthreads_or(in[t] > 99);
    third[t] = second[63 - t];
    const int all = __syncthreads_and(in[t] < 99);
    out[t] = third[63 - t] + 100 * count + 10000 * (some != 0) + 20000 * (all != 0);
}
RUN(votes_are_barriers, 64, 64, { votes<<<1, 64>>>(in.data, out.data); })
