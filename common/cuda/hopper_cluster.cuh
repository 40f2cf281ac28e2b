// hopper_cluster.cuh - shared memory and mbarriers of the other CTAs in a cluster. Compute capability 9.0.
//
//   cluster_sync()                           a barrier for all threads of the cluster
//   remote_offset(pointer, rank)             the same location in CTA `rank`, as a shared::cluster address
//   mbarrier_arrive(barrier, rank)           arrives at the same mbarrier in CTA `rank`. Orders this thread's completed
//                                            reads before that CTA's next asynchronous copy; does not publish this
//                                            thread's writes, which takes .release.cluster and costs a membar
//   cluster_send(to, from, bytes, full, rank)    bulk copy from shared memory to `to` in CTA `rank`; its mbarrier
//                                            `full` counts the bytes
//   cluster_send(to, x, full, rank)          the same for one number, or 16 bytes, given by value
//   cluster_poll(full, parity)               waits for a limited time; whether the data sent by other CTAs has arrived
//
// A CTA's shared memory may be accessed only while that CTA runs: call cluster_sync() after initializing the mbarriers
// and at the end of the kernel. Bytes may arrive before they are expected: the transaction count is then negative, and
// the phase cannot complete until mbarrier_expect() arrives.
#pragma once
#include <cuda_runtime.h>

#include "common/cuda/mbarrier.cuh"
#include "common/cuda/shared_offset.cuh"

namespace hopper {

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ unsigned remote_offset(const void* pointer, unsigned rank) {
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_offset(pointer)), "r"(rank));
    return address;
}

__device__ __forceinline__ void mbarrier_arrive(const Mbarrier& barrier, unsigned rank) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote_offset(&barrier, rank))
                 : "memory");
}

__device__ __forceinline__ void cluster_send(const void* to, const void* from, unsigned bytes, const Mbarrier& full,
                                             unsigned rank) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     remote_offset(to, rank)),
                 "r"(shared_offset(from)), "r"(bytes), "r"(remote_offset(&full, rank))
                 : "memory");
}
__device__ __forceinline__ void cluster_send(const int* to, int x, const Mbarrier& full, unsigned rank) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                     remote_offset(to, rank)),
                 "r"(x), "r"(remote_offset(&full, rank))
                 : "memory");
}
__device__ __forceinline__ void cluster_send(const void* to, const uint4& x, const Mbarrier& full, unsigned rank) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            remote_offset(to, rank)),
        "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(remote_offset(&full, rank))
        : "memory");
}
__device__ __forceinline__ bool cluster_poll(Mbarrier& barrier, unsigned parity) {
    unsigned complete;
    asm volatile(
        "{\n"
        ".reg .pred complete;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 complete, [%1], %2;\n"
        "selp.u32 %0, 1, 0, complete;\n"
        "}"
        : "=r"(complete)
        : "r"(shared_offset(&barrier)), "r"(parity)
        : "memory");
    return complete != 0;
}

}  // namespace hopper
