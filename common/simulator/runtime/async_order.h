// async_order.h - the checked build: what mbarriers, named barriers and waits order, of threads and of what is asynchronous.
//
// Whoever reaches a barrier hands on all that it knows: of each thread up to which of its warp's synchronizations, of each
// warp up to which group its products have been awaited, of each mbarrier up to which phase. A column of Knowledge each:
//
//     0 ... threads - 1     threads        threads + w     products of warp w      threads + 32 + k     copies that mbarrier k
//                                                                                                       hears of
#pragma once
#include <memory>

#include "checker.h"
#include "hopper.h"

namespace simulator {

constexpr unsigned WARPS = 32, MAX_WATCHED_BARRIERS = 256;
constexpr size_t PIECE = 16;  // bytes; what reads of products and the layout of tiles are remembered by
constexpr uint32_t NOT_YET = UINT32_MAX;

// Where in its box a piece of shared memory is that TMA wrote.
struct PieceOfBox {
    uint32_t box = 0;  // 0: none
    uint16_t line;
    uint8_t piece, mode;
};
// What products read and have not been waited for by everybody.
struct ReadByProducts {
    uint32_t group[WARPS] = {};  // of each warp, plus 1
    uint32_t site = 0;
};

// Accumulators under way: `values` are the true ones, the registers hold NaN until the wait.
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
    std::vector<uint32_t> fenced_to;    // [threads]: the proxy fence covers what the thread did before this count ...
    std::vector<uint32_t> fenced_in;    // ... in this interval
    std::vector<bool> fenced_since;     // whether a fence came after the latest thing the thread heard
    std::vector<PieceOfBox> boxes;      // of each piece of the arena
    std::vector<std::unique_ptr<ReadByProducts>> reads;
    std::vector<std::vector<Accumulators>> accumulators, finished;  // of each thread
    std::vector<bool> registers_fenced;  // wgmma.fence since the latest wait
    uint32_t box_count = 0;
    bool watches_writes = false;

    explicit Order(const Worker& worker);
    uint32_t* row(unsigned thread) { return &known[size_t{thread} * columns]; }
};
Order& order_here();  // of the block that runs; made if it has none

}  // namespace simulator
