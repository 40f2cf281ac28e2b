// async_order.h - the checked build: how mbarriers, named barriers and waits order threads and asynchronous operations.
//
// Knowledge is a vector clock. A thread that arrives at a barrier releases its clock: for each thread, the latest known
// synchronization of its warp; for each warp, the latest wgmma group waited for; for each mbarrier, the latest phase.
// Columns:
//
//     t                  thread t, for t < threads
//     threads + w        the wgmmas of warp w
//     threads + 32 + k   the copies that complete on mbarrier k
#pragma once
#include <memory>

#include "checker.h"
#include "hopper.h"

namespace simulator {

constexpr unsigned WARPS = 32, MAX_WATCHED_BARRIERS = 256;
constexpr size_t PIECE = 16;  // bytes: granularity at which wgmma's reads and the layout of tiles are tracked
constexpr uint32_t NOT_YET = UINT32_MAX;

// The position in its TMA box of a piece of shared memory that TMA wrote.
struct PieceOfBox {
    uint32_t box = 0;  // 0: none
    uint16_t line;
    uint8_t piece, mode;
};
// wgmma reads that not all threads have waited for.
struct ReadByProducts {
    uint32_t group[WARPS] = {};  // each warp's group, plus 1
    uint32_t site = 0;
};

// Accumulators in flight: `values` holds the results; the registers hold NaN until the wait.
struct Accumulators {
    std::vector<uint32_t*> places;
    std::vector<uint32_t> values;
    uint64_t group = 0;
    uint32_t site = 0;
    bool told = false;
};

struct Order {
    unsigned threads, columns;
    std::vector<uint32_t> known;        // [threads][columns]
    std::vector<uint32_t> fenced_to;    // [threads]: the proxy fence covers the thread's accesses before this count ...
    std::vector<uint32_t> fenced_in;    // ... in this interval
    std::vector<bool> fenced_since;     // whether the thread has fenced since its latest acquire
    std::vector<PieceOfBox> boxes;      // one per piece of the arena
    std::vector<std::unique_ptr<ReadByProducts>> reads;
    std::vector<std::vector<Accumulators>> accumulators, finished;  // per thread
    std::vector<bool> registers_fenced;  // wgmma.fence since the latest wait
    uint32_t box_count = 0;
    bool watches_writes = false;

    explicit Order(const Worker& worker);
    uint32_t* row(unsigned thread) { return &known[size_t{thread} * columns]; }
};
Order& order_here();  // the running block's, created on first use

}  // namespace simulator
