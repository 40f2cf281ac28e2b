// hopper_cluster.cuh - the CTAs of a cluster reach each other's shared memory and mbarriers. Compute capability 9.0.
//
//   cluster_sync()                           all threads of all CTAs of the cluster
//   remote_offset(pointer, rank)             the same place in CTA `rank`, as a shared::cluster address
//   mbarrier_arrive(barrier, rank)           one arrival at the same mbarrier of CTA `rank`: this thread is done with what
//                                            that CTA's copy engine may write next. It does not say that what this thread
//                                            wrote can be read there: .release.cluster would, and is slow
//   cluster_send(to, from, bytes, full, rank)    shared memory -> the place `to` of CTA `rank`, by the copy engine;
//                                            mbarrier `full` of that CTA waits for the bytes
//   cluster_send(to, x, full, rank)          the same of one number
//
// A CTA must not reach for another one's shared memory before that one has begun, nor after it has ended: cluster_sync()
// behind the init of the mbarriers, and at the end. Bytes may arrive before they are expected: the transaction count
// goes below zero, and the phase stays incomplete until mbarrier_expect() arrives.
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

}  // namespace hopper
