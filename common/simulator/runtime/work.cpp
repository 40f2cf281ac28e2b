// work.cpp - who does the work: how many basic blocks of the program each thread runs, in a counted build.
//
// A counted build (rewriter.COUNTED_FLAGS) calls __sanitizer_cov_trace_pc() at the beginning of every basic block, so a
// loop counts once for each of its steps. What one lane computes for its whole warp (an mma, a shuffle) does not count,
// and what the runtime does has no such calls.
//
// A thread that does less than 1/32 of what the busiest one does is idle: it looks whether it has anything to do, and no
// number of such threads makes a program parallel. Of all launches since the last take_work():
//   work           of all threads that were not idle in their launch
//   most_work      of the busiest one in each launch
//   work_of_block, most_of_block    the same thread block by thread block
// So work / most_work is how many threads of a launch work at a time, work_of_block / most_of_block how many of a block.
#include "worker.h"

namespace simulator {

constexpr unsigned IDLE = 5;  // less than the busiest one's work / 2^IDLE
static uint64_t counted[4];

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
    if (!worker || !worker->running || worker->for_the_warp) return;
    worker->counts = true;
    ++worker->work[worker->running - worker->threads];
}
#endif

// The four numbers, since the last call; 0 but in a counted build.
void simulator::take_work(uint64_t* four) {
    LaunchLock lock;
    for (uint64_t& one : counted) *four++ = one, one = 0;
}
