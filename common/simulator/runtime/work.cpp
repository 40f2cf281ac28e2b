// work.cpp - who does the work: how many bytes of machine code each thread runs, in a counted build.
//
// A counted build (rewriter.COUNTED_FLAGS) calls __sanitizer_cov_trace_pc() at the beginning of every basic block, so a
// loop counts for each of its steps, and a long block as much as many short ones: weigh_blocks() says how long each is.
// What the runtime does has no such calls, nor has what its headers let one lane compute for its whole warp (an mma, a
// shuffle): these functions are SIMULATOR_UNCHECKED, and not inlined.
//
// A thread that does less than 1/32 of what the busiest one does is idle: it looks whether it has anything to do, and no
// number of such threads makes a program parallel. Of all launches since the last take_work():
//   work           of all threads that were not idle in their launch
//   most_work      of the busiest one in each launch
//   work_of_block, most_of_block    the same thread block by thread block
// So work / most_work is how many threads of a launch work at a time, work_of_block / most_of_block how many of a block.
#include <vector>

#include "apart.h"
#include "worker.h"

namespace simulator {

constexpr unsigned IDLE = 5;  // less than the busiest one's work / 2^IDLE
static uint64_t counted[4], code_start;
constexpr uint32_t ASTRAY = ~0u;  // of a block in a function that no kernel calls
static std::vector<uint32_t> block_bytes;  // by what the call returns to, from the library's start

// A block: where its call returns to, from `start`, << 32 | its bytes.
void weigh_blocks(uint64_t start, const uint64_t* blocks, size_t count) {
    code_start = start;
    for (size_t i = 0; i < count; ++i) {
        if (block_bytes.size() <= blocks[i] >> 32) block_bytes.resize((blocks[i] >> 32) + 1);
        block_bytes[blocks[i] >> 32] = static_cast<uint32_t>(blocks[i]);
    }
}

void begin_work(Worker& worker) {
    if (worker.counts) memset(worker.work, 0, worker.thread_count * sizeof *worker.work);
}

void end_work(const Worker& worker) {
    if (!worker.counts) return;
    Grid& grid = *worker.grid_run;
    uint64_t sums[WORK_SIZES] = {}, most = 0, of_block = 0;
    for (unsigned i = 0; i < worker.thread_count; ++i) {
        const uint64_t mine = worker.work[i];
        sums[mine ? 63 - __builtin_clzll(mine) : 0] += mine;
        if (mine > most) most = mine;
    }
    for (unsigned i = 0; i < worker.thread_count; ++i)
        if (worker.work[i] >= most >> IDLE) of_block += worker.work[i];
    for (unsigned size = 0; size < WORK_SIZES; ++size)
        if (sums[size]) grid.work[size] += sums[size];
    grid.work_of_block += of_block;
    grid.most_of_block += most;
    for (uint64_t known = grid.most_work; most > known && !grid.most_work.compare_exchange_weak(known, most);) {
    }
}

void add_work(const Grid& grid) {
    const uint64_t most = grid.most_work;
    if (!most) return;
    const unsigned size_of_most = 63 - __builtin_clzll(most);
    for (unsigned size = size_of_most > IDLE ? size_of_most - IDLE : 0; size < WORK_SIZES; ++size) counted[0] += grid.work[size];
    counted[1] += most;
    counted[2] += grid.work_of_block;
    counted[3] += grid.most_of_block;
}

}  // namespace simulator

#ifndef SIMULATOR_CHECKED  // which has its own
extern "C" __attribute__((visibility("hidden"), used)) SIMULATOR_UNCHECKED void __sanitizer_cov_trace_pc() {
    simulator::Worker* worker = simulator::this_worker;
    if (!worker || !worker->running) {
        if (simulator::is_device_alone()) _exit(70);  // what a kernel has left to be called later
        return;
    }
    worker->counts = true;
    const uint64_t at = reinterpret_cast<uint64_t>(__builtin_return_address(0)) - simulator::code_start;
    const uint32_t bytes = at < simulator::block_bytes.size() ? simulator::block_bytes[at] : 1;
    if (bytes == simulator::ASTRAY) simulator::fail("a function ran on the device that no kernel calls by its name");
    worker->work[worker->running - worker->threads] += bytes;
}
#endif

// The four numbers, since the last call; 0 but in a counted build.
void simulator::take_work(uint64_t* four) {
    LaunchLock lock;
    for (uint64_t& one : counted) *four++ = one, one = 0;
}
