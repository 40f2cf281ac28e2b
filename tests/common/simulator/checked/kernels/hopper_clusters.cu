// Clusters (compute capability 9.0): blocks that reach each other's shared memory.
#include <cooperative_groups.h>

#include "case.h"
#include "common/cuda/mbarrier.cuh"
#include "common/cuda/shared_offset.cuh"

using namespace hopper;

namespace cg = cooperative_groups;

enum class Exchange { right, no_last_sync, split, no_first_sync };

// Two blocks of 32; each reads the row of the other.
template <Exchange HOW>
__global__ void __cluster_dims__(2, 1, 1) exchange(float* out) {
    __shared__ float row[32];
    cg::cluster_group cluster = cg::this_cluster();
    const int t = threadIdx.x;
    const unsigned rank = cluster.block_rank();
    row[t] = static_cast<float>(100 * rank + t);
    if (HOW == Exchange::split) {
        cluster.barrier_arrive();
        cluster.barrier_wait();
    } else if (HOW != Exchange::no_first_sync)
        cluster.sync();
    else if (rank == 0)
        return;
    const float* other = cluster.map_shared_rank(row, rank ^ 1);  // line: the other block's
    out[32 * rank + t] = other[31 - t];
    if (HOW != Exchange::no_last_sync && HOW != Exchange::no_first_sync) cluster.sync();
}
RUN(cluster_exchange, 1, 64, { exchange<Exchange::right><<<2, 32>>>(out.data); })
RUN(cluster_arrive_wait, 1, 64, { exchange<Exchange::split><<<2, 32>>>(out.data); })
RUN(cluster_block_gone, 1, 64, { exchange<Exchange::no_first_sync><<<2, 32>>>(out.data); })

// One thread of block 0 fills a row in all four blocks; each waits for its own barrier. EXPECTED: bytes in each.
template <int EXPECTED>
__global__ void __cluster_dims__(4, 1, 1) everywhere(const float* in, float* out) {
    alignas(128) __shared__ float row[32];
    __shared__ Mbarrier full;
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_init_done();
        mbarrier_expect(full, EXPECTED);
    }
    cluster.sync();
    if (cluster.block_rank() == 0 && threadIdx.x == 0) {
        const unsigned short all = 15;
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 128, [%2], %3;" ::"r"(shared_offset(row)), "l"(__cvta_generic_to_global(in)), "r"(shared_offset(&full)), "h"(all) : "memory");
    }
    mbarrier_wait(full, 0);  // line: wait for multicast
    out[32 * cluster.block_rank() + threadIdx.x] = row[threadIdx.x];
    cluster.sync();
}
RUN(multicast_right, 32, 128, { everywhere<128><<<4, 32>>>(in.data, out.data); })
RUN(multicast_expects_too_much, 32, 128, { everywhere<256><<<4, 32>>>(in.data, out.data); })

// Each thread of block 1 stores into block 0 by st.async; block 0 waits for BYTES.
template <int BYTES>
__global__ void __cluster_dims__(2, 1, 1) posted(float* out) {
    __shared__ int row[32];
    __shared__ Mbarrier full;
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_init_done();
        mbarrier_expect(full, BYTES);
    }
    cluster.sync();
    if (cluster.block_rank() == 1) {
        unsigned to, barrier;
        asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(to) : "r"(shared_offset(&row[threadIdx.x])));
        asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(barrier) : "r"(shared_offset(&full)));
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(threadIdx.x * 2), "r"(barrier) : "memory");
    } else {
        mbarrier_wait(full, 0);  // line: wait for posts
        out[threadIdx.x] = static_cast<float>(row[threadIdx.x]);
    }
    cluster.sync();
}
RUN(posted_right, 1, 32, { posted<128><<<2, 32>>>(out.data); })
RUN(posted_expects_too_much, 1, 32, { posted<132><<<2, 32>>>(out.data); })

// Block 1 arrives at block 0's barrier: ARRIVALS of 32 that it takes.
template <int ARRIVALS>
__global__ void __cluster_dims__(2, 1, 1) remote(float* out) {
    __shared__ Mbarrier full;
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) {
        mbarrier_init(full, 32);
        mbarrier_init_done();
    }
    cluster.sync();
    if (cluster.block_rank() == 1) {
        unsigned barrier;
        asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(barrier) : "r"(shared_offset(&full)));
        if (threadIdx.x < ARRIVALS) asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
    } else {
        mbarrier_wait(full, 0);  // line: wait for the other block
        out[threadIdx.x] = 1;
    }
    cluster.sync();
}
RUN(remote_arrivals, 1, 32, { remote<32><<<2, 32>>>(out.data); })
RUN(remote_arrival_missing, 1, 32, { remote<31><<<2, 32>>>(out.data); })
