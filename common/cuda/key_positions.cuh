// key_positions.cuh - how many keys a causal mask leaves visible when keys are `step` positions apart.
//
//   keys_up_to(position, step)     the number of keys among 0, step, 2 * step, ... at or before `position`
//
// A strided view of K and V is a shorter sequence of keys, and attention kernels take it unchanged: only the causal
// mask compares positions. For step 3, positions 0 ... 9:
//
//        position       0   1   2   3   4   5   6   7   8   9
//        key            0           1           2           3
//        keys_up_to     1   1   1   2   2   2   3   3   3   4
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

// position < 2^32, so that the division is 32-bit; step 1 .. 2^31 - 1. Step 1 does no division.
__device__ __forceinline__ int64_t keys_up_to(int64_t position, int step) {
    if (position < 0) return 0;
    if (step == 1) return position + 1;
    return static_cast<int64_t>(static_cast<unsigned>(position) / static_cast<unsigned>(step)) + 1;
}
