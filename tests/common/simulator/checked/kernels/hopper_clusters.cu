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
template <Exchange HOW>
static void exchange_case(float* result) {
    Array<float> out(64);
    exchange<HOW><<<2, 32>>>(out.data);
    out.download(result);
}
CASE(cluster_exchange) { exchange_case<Exchange::right>(result); }
CASE(cluster_arrive_wait) { exchange_case<Exchange::split>(result); }
CASE(cluster_block_gone) { exchange_case<Exchange::no_first_sync>(result); }

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
template <int EXPECTED>
static void everywhere_case(float* result) {
    Array<float> in = ramp(32), out(128);
    everywhere<EXPECTED><<<4, 32>>>(in.data, out.data);
    out.download(result);
}
CASE(multicast_right) { everywhere_case<128>(result); }
CASE(multicast_expects_too_much) { everywhere_case<256>(result); }

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
template <int BYTES>
static void posted_case(float* result) {
    Array<float> out(32);
    posted<BYTES><<<2, 32>>>(out.data);
    out.download(result);
}
CASE(posted_right) { posted_case<128>(result); }
CASE(posted_expects_too_much) { posted_case<132>(result); }

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
template <int ARRIVALS>
static void remote_case(float* result) {
    Array<float> out(32);
    remote<ARRIVALS><<<2, 32>>>(out.data);
    out.download(result);
}
CASE(remote_arrivals) { remote_case<32>(result); }
CASE(remote_arrival_missing) { remote_case<31>(result); }
