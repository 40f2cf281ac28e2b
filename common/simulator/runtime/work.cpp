// work.cpp - the work done by each thread, in bytes of machine code executed, in a counted build.
//
// A counted build (rewriter.COUNTED_FLAGS) calls __sanitizer_cov_trace_pc() at the start of every basic block. Each
// call counts the block's length, which weigh_blocks() has set, so every loop iteration counts. The runtime is not
// instrumented, nor are the functions of its headers in which one lane computes for its whole warp (an mma, a shuffle):
// these are SIMULATOR_UNCHECKED and not inlined.
//
// A thread with less than 1/32 of the busiest one's work is idle: it only checks whether it has anything to do, and no
// number of such threads makes a program parallel. Summed over all launches since the last take_work():
//   work           by all threads that were not idle in their launch
//   most_work      by the busiest thread of each launch
//   work_of_block, most_of_block    the same, per thread block
// So work / most_work is the number of threads of a launch that work in parallel, work_of_block / most_of_block the
// same for a block.
#include <vector>

#include "apart.h"
#include "worker.h"

namespace simulator {

constexpr unsigned IDLE = 5;  // idle: less than the busiest thread's work / 2^IDLE
static uint64_t counted[4], code_start;
constexpr uint32_t ASTRAY = ~0u;  // length of a basic block in a function that no kernel calls
static std::vector<uint32_t> block_bytes;  // by the call's return address, relative to the library's start

// Each entry: the call's return address, relative to `start`, << 32 | the basic block's bytes.
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

#ifndef SIMULATOR_CHECKED  // the checked build has its own
extern "C" __attribute__((visibility("hidden"), used)) SIMULATOR_UNCHECKED void __sanitizer_cov_trace_pc() {
    simulator::Worker* worker = simulator::this_worker;
    if (!worker || !worker->running) {
        if (simulator::is_device_alone()) _exit(70);  // a callback that a kernel has installed
        return;
    }
    worker->counts = true;
    const uint64_t at = reinterpret_cast<uint64_t>(__builtin_return_address(0)) - simulator::code_start;
    const uint32_t bytes = at < simulator::block_bytes.size() ? simulator::block_bytes[at] : 1;
    if (bytes == simulator::ASTRAY) simulator::fail("a function ran on the device that no kernel calls by its name");
    worker->work[worker->running - worker->threads] += bytes;
}
#endif

// The four sums since the last call; 0 except in a counted build.
void simulator::take_work(uint64_t* four) {
    LaunchLock lock;
    for (uint64_t& one : counted) *four++ = one, one = 0;
}
