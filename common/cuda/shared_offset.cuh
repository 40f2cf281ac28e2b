// shared_offset.cuh - pointers into shared memory as instructions take them.
//
//   shared_offset(pointer)    32 bits, what PTX calls an address in the .shared state space
#pragma once
#include <cuda_runtime.h>

__device__ __forceinline__ unsigned shared_offset(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}
