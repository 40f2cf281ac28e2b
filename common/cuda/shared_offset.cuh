// shared_offset.cuh - shared-memory pointers as PTX instructions take them.
//
//   shared_offset(pointer)    32 bits, an address in PTX's .shared state space
#pragma once
#include <cuda_runtime.h>

__device__ __forceinline__ unsigned shared_offset(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}
