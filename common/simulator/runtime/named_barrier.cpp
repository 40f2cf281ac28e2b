// named_barrier.cpp - barrier.sync and barrier.arrive with a barrier number and a thread count, and elect.sync.
#include "hopper.h"
#include "checker.h"

namespace simulator {

void named_barrier(uint32_t number, uint32_t threads, bool waits, Position at) {
    Quiet quiet;
    const char* name = waits ? "barrier.sync" : "barrier.arrive";
    Worker& worker = current_worker();
    Hopper& hopper = hopper_of(worker);
    if (number > 15) fail("%s at %s:%d: barrier %u; a block has the numbers 0 to 15", name, at.file, at.line, number);
    if (!threads && !waits) fail("%s at %s:%d: the number of threads is missing", name, at.file, at.line);
    if (!threads) threads = worker.thread_count;
    if (threads % 32) fail("%s at %s:%d: %u threads; whole warps take part", name, at.file, at.line, threads);
    NamedBarrier& barrier = hopper.named[number];
    if (!barrier.arrived)
        barrier.expected = threads, barrier.first = at;
    else if (barrier.expected != threads)
        fail("%s at %s:%d: barrier %u is for %u threads here, and for %u at %s:%d, where some have come to it", name, at.file,
             at.line, number, threads, barrier.expected, barrier.first.file, barrier.first.line);
    if constexpr (CHECKED) order_release(barrier.arriving);
    if (++barrier.arrived < barrier.expected) {
        if (!waits) return;
        barrier.waiting.push_back(worker.running);
        wait_for_wakeup(State::at_named_barrier, name, at);
        return;
    }
    count_progress(worker);
    hopper.fruitless = 0;
    for (Thread* thread : barrier.waiting) {
        if constexpr (CHECKED) order_acquire(barrier.arriving, thread);
        make_ready_again(worker, *thread);
    }
    if constexpr (CHECKED)
        if (waits) order_acquire(barrier.arriving);
    barrier.waiting.clear();
    barrier.arrived = 0;
}

static void elected(void**, unsigned) {}

bool elect_leader(uint32_t mask, uint32_t& leader, Position at) {
    Quiet quiet;
    int nothing = 0;
    const WhileOthersRun others;
    collective(mask, &nothing, elected, "elect.sync", at);
    leader = static_cast<uint32_t>(__builtin_ctz(mask));
    return current_worker().running->lane == leader;
}

}  // namespace simulator
