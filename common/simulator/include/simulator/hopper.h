// hopper.h - the PTX of compute capability 9.0: mbarriers, TMA, wgmma, named barriers, clusters. ptx_hopper.py turns
// instructions into these calls.
//
// Asynchronous operations complete as late as the memory model allows: a copy is performed when no thread of the block
// can continue without it, so code that uses the data too early fails visibly. In the checked build wgmma accumulators
// hold NaN until the wait that covers them.
#pragma once
#include "thread.h"

namespace simulator {

// ---- mbarriers (runtime/mbarrier.cpp)
void mbarrier_init(void* barrier, uint32_t arrivals, Position at);
void mbarrier_invalidate(void* barrier, Position at);
// Adds `bytes` to the phase's expected transaction count, then arrives `count` times. Returns the state token of that
// phase, for a wait by state.
uint64_t mbarrier_arrive(void* barrier, uint32_t count, uint32_t bytes, bool drop, Position at);
void mbarrier_expect(void* barrier, uint32_t bytes, Position at);
void mbarrier_complete(void* barrier, uint32_t bytes, Position at);
enum class Phase { of_parity, of_state };
// Whether the phase is complete. `patient`: waits until it is, unless no thread or copy can make progress.
bool mbarrier_test(void* barrier, Phase which, uint64_t phase, bool patient, Position at);
uint32_t mbarrier_pending(uint64_t state);

// ---- TMA (runtime/copy_engine.cpp)
enum class Combination : uint8_t { copy, add, min, max, inc, dec, bit_and, bit_or, bit_xor };
enum class Number : uint8_t { bytes, u32, s32, u64, s64, f16, bf16, f32, f64 };
// to and from: shared or global memory, as in the instruction. barrier: null for copies that complete by bulk group.
void bulk_copy(void* to, const void* from, uint32_t bytes, void* barrier, uint32_t blocks, bool multicast, Combination how,
               Number number, Position at);
void tensor_load(void* to, const void* map, int rank, const int32_t* coordinates, void* barrier, uint32_t blocks, bool multicast,
                 Position at);
void tensor_store(const void* map, int rank, const int32_t* coordinates, const void* from, Combination how, Position at);
void commit_bulk_group();
void wait_for_bulk_groups(uint32_t left, bool only_read);
// st.async: stores the words in a block of the cluster and completes their bytes on that block's mbarrier.
void store_async(void* to, const void* words, uint32_t bytes, void* barrier, Position at);
void fence_async_proxy(Position at);
void fence_mbarrier_init(Position at);

// ---- wgmma (runtime/wgmma.cpp)
enum class Element : uint8_t { f16, bf16, tf32, e4m3, e5m2 };
struct WarpgroupProduct {
    Element a, b;
    bool half_sums;  // accumulators are packed f16 pairs
    uint16_t n;
    bool a_in_registers, a_mn_major, b_mn_major, negate_a, negate_b;
};
void warpgroup_multiply(const WarpgroupProduct& product, void* const* d, const uint32_t* a, uint64_t a_matrix, uint64_t b_matrix,
                        bool accumulate, Position at);
void warpgroup_fence(Position at);
void warpgroup_commit(Position at);
void warpgroup_wait(uint32_t left, Position at);
void set_registers(bool more, uint32_t count, Position at);

// ---- named barriers, elect.sync (runtime/named_barrier.cpp)
void named_barrier(uint32_t number, uint32_t threads, bool waits, Position at);
bool elect_leader(uint32_t mask, uint32_t& leader, Position at);

// ---- clusters (runtime/cluster.cpp)
struct ClusterPlace {
    unsigned rank, size;
    uint3 index, cluster;  // the block's index in its cluster; the cluster's index in the grid
    dim3 shape, clusters;
    bool is_explicit;
};
ClusterPlace cluster_place();
void cluster_arrive(Position at);
void cluster_wait(Position at);
void* cluster_address(const void* address, unsigned rank, Position at);  // mapa: the same place in block `rank`
uint32_t cluster_offset(uint32_t offset, unsigned rank, Position at);    // mapa.shared::cluster
unsigned cluster_rank_of(const void* address);
constexpr unsigned CLUSTER_WINDOW_BITS = 20;  // size of each block's part of the shared::cluster window

// The rewriter's translation of `__global__ void __cluster_dims__(2, 1, 1) kernel`
struct ClusterDims {
    ClusterDims(const char* kernel, dim3 shape);
    const char* kernel;
    dim3 shape;
    ClusterDims* next;
};

}  // namespace simulator
