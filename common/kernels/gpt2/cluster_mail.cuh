// cluster_mail.cuh - what the blocks of a cluster send into each other's shared memory. Hopper and later.
//
//   cluster_rank(), cluster_meet()     which block of its cluster this is; a barrier of all threads of the cluster
//   MailBox                            a barrier for each of two letters in turn
//   mail_init(box)                     by one thread; a cluster_meet() must follow
//   send(to, rank, box, letter, ...)   8 or 16 bytes for the same place in another block, or in this one
//   mail_wait(box, letter)             until all bytes of a letter have come, by whoever reads them
//   mail_has_come(box, letter)         waits a while: whether they have
//   mail_expect(box, letter, bytes)    by one thread, behind its mail_wait() for the last letter but one: how much comes
//
// A letter is what all blocks of a cluster, this one too, send at one point of the program: an all-gather. st.async writes
// to the other block and reports its bytes to a barrier there, so there is one trip and nobody waits for the slowest of all,
// as at a barrier of the cluster, but only for what it needs. Bytes may come before they are expected: a barrier counts them
// below zero, and its phase is not complete without the arrival that mail_expect() is.
//
// Two letters have memory of their own, and take turns. Nobody may send letter n + 2 before all have read letter n: who
// sends it has had letter n + 1 from all, so it is enough that each reads n, meets its other threads, and then sends n + 1.
#pragma once
#include <cooperative_groups.h>

#include "common/cuda/mbarrier.cuh"
#include "common/cuda/shared_offset.cuh"

__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void cluster_meet() {
#if __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().sync();
#endif
}

struct MailBox {
    hopper::Mbarrier came[2];
};

__device__ __forceinline__ void mail_expect(MailBox& box, unsigned letter, unsigned bytes) {
    hopper::mbarrier_expect(box.came[letter & 1], bytes);
}
__device__ __forceinline__ void mail_init(MailBox& box) {
    hopper::mbarrier_init(box.came[0], 1), hopper::mbarrier_init(box.came[1], 1);
    hopper::mbarrier_init_done();
}

// Whether the letter has come; waits a while for it.
__device__ __forceinline__ bool mail_has_come(MailBox& box, unsigned letter) {
    unsigned complete;
    asm volatile(
        "{\n"
        ".reg .pred complete;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 complete, [%1], %2;\n"
        "selp.u32 %0, 1, 0, complete;\n"
        "}"
        : "=r"(complete)
        : "r"(shared_offset(&box.came[letter & 1])), "r"(letter >> 1 & 1)
        : "memory");
    return complete != 0;
}

__device__ __forceinline__ void mail_wait(MailBox& box, unsigned letter) {
    while (!mail_has_come(box, letter)) {
    }
}

__device__ __forceinline__ unsigned in_cluster(const void* pointer, unsigned rank) {
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_offset(pointer)), "r"(rank));
    return address;
}

__device__ __forceinline__ void send(void* to, unsigned rank, MailBox& box, unsigned letter, const uint4& x) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            in_cluster(to, rank)),
        "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(in_cluster(&box.came[letter & 1], rank))
        : "memory");
}
__device__ __forceinline__ void send(void* to, unsigned rank, MailBox& box, unsigned letter, const uint2& x) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
                     in_cluster(to, rank)),
                 "r"(x.x), "r"(x.y), "r"(in_cluster(&box.came[letter & 1], rank))
                 : "memory");
}
