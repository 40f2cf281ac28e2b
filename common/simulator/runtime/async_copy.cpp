// async_copy.cpp - cp.async: copies that a thread starts now and that arrive at a wait.
//
// Each thread of a block has a queue of the copies under way. A copy belongs to the group that the next commit closes;
// a wait finishes the front of the queue, up to the groups it may leave under way. What is still in the queue when the
// thread returns is dropped: its destination stays NaN.
#include "../include/simulator/async_copy.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "worker.h"
#ifdef SIMULATOR_CHECKED
#include "checker.h"
#endif

namespace simulator {

// More copies than shared memory has words cannot all be meant.
constexpr size_t MAX_COPIES = OPTIN_SHARED_LIMIT / 4;

struct AsyncCopy {
    void* destination;
    const void* source;  // null: zeros
    uint64_t group;
    unsigned bytes;
};

struct AsyncQueue {
    uint64_t block = 0;      // whose copies these are
    uint64_t committed = 0;  // groups; also the number of the group that the next copy belongs to
    std::vector<AsyncCopy> copies;
};

// The running thread's. A block stays on one OS thread, so the queues are that thread's.
static AsyncQueue& my_queue() {
    static thread_local std::unique_ptr<AsyncQueue[]> queues;
    if (!queues) queues = std::make_unique<AsyncQueue[]>(MAX_THREADS);
    const Worker& worker = current_worker();
    AsyncQueue& mine = queues[worker.running - worker.threads];
    if (mine.block != worker.number) {
        mine.block = worker.number;
        mine.copies.clear();
    }
    return mine;
}

template <unsigned BYTES>
static void move(void* to, const void* from) {
    if (from)
        memcpy(to, from, BYTES);
    else
        memset(to, 0, BYTES);
}

static void check_aligned(const char* what, const void* address, unsigned bytes, Position at) {
    if (const size_t past = reinterpret_cast<uintptr_t>(address) % bytes)
        fail("cp_async<%u> at %s:%d: its %s is %zu byte(s) past a multiple of %u", bytes, at.file, at.line, what,
             past, bytes);
}

__attribute__((noinline)) void issue_async_copy(void* destination, const void* source, unsigned bytes, bool inside,
                                                Position at) {
#ifdef SIMULATOR_CHECKED
    check_async_issue(destination, inside ? source : nullptr, bytes, __builtin_return_address(0));
    Quiet quiet;
#endif
    check_aligned("destination", destination, bytes, at);
    check_aligned("source", source, bytes, at);
    check_store(destination, bytes);
    const Worker& worker = current_worker();
    if (source >= worker.arena && source < worker.dynamic_end)
        fail("cp_async<%u> at %s:%d: its source is in shared memory; the order is cp_async(shared, global)", bytes,
             at.file, at.line);
    AsyncQueue& mine = my_queue();
    if (mine.copies.size() == MAX_COPIES)
        fail("cp_async<%u> at %s:%d: this thread has %zu copies under way, more than shared memory has room for; is a "
             "cp_async_wait missing?",
             bytes, at.file, at.line, MAX_COPIES);
    if (inside) (void)*static_cast<const volatile char*>(source);  // a bad address fails here, and not at the wait
    memset(destination, 0xff, bytes);
    mine.copies.push_back({destination, inside ? source : nullptr, mine.committed, bytes});
}

__attribute__((noinline)) void commit_async_copies() {
#ifdef SIMULATOR_CHECKED
    Quiet quiet;
#endif
    ++my_queue().committed;
}

// Finishes the copies of all groups with a number below `end`.
static void finish_copies(AsyncQueue& mine, uint64_t end, [[maybe_unused]] const void* return_address) {
    const auto begin = mine.copies.begin();
    auto copy = begin;
    for (; copy != mine.copies.end() && copy->group < end; ++copy) {
        switch (copy->bytes) {
            case 4: move<4>(copy->destination, copy->source); break;
            case 8: move<8>(copy->destination, copy->source); break;
            default: move<16>(copy->destination, copy->source);
        }
#ifdef SIMULATOR_CHECKED
        check_async_done(copy->destination, copy->bytes, return_address);
#endif
    }
    mine.copies.erase(begin, copy);
}

__attribute__((noinline)) void wait_for_async_copies(unsigned groups) {
#ifdef SIMULATOR_CHECKED
    Quiet quiet;
#endif
    AsyncQueue& mine = my_queue();
    finish_copies(mine, mine.committed - std::min<uint64_t>(groups, mine.committed), __builtin_return_address(0));
}

__attribute__((noinline)) void wait_for_all_async_copies() {
#ifdef SIMULATOR_CHECKED
    Quiet quiet;
#endif
    AsyncQueue& mine = my_queue();
    finish_copies(mine, ++mine.committed, __builtin_return_address(0));
}

}  // namespace simulator
