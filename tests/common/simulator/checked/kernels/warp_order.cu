// Order within a warp: its lanes do not run in step, and only __syncwarp() among the lanes concerned (or a barrier of
// the block) orders their memory accesses. Shuffles exchange registers; they order nothing in memory.
//
//   warp_tree            the old warp-synchronous reduction, with no, one and two __syncwarp() per step
//   warp_tree_guarded    one per step is enough where no lane reads what another one writes
//   half_warps           __syncwarp() with a mask orders the lanes that it names
//   shuffle_instead      a reduction without shared memory
//   shuffle_as_barrier   a shuffle between write and read
//   reused_slot          the read must be over before the next write, too
//   warp_private         every warp has its own part and needs no barrier
//   across_warps         __syncwarp() in a block of two warps
#include "case.h"
#include "common/cuda/warp.cuh"

// Sum of 64 values by one warp. `volatile` keeps the compiler from holding values in registers; it orders nothing.
//   SYNCS 0   none: code for GPUs whose lanes ran in step
//   SYNCS 1   after each step; but lane 0 may still have to read sums[8] when lane 8 adds to it
//   SYNCS 2   between read and write as well
template <int SYNCS>
__global__ void warp_tree(const float* in, float* out) {
    __shared__ volatile float sums[64];
    const int lane = threadIdx.x;
    sums[lane] = in[lane];
    sums[lane + 32] = in[lane + 32];
    __syncwarp();
    for (int distance = 32; distance > 0; distance /= 2) {
        const float sum = sums[lane] + sums[lane + distance];  // line: warp tree read
        if (SYNCS == 2) __syncwarp();
        sums[lane] = sum;  // line: warp tree write
        if (SYNCS >= 1) __syncwarp();
    }
    if (lane == 0) out[0] = sums[0];
}
RUN(warp_tree_no_syncwarp, 64, 1, { warp_tree<0><<<1, 32>>>(in.data, out.data); })
RUN(warp_tree_one_syncwarp, 64, 1, { warp_tree<1><<<1, 32>>>(in.data, out.data); })
RUN(warp_tree_two_syncwarps, 64, 1, { warp_tree<2><<<1, 32>>>(in.data, out.data); })

__global__ void warp_tree_guarded(const float* in, float* out) {
    __shared__ float sums[64];
    const int lane = threadIdx.x;
    sums[lane] = in[lane];
    sums[lane + 32] = in[lane + 32];
    __syncwarp();
    for (int distance = 32; distance > 0; distance /= 2) {
        if (lane < distance) sums[lane] += sums[lane + distance];
        __syncwarp();
    }
    if (lane == 0) out[0] = sums[0];
}
RUN(warp_tree_guarded_one_syncwarp, 64, 1, { warp_tree_guarded<<<1, 32>>>(in.data, out.data); })

// The halves of a warp take different branches. Each reverses its own 16 values, or (CROSS) the upper half reads those
// of the lower half, which no __syncwarp() of theirs orders.
template <bool CROSS>
__global__ void half_warps(const float* in, float* out) {
    __shared__ float values[32];
    const int lane = threadIdx.x;
    values[lane] = in[lane];  // line: half write
    if (lane < 16) {
        __syncwarp(0x0000ffffu);
        out[lane] = values[15 - lane];
    } else {
        __syncwarp(0xffff0000u);
        out[lane] = values[CROSS ? 31 - lane : 47 - lane];  // line: half read
    }
}
RUN(half_masks_within_halves, 32, 32, { half_warps<false><<<1, 32>>>(in.data, out.data); })
RUN(half_masks_across_halves, 32, 32, { half_warps<true><<<1, 32>>>(in.data, out.data); })

__global__ void shuffle_instead(const float* in, float* out) {
    const float sum = warp_sum(in[threadIdx.x]);
    out[threadIdx.x] = __shfl_up_sync(FULL_WARP, in[threadIdx.x], 1) + sum;
}
RUN(shuffles_only, 64, 64, { shuffle_instead<<<1, 64>>>(in.data, out.data); })

// out[lane] = the value of the lane before, plus the sum of all. The sum brings the lanes together, and yet what they
// wrote before may not be seen after it.
template <bool SYNC>
__global__ void shuffle_as_barrier(const float* in, float* out) {
    __shared__ float values[32];
    const int lane = threadIdx.x;
    values[lane] = in[lane];  // line: before shuffle
    const float sum = warp_sum(in[lane]);
    if (SYNC) __syncwarp();
    out[lane] = sum + (lane > 0 ? values[lane - 1] : 0);  // line: after shuffle
}
RUN(shuffle_and_syncwarp, 32, 32, { shuffle_as_barrier<true><<<1, 32>>>(in.data, out.data); })
RUN(shuffle_without_syncwarp, 32, 32, { shuffle_as_barrier<false><<<1, 32>>>(in.data, out.data); })

// Four rounds: each lane hands its value to the next one through the same slot.
template <bool SYNC>
__global__ void reused_slot(const float* in, float* out) {
    __shared__ float slots[32];
    const int lane = threadIdx.x;
    float value = in[lane];
    for (int round = 0; round < 4; ++round) {
        slots[lane] = value;  // line: slot write
        __syncwarp();
        value = slots[(lane + 31) % 32];  // line: slot read
        if (SYNC) __syncwarp();
    }
    out[lane] = value;
}
RUN(slot_two_syncwarps, 32, 32, { reused_slot<true><<<1, 32>>>(in.data, out.data); })
RUN(slot_one_syncwarp, 32, 32, { reused_slot<false><<<1, 32>>>(in.data, out.data); })

// Four warps, each reverses its 32 values twice in its own row of the array.
__global__ void warp_private(const float* in, float* out) {
    __shared__ float rows[4][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float value = in[threadIdx.x];
    for (int round = 0; round < 2 + warp % 2; ++round) {
        rows[warp][lane] = value;
        __syncwarp();
        value = rows[warp][31 - lane];
        __syncwarp();
    }
    out[threadIdx.x] = value;
}
RUN(warps_with_own_rows, 128, 128, { warp_private<<<1, 128>>>(in.data, out.data); })

// The second warp reads what the first one wrote.
template <bool BARRIER>
__global__ void across_warps(const float* in, float* out) {
    __shared__ float values[64];
    const int t = threadIdx.x;
    values[t] = in[t];  // line: first warp
    if (BARRIER)
        __syncthreads();
    else
        __syncwarp();
    out[t] = values[t % 32];  // line: second warp
}
RUN(two_warps_barrier, 64, 64, { across_warps<true><<<1, 64>>>(in.data, out.data); })
RUN(two_warps_syncwarp, 64, 64, { across_warps<false><<<1, 64>>>(in.data, out.data); })
