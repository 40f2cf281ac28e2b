// cluster_gather.cuh - intra-cluster all-gather through distributed shared memory; LL lines between all CTAs. Hopper.
//
//   Gather                              the mbarriers of two all-gathers in flight, n and n + 1
//   gather_init(g)                      one thread; a cluster barrier must follow
//   gather_send(to, rank, g, n, x)      8 or 16 bytes to the same address in CTA `rank` (st.async); gather_send_quad
//   gather_expect(g, n, bytes)          one thread, after its wait for n - 2: how many bytes all-gather n has
//   gather_wait(g, n), gather_poll      waits until they have arrived; polls for a limited time
//   signal_init, signal_send, gather_wait      the same without data: every CTA arrives at every other one's mbarrier
//   ll_store, ll_load, ll_ready         one line of the LL protocol
//
// st.async writes to another CTA's shared memory and reports its bytes to an mbarrier there: one trip, no cluster-wide
// barrier, and no CTA waits for more than it needs. Bytes may arrive before they are expected: the transaction count is
// then negative, and the phase stays incomplete until gather_expect() arrives. No CTA may send n + 2 before all have
// read n; a CTA that sends n + 2 has received n + 1 from every CTA, so it is enough that each reads n before sending
// n + 1.
//
// LL protocol (as in NCCL): data and flag share one 16-byte store, {data, flag, data, flag}; a reader that finds the
// flag has the data. No fence, no counter. Flags count up and are used once.
#pragma once
#include <cooperative_groups.h>

#include "common/cuda/hopper_cluster.cuh"
#include "common/cuda/mbarrier.cuh"
#include "common/cuda/shared_offset.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"

struct Gather {
    hopper::Mbarrier full[2];
};

__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().sync();
#endif
}
// The same address in CTA `rank`, for loads.
template <typename T>
__device__ __forceinline__ const T* remote_pointer(T* pointer, [[maybe_unused]] int rank) {
#if __CUDA_ARCH__ >= 900
    return cooperative_groups::this_cluster().map_shared_rank(pointer, rank);
#else
    return pointer;
#endif
}
__device__ __forceinline__ void gather_init(Gather& gather) {
    hopper::mbarrier_init(gather.full[0], 1), hopper::mbarrier_init(gather.full[1], 1);
}
__device__ __forceinline__ void signal_init(Gather& signal, unsigned ctas) {
    hopper::mbarrier_init(signal.full[0], ctas), hopper::mbarrier_init(signal.full[1], ctas);
}
__device__ __forceinline__ void gather_expect(Gather& gather, unsigned n, unsigned bytes) {
    hopper::mbarrier_expect(gather.full[n & 1], bytes);
}
__device__ __forceinline__ bool gather_poll(Gather& gather, unsigned n) {
    return hopper::cluster_poll(gather.full[n & 1], n >> 1 & 1);
}
__device__ __forceinline__ void gather_wait(Gather& gather, unsigned n) {
    while (!gather_poll(gather, n)) {
    }
}

__device__ __forceinline__ void signal_send(Gather& signal, unsigned rank, unsigned n) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                     hopper::remote_offset(&signal.full[n & 1], rank))
                 : "memory");
}
__device__ __forceinline__ void gather_send(void* to, unsigned rank, Gather& gather, unsigned n, const uint4& x) {
    hopper::cluster_send(to, x, gather.full[n & 1], rank);
}
__device__ __forceinline__ void gather_send(void* to, unsigned rank, Gather& gather, unsigned n, const uint2& x) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
                     hopper::remote_offset(to, rank)),
                 "r"(x.x), "r"(x.y), "r"(hopper::remote_offset(&gather.full[n & 1], rank))
                 : "memory");
}

// line: two 64-bit words, 16-byte aligned
__device__ __forceinline__ void ll_store(unsigned long long* line, unsigned a, unsigned b, unsigned flag) {
    const unsigned long long high = static_cast<unsigned long long>(flag) << 32;
#ifdef CUDA_SIMULATOR  // atomics let other CTAs run
    atomicExch(line, high | a), atomicExch(line + 1, high | b);
#else
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(line)), "l"(high | a),
                 "l"(high | b)
                 : "memory");
#endif
}
// {data, flag, data, flag}
__device__ __forceinline__ uint4 ll_load(unsigned long long* line) {
    unsigned long long first, second;
#ifdef CUDA_SIMULATOR
    first = atomicAdd(line, 0ull), second = atomicAdd(line + 1, 0ull);
#else
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(first), "=l"(second)
                 : "l"(__cvta_generic_to_global(line))
                 : "memory");
#endif
    return make_uint4(static_cast<unsigned>(first), static_cast<unsigned>(first >> 32), static_cast<unsigned>(second),
                      static_cast<unsigned>(second >> 32));
}
__device__ __forceinline__ bool ll_ready(const uint4& line, unsigned flag) { return line.y == flag && line.w == flag; }

// Called by whole warps: of 8 neighboring values each of four lanes has two, in WORDS words, and sends all of them to
// every fourth CTA. BY_WARPS: all warps have them, and one of the lanes sends to the CTA with its warp's number.
template <bool BY_WARPS, int WORDS>
__device__ __forceinline__ void gather_send_quad(unsigned char* to, const unsigned (&mine)[WORDS], bool exists,
                                                 int cluster, Gather& gather, unsigned n) {
    const bool sends = exists && (!BY_WARPS || threadIdx.x % 4 == 0);
    const int step = BY_WARPS ? cluster : 4;
    unsigned all[4 * WORDS];
    UNROLL
    for (int i = 0; i < 4 * WORDS; ++i) all[i] = __shfl_sync(FULL_WARP, mine[i % WORDS], i / WORDS, 4);
    NO_UNROLL
    for (int rank = BY_WARPS ? threadIdx.x / 32 : threadIdx.x % 4; sends && rank < cluster; rank += step) {
        UNROLL
        for (int v = 0; v < WORDS; ++v)
            gather_send(to + 16 * v, rank, gather, n,
                        make_uint4(all[4 * v], all[4 * v + 1], all[4 * v + 2], all[4 * v + 3]));
    }
}
