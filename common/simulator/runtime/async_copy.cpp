// async_copy.cpp - cp.async and memcpy_async: copies that a thread issues now and that complete at a wait.
//
// Each thread of a block has a queue of pending copies. A copy belongs to the group that the next commit closes; a wait
// completes copies from the front of the queue, all but the groups that it may leave pending. Copies still in the queue
// when the thread returns are dropped: their destinations stay NaN.
//
// Copies bound to a cuda::barrier or to a shared pipeline belong to the block: the first thread that waits for their
// phase or stage completes them for all threads.
#include "../include/simulator/async_copy.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "worker.h"
#include "checker.h"

namespace simulator {

// With more pending copies than shared memory has words, a wait must be missing.
constexpr size_t MAX_COPIES = OPTIN_SHARED_LIMIT / 4;

struct AsyncCopy {
    char* destination;
    const char* source;  // null: zeros
    uint64_t group;
    unsigned bytes;  // per piece: 1, 2, 4, 8 or 16
    size_t pieces = 1, stride = 0;
};

struct AsyncQueue {
    uint64_t block = 0;      // the block these copies belong to
    uint64_t committed = 0;  // number of committed groups, and so the group number of the next copy
    std::vector<AsyncCopy> copies;
};

struct AsyncCopies {
    std::vector<AsyncQueue> queues;  // one per thread
    uint64_t block = 0;              // the block these stages belong to
    std::map<std::pair<const void*, uint64_t>, std::vector<AsyncCopy>> stages;  // by owner and stage number
};

// The copies of the running block.
static AsyncCopies& my_copies() {
    Worker& worker = current_worker();
    if (!worker.copies) worker.copies = new AsyncCopies;
    AsyncCopies& copies = *worker.copies;
    if (copies.block != worker.number) {
        copies.block = worker.number;
        copies.stages.clear();
        if (copies.queues.size() < worker.thread_count) copies.queues.resize(worker.thread_count);
    }
    return copies;
}
static AsyncQueue& my_queue() {
    const Worker& worker = current_worker();
    AsyncQueue& mine = my_copies().queues[worker.running - worker.threads];
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

// own: the running thread issued the copy it waits for.
static void carry_out(const AsyncCopy& copy, bool own, const void* return_address) {
    for (size_t i = 0; i < copy.pieces; ++i) {
        char* to = copy.destination + i * copy.stride;
        const char* from = copy.source ? copy.source + i * copy.stride : nullptr;
        switch (copy.bytes) {
            case 1: move<1>(to, from); break;
            case 2: move<2>(to, from); break;
            case 4: move<4>(to, from); break;
            case 8: move<8>(to, from); break;
            default: move<16>(to, from);
        }
        if constexpr (CHECKED) check_async_done(to, copy.bytes, own, return_address);
    }
}

static void add_copy(std::vector<AsyncCopy>& under_way, const AsyncCopy& copy, const char* what, Position at) {
    if (under_way.size() == MAX_COPIES)
        fail("%s at %s:%d: %zu copies are under way, more than shared memory has room for; is a wait missing?", what,
             at.file, at.line, MAX_COPIES);
    under_way.push_back(copy);
}

static void check_aligned(const char* what, const void* address, unsigned bytes, Position at) {
    if (const size_t past = reinterpret_cast<uintptr_t>(address) % bytes)
        fail("cp_async<%u> at %s:%d: its %s is %zu byte(s) past a multiple of %u", bytes, at.file, at.line, what,
             past, bytes);
}

__attribute__((noinline)) void issue_async_copy(void* destination, const void* source, unsigned bytes, bool inside,
                                                Position at) {
    if constexpr (CHECKED)
        check_async_issue(destination, inside ? source : nullptr, bytes, __builtin_return_address(0));
    Quiet quiet;
    check_aligned("destination", destination, bytes, at);
    check_aligned("source", source, bytes, at);
    check_store(destination, bytes);
    const Worker& worker = current_worker();
    if (source >= worker.arena && source < worker.dynamic_end)
        fail("cp_async<%u> at %s:%d: its source is in shared memory; the order is cp_async(shared, global)", bytes,
             at.file, at.line);
    if (inside) (void)*static_cast<const volatile char*>(source);  // a bad address fails here, not at the wait
    memset(destination, 0xff, bytes);
    const auto* const from = inside ? static_cast<const char*>(source) : nullptr;
    AsyncQueue& mine = my_queue();
    add_copy(mine.copies, {static_cast<char*>(destination), from, mine.committed, bytes}, "cp_async", at);
}

// GPUs copy synchronously if either side is a local variable, or if the barrier or pipeline is not in shared memory.
static bool arrives_later(const void* to, const void* from, const void* owner) {
    const auto stacks = reinterpret_cast<uintptr_t>(&current_worker());
    for (const void* end : {to, from})
        if (reinterpret_cast<uintptr_t>(end) - stacks < REGION_BYTES) return false;
    return !owner || is_shared(owner);
}

__attribute__((noinline)) void issue_memcpy_async(void* to, const void* from, size_t bytes, size_t rank, size_t threads,
                                                  const void* owner, const unsigned* stage, Position at) {
    const size_t ends = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
    const unsigned piece = 1u << __builtin_ctzll(ends | bytes | 16);
    const size_t pieces = bytes / piece;
    if (rank >= pieces) return;
    AsyncQueue& mine = my_queue();
    const AsyncCopy copy = {static_cast<char*>(to) + rank * piece, static_cast<const char*>(from) + rank * piece,
                            mine.committed, piece, (pieces - rank + threads - 1) / threads, threads * piece};
    const void* const return_address = __builtin_return_address(0);
    if constexpr (CHECKED)
        for (size_t i = 0; i < copy.pieces; ++i)
            check_async_issue(copy.destination + i * copy.stride, copy.source + i * copy.stride, piece, return_address);
    Quiet quiet;
    const bool later = arrives_later(to, from, owner);
    for (size_t i = 0; i < copy.pieces; ++i) {
        check_store(copy.destination + i * copy.stride, piece);
        (void)*static_cast<const volatile char*>(copy.source + i * copy.stride);
        if (later) memset(copy.destination + i * copy.stride, 0xff, piece);
    }
    if (!later)
        carry_out(copy, true, return_address);
    else
        add_copy(owner ? my_copies().stages[{owner, *stage}] : mine.copies, copy, "memcpy_async", at);
}

__attribute__((noinline)) void finish_stages(const void* owner, uint64_t end) {
    Quiet quiet;
    if (!current_worker().copies) return;
    auto& stages = my_copies().stages;
    const auto first = stages.lower_bound({owner, 0}), last = stages.lower_bound({owner, end});
    for (auto stage = first; stage != last; ++stage)
        for (const AsyncCopy& copy : stage->second) carry_out(copy, false, __builtin_return_address(0));
    stages.erase(first, last);
}

__attribute__((noinline)) void commit_async_copies() {
    Quiet quiet;
    ++my_queue().committed;
}

// Completes the copies of all groups with a number below `end`.
static void finish_copies(AsyncQueue& mine, uint64_t end, const void* return_address) {
    const auto begin = mine.copies.begin();
    auto copy = begin;
    for (; copy != mine.copies.end() && copy->group < end; ++copy) carry_out(*copy, true, return_address);
    mine.copies.erase(begin, copy);
}

__attribute__((noinline)) void wait_for_async_copies(unsigned groups) {
    Quiet quiet;
    AsyncQueue& mine = my_queue();
    finish_copies(mine, mine.committed - std::min<uint64_t>(groups, mine.committed), __builtin_return_address(0));
}

__attribute__((noinline)) void wait_for_all_async_copies() {
    Quiet quiet;
    AsyncQueue& mine = my_queue();
    finish_copies(mine, ++mine.committed, __builtin_return_address(0));
}

}  // namespace simulator
