// cp_async.cuh - asynchronous copies from global to shared memory, overlapped with compute.
//
//   cp_async<BYTES>(destination, source)                 starts copying BYTES (4, 8 or 16) for this thread
//   cp_async_zfill<BYTES>(destination, source, inside)   the same if `inside`, else zeros: for ragged tiles
//   cp_async_commit()                                    closes the group of copies that this thread has started
//   cp_async_wait<N>()                                   waits until all but this thread's N most recent groups are
//                                                        complete
//   cp_async_wait_all()                                  waits for all of this thread's copies
//
// destination is shared memory, source global memory, both multiples of BYTES. An ordinary load goes through registers,
// and the thread that stores them has to wait for it; these copies bypass registers. That allows a pipeline: start the
// copy of tile i + 1, then compute tile i.
//
//   start tile 0; commit
//   for each tile i:
//       start tile i + 1 (if there is one); commit       commit an empty group if there is none, to keep the count
//       cp_async_wait<1>()                               all groups but the latest are complete: tile i has arrived
//       __syncthreads()                                  the wait covers only this thread's copies
//       compute tile i
//       __syncthreads()                                  before tile i + 2 overwrites its buffer
//
// 16-byte copies bypass the L1 cache (.cg), which has no use for a tile that is read once; 4 and 8 bytes always go
// through it (.ca).
//
// With inside = false nothing is read, but `source` must still be aligned.
//
// Turing (sm_75) has no such instruction: there the copy is made immediately, through registers, and waits do nothing.
//
// In the simulator a copy fills its destination with NaN (0xff bytes) when it starts and completes at the wait that
// covers it, so a missing wait shows. A copy that no wait covers never completes. On a GPU it does before the block
// ends, but nothing signals when, so no thread may read it.
#pragma once
#include <cuda_runtime.h>

#ifdef CUDA_SIMULATOR
#include "simulator/async_copy.h"  // all of this header
#else
#include "common/cuda/shared_offset.cuh"

template <int BYTES>
__device__ __forceinline__ void cp_async_zfill(void* destination, const void* source, bool inside) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16);
#if __CUDA_ARCH__ >= 800
    const unsigned to = shared_offset(destination);
    const size_t from = __cvta_generic_to_global(source);
    const int source_bytes = inside ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"(to), "l"(from), "r"(source_bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     :
                     : "r"(to), "l"(from), "n"(BYTES), "r"(source_bytes)
                     : "memory");
#else
    if constexpr (BYTES == 16)
        *static_cast<uint4*>(destination) = inside ? *static_cast<const uint4*>(source) : make_uint4(0, 0, 0, 0);
    else if constexpr (BYTES == 8)
        *static_cast<uint2*>(destination) = inside ? *static_cast<const uint2*>(source) : make_uint2(0, 0);
    else
        *static_cast<unsigned*>(destination) = inside ? *static_cast<const unsigned*>(source) : 0;
#endif
}

template <int BYTES>
__device__ __forceinline__ void cp_async(void* destination, const void* source) {
    cp_async_zfill<BYTES>(destination, source, true);
}

__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}

template <int N>
__device__ __forceinline__ void cp_async_wait() {
    static_assert(N >= 0);
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
#endif
}

__device__ __forceinline__ void cp_async_wait_all() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" : : : "memory");
#endif
}
#endif
