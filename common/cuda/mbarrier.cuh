// mbarrier.cuh - barriers in shared memory that threads and TMA arrive at. Compute capability 9.0.
//
//   Mbarrier                    the barrier, 8 bytes of shared memory
//   mbarrier_init(b, n)         a phase completes after n arrivals; one thread calls, then mbarrier_init_done()
//   mbarrier_init_done()        makes the initialization visible to TMA; a __syncthreads() must follow
//   mbarrier_arrive(b)          one arrival
//   mbarrier_expect(b, bytes)   one arrival; the phase also waits for this many bytes from TMA (tma.cuh)
//   mbarrier_wait(b, parity)    waits until the phase of this parity is complete
//   mbarrier_try_wait(b, parity)    waits for a limited time; whether the phase is complete
//   Ring<N>                     which of N barriers, and which parity, comes next
//
// A barrier counts its phases: 0 is the first, and each begins when the previous one completes. mbarrier_wait(b, 0)
// returns once phase 0 is complete and mbarrier_wait(b, 1) once phase 1 is; on a new barrier mbarrier_wait(b, 1)
// returns at once, as if a phase -1 had completed. So a producer finds all stages empty at the start:
//
//   producer                                     consumer
//     wait(empty[stage], parity ^ 1)               wait(full[stage], parity)
//     expect(full[stage], bytes), issue copies     use the stage
//     advance()                                    arrive(empty[stage]), advance()
//
// See "mbarrier" in the PTX manual.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/shared_offset.cuh"

namespace hopper {

using Mbarrier = uint64_t;

__device__ __forceinline__ void mbarrier_init(Mbarrier& barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_offset(&barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void mbarrier_init_done() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(Mbarrier& barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_offset(&barrier)) : "memory");
}

__device__ __forceinline__ void mbarrier_expect(Mbarrier& barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_offset(&barrier)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void mbarrier_wait(Mbarrier& barrier, unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred complete;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
        "@complete bra done;\n"
        "bra again;\n"
        "done:\n"
        "}" ::"r"(shared_offset(&barrier)),
        "r"(parity)
        : "memory");
}

__device__ __forceinline__ bool mbarrier_try_wait(Mbarrier& barrier, unsigned parity) {
    unsigned complete;
    asm volatile(
        "{\n"
        ".reg .pred complete;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
        "selp.u32 %0, 1, 0, complete;\n"
        "}"
        : "=r"(complete)
        : "r"(shared_offset(&barrier)), "r"(parity)
        : "memory");
    return complete != 0;
}

// Every stage is used once before the first is reused with the other parity.
template <int N>
class Ring {
  public:
    __device__ __forceinline__ int stage() const { return stage_; }
    __device__ __forceinline__ unsigned parity() const { return parity_; }
    __device__ __forceinline__ void advance() {
        const bool last = stage_ == N - 1;
        stage_ = last ? 0 : stage_ + 1;
        parity_ ^= last;
    }

  private:
    int stage_ = 0;
    unsigned parity_ = 0;
};

}  // namespace hopper
