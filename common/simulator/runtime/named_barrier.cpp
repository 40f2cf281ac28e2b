// named_barrier.cpp - barrier.sync and barrier.arrive with a barrier number and a thread count, and elect.sync.
#include "hopper.h"
#ifdef SIMULATOR_CHECKED
#include "checker.h"
#endif

namespace simulator {

void named_barrier(uint32_t number, uint32_t threads, bool waits, Position at) {
#ifdef SIMULATOR_CHECKED
    Quiet quiet;
#endif
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
#ifdef SIMULATOR_CHECKED
    order_release(barrier.arriving);
#endif
    Thread& me = *worker.running;
    me.operation = name;
    me.position = at;
    if (++barrier.arrived < barrier.expected) {
        if (!waits) return;
        me.state = State::at_named_barrier;
        barrier.waiting.push_back(&me);
        wait_for_wakeup();
        me.state = State::running;
        return;
    }
    count_progress(worker);
    hopper.fruitless = 0;
    for (Thread* thread : barrier.waiting) {
#ifdef SIMULATOR_CHECKED
        order_acquire(barrier.arriving, thread);
#endif
        make_ready_again(worker, *thread);
    }
#ifdef SIMULATOR_CHECKED
    if (waits) order_acquire(barrier.arriving);
#endif
    barrier.waiting.clear();
    barrier.arrived = 0;
}

static void elected(void**, unsigned) {}

bool elect_leader(uint32_t mask, uint32_t& leader, Position at) {
#ifdef SIMULATOR_CHECKED
    Quiet quiet;
#endif
    int nothing = 0;
    const WhileOthersRun others;
    collective(mask, &nothing, elected, "elect.sync", at);
    leader = static_cast<uint32_t>(__builtin_ctz(mask));
    return current_worker().running->lane == leader;
}

}  // namespace simulator
