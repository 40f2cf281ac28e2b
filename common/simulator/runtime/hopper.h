// hopper.h - what a block of compute capability 9.0 has in addition to its threads: mbarriers, copies and products under
// way, named barriers, a cluster. Made when a block first uses any of it, and emptied before the next block.
//
//   mbarrier.cpp        phases, arrivals, transaction counts
//   copy_engine.cpp     bulk and tensor copies
//   tensor_map.cpp      cuTensorMapEncodeTiled, and where the elements of a box are
//   wgmma.cpp           products of warpgroups
//   named_barrier.cpp   barriers of some of a block's threads
//   cluster.cpp         blocks that run together
//   async_order.cpp     the checked build: what all of that orders, and what is missing
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "../include/simulator/hopper.h"
#include "worker.h"

namespace simulator {

// What a thread knows of all others, and of what is asynchronous, in the checked build (async_order.cpp); else empty.
using Knowledge = std::vector<uint32_t>;

struct Mbarrier {
    char* address;
    Position made;
    uint32_t expected, missing;  // arrivals: of a phase, and of this one
    int64_t bytes;               // that this phase still waits for
    uint64_t phase;
    unsigned number;  // in its block
    unsigned maker;   // the thread that initialized it
    bool announced;   // by a fence of the maker's, to TMA
    Position copy;    // the latest copy that it hears of
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
struct Tile;

// One copy under way. Its group counts the bulk groups of its thread; loads have a barrier in place of one.
struct Transfer {
    char* shared;
    char* global;  // or, from block to block, the source
    uint32_t bytes;
    std::shared_ptr<const TensorMap> map;  // null: consecutive bytes
    int32_t at[5];
    bool loads, source_is_shared;
    Combination how;
    Number number;
    char* barrier;  // of the block that it writes to
    unsigned thread;
    uint64_t group;
    Position place;
    std::string words;  // of st.async
    uint32_t site;      // in the program, for the checked build
};

struct AsyncThread {
    uint64_t bulk_groups, product_groups;  // committed
    bool fenced;                           // wgmma.fence since its start
};

struct NamedBarrier {
    uint32_t expected = 0, arrived = 0;
    Position first;
    std::vector<Thread*> waiting;
    Knowledge arriving;
};

// Blocks that run at the same time and reach each other's shared memory.
struct Cluster {
    std::vector<Worker*> blocks;
    dim3 shape;
    unsigned arrived = 0, arrived_before_wait[16] = {};
    uint64_t phase = 0;
};

struct Hopper {
    std::vector<std::unique_ptr<Mbarrier>> barriers;
    std::vector<MbarrierWait> waits;
    std::deque<Transfer> transfers;
    NamedBarrier named[16];
    AsyncThread threads[MAX_THREADS] = {};
    uint64_t cluster_arrivals[MAX_THREADS] = {};  // of each thread: the phase that it arrived in, plus 1
    uint32_t products[32] = {};                   // of each warp
    Position last_product[32] = {};
    unsigned fruitless = 0;  // how often all were woken without success
};

// The block's; made if it has none yet.
Hopper& hopper_of(Worker& worker);
Hopper& my_hopper();
AsyncThread& my_async_thread();

void begin_hopper(Worker& worker);  // at the start of a block
void end_hopper(Worker& worker);    // at its end, without an error
// When no thread of the block can go on: the next copy, or waits that return without success. False: nothing was left to do.
bool run_engine(Worker& worker);
bool wake_in_vain(Worker& worker);
void trace_wait(Worker& worker);  // the call stack of the first of these
std::string describe_wait(Worker& worker, const Thread& thread);  // for a deadlock: what its barrier waits for

void complete_bytes(Mbarrier& barrier, int64_t bytes, Position at);
Mbarrier& barrier_at(void* address, const char* what, Position at);
Worker* owner_of_shared(const void* address);  // the block of this cluster whose shared memory it is; null: none

// The blocks of a cluster or of a cooperative grid take turns; who has nothing to do but spin gives way.
void leave_cluster_barrier(Worker& worker);  // a thread has returned

// cluster.cpp, for launch.cpp
dim3 cluster_shape_of(const char* kernel);
bool pass_cluster_barrier(Cluster& cluster);

void check_warpgroups(const Worker& worker);  // at a block's end: the warps of each came to the same products

}  // namespace simulator
