// hopper.h - a block's state for compute capability 9.0: mbarriers, copies and wgmmas in flight, named barriers, the
// cluster. Created when a block first uses any of it, and cleared before the next block.
//
//   mbarrier.cpp        phases, arrivals, transaction counts
//   copy_engine.cpp     bulk and tensor copies
//   tensor_map.cpp      cuTensorMapEncodeTiled, and the layout of a box
//   wgmma.cpp           warpgroup-level matrix multiplication
//   named_barrier.cpp   barriers of some of a block's threads
//   cluster.cpp         thread block clusters
//   async_order.cpp     the checked build: the ordering that these establish, and what is missing
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "../include/simulator/hopper.h"
#include "worker.h"

namespace simulator {

// A thread's vector clock in the checked build (async_order.cpp); empty in other builds.
using Knowledge = std::vector<uint32_t>;

struct Mbarrier {
    char* address;
    Position made;
    uint32_t expected, missing;  // arrivals per phase; arrivals that the current phase still needs
    int64_t bytes;               // bytes that the current phase still needs
    uint64_t phase;
    unsigned number;  // index in its block
    unsigned maker;   // the thread that initialized it
    bool announced;   // made visible to TMA by the maker's fence
    Position copy;    // the latest copy that completes on it
    uint32_t copy_site;
    Knowledge arriving, complete;
};

struct MbarrierWait {
    Thread* thread;
    Mbarrier* barrier;
    Phase which;
    uint64_t phase;
    void* return_address;
};

struct TensorMap;

// One copy in flight. `group` is its bulk group, counted per thread; loads have a barrier instead.
struct Transfer {
    char* shared;
    char* global;  // for copies between blocks of a cluster, the source
    uint32_t bytes;
    std::shared_ptr<const TensorMap> map;  // null: consecutive bytes
    int32_t at[5];
    bool loads, source_is_shared;
    Combination how;
    Number number;
    char* barrier;  // in the destination block
    unsigned thread;
    uint64_t group;
    Position place;
    std::string words;  // st.async's data
    uint32_t site;      // place in the program, for the checked build
};

struct AsyncThread {
    uint64_t bulk_groups, product_groups;  // committed
    bool fenced;                           // wgmma.fence has been executed
};

struct NamedBarrier {
    uint32_t expected = 0, arrived = 0;
    Position first;
    std::vector<Thread*> waiting;
    Knowledge arriving;
};

// Co-resident blocks that can access each other's shared memory.
struct Cluster {
    std::vector<Worker*> blocks;
    dim3 shape;
    unsigned arrived = 0;
    uint64_t phase = 0;
};

struct Hopper {
    std::vector<std::unique_ptr<Mbarrier>> barriers;
    std::vector<MbarrierWait> waits;
    std::deque<Transfer> transfers;
    NamedBarrier named[16];
    AsyncThread threads[MAX_THREADS] = {};
    uint64_t cluster_arrivals[MAX_THREADS] = {};  // per thread: the phase in which it arrived, plus 1
    uint32_t products[32] = {};                   // wgmmas per warp
    Position last_product[32] = {};
    unsigned fruitless = 0;  // number of times that all waiters were woken without success
};

// The block's state, created on first use.
Hopper& hopper_of(Worker& worker);
Hopper& my_hopper();
AsyncThread& my_async_thread();

void begin_hopper(Worker& worker);  // at the start of a block
void end_hopper(Worker& worker);    // at its end, unless it failed
// Called when no thread of the block can run: run_engine() performs the next copy, wake_in_vain() makes the waits
// return without success. False: there was nothing to do.
bool run_engine(Worker& worker);
bool wake_in_vain(Worker& worker);
void trace_wait(Worker& worker);  // records the call stack of the first mbarrier wait
std::string describe_wait(Worker& worker, const Thread& thread);  // for deadlock reports: what its barrier still needs

void complete_bytes(Mbarrier& barrier, int64_t bytes, Position at);
Mbarrier& barrier_at(void* address, const char* what, Position at);
Worker* owner_of_shared(const void* address);  // the block of this cluster that owns the shared memory; null: none

// Blocks of a cluster or of a cooperative grid take turns; a block whose threads only spin yields to the next.
void leave_cluster_barrier(Worker& worker);  // a thread has returned

dim3 cluster_shape_of(const char* kernel);  // cluster.cpp, for launch.cpp

void check_warpgroups(const Worker& worker);  // at a block's end: all warps of a warpgroup executed the same wgmmas

}  // namespace simulator
