// races.cpp - is this access ordered after the earlier ones to the same memory?
//
// Two accesses of different threads race if one of them writes, not both are atomic, and nothing orders them. What
// orders two accesses of one block: a barrier between them (the interval's number tells), and within a warp a
// __syncwarp() that both lanes took part in. Shuffles order nothing. What orders two blocks of a launch, or threads of a
// block without a barrier: an atomic operation of the first after a fence, and one of the second on the same address.
//
// Blocks run one after the other, and of a block's threads no two at once; what is remembered of each granule finds a
// race whatever the order in which they happened to run.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "checker.h"

namespace simulator {

// ---- order within a warp: when lane `me` last heard of lane `other`, counted in the warp's __syncwarp()s

static uint32_t syncs[32], heard[32][32][32];  // [warp], [warp][me][other]

void check_warp_operation(unsigned warp, uint32_t lanes, bool orders_memory) {
    Quiet quiet;
    if (checker.mode == Mode::profile && lanes == checker.worker->warps[warp].alive)
        profile_warps_aligned(1u << warp);
    if (checker.mode != Mode::check || !orders_memory) return;
    const uint32_t now = ++syncs[warp];
    uint32_t joint[32] = {};
    for (unsigned me = 0; me < 32; ++me)
        if (lanes >> me & 1)
            for (unsigned other = 0; other < 32; ++other) joint[other] = std::max(joint[other], heard[warp][me][other]);
    for (unsigned other = 0; other < 32; ++other)
        if (lanes >> other & 1) joint[other] = now;
    for (unsigned me = 0; me < 32; ++me)
        if (lanes >> me & 1) std::copy(joint, joint + 32, heard[warp][me]);
}

// ---- order by fence and atomic operation
//
// A thread that executes an atomic operation releases its own accesses before its last fence, and those of its block's
// other threads that a barrier separates from the operation, if their own thread or the releasing one has executed a
// fence since. Whoever executes an atomic operation on the same address later, and after the next barrier its whole
// block, comes after these. __threadfence_block() counts within the block only.

struct Fences {
    uint16_t all = 0, device = 0;  // how many; and how many by the last __threadfence()
    uint32_t interval = 0;         // of the last __threadfence()
};
struct Release {
    uint32_t first, upto;  // the block's first interval, and the one of the operation
    uint16_t thread;
    std::vector<Fences> fences;  // of all threads of the block

    bool covers(const Access& a, bool same_block) const {
        if (a.interval < first || a.interval > upto) return false;
        const Fences& own = fences[a.thread];
        const bool fenced = a.fences < (same_block ? own.all : own.device);
        if (a.thread == thread) return fenced;
        return a.interval < upto && (fenced || fences[thread].interval > a.interval);
    }
};
using Releases = std::map<std::pair<uint32_t, uint16_t>, Release>;  // by block and thread

static std::unordered_map<uintptr_t, Releases> released;  // by the address of the atomic operation
static std::unordered_map<unsigned, Releases> acquired;   // by threads, since their block's last barrier
static Releases acquired_by_block;
static std::vector<Fences> fences;  // of this block's threads
static bool any_fence;

void start_ordering() { released.clear(); }
void start_block_ordering() {
    acquired.clear();
    acquired_by_block.clear();
    fences.assign(checker.worker ? checker.worker->thread_count : 0, {});
    any_fence = false;
}
static void merge(Releases& into, const Releases& from) {
    for (const auto& [key, release] : from) {
        const auto [entry, is_new] = into.try_emplace(key, release);
        if (!is_new && entry->second.upto <= release.upto) entry->second = release;
    }
}
void barrier_ordering() {
    for (const auto& [thread, releases] : acquired) merge(acquired_by_block, releases);
    acquired.clear();
}

static unsigned thread_number() { return static_cast<unsigned>(checker.worker->running - checker.worker->threads); }

void check_fence(bool device) {
    if (checker.mode != Mode::check || !checker.region) return;
    Quiet quiet;
    Fences& mine = fences[thread_number()];
    ++mine.all;
    any_fence = true;
    if (!device) return;
    mine.device = mine.all;
    mine.interval = checker.interval;
}

static void order_by_atomic(uintptr_t address) {
    if (released.empty() && !any_fence) return;
    const uint16_t me = static_cast<uint16_t>(thread_number());
    Releases& here = released[address];
    if (!here.empty()) merge(acquired[me], here);
    if (any_fence) here.insert_or_assign({checker.block_first, me}, Release{checker.block_first, checker.interval, me, fences});
    const auto mine = acquired.find(me);
    if (mine != acquired.end()) merge(here, mine->second);
    merge(here, acquired_by_block);
}

static bool ordered_by_atomic(const Access& a, unsigned me) {
    const auto covers = [&](const auto& entry) {
        return entry.second.covers(a, entry.second.first == checker.block_first);
    };
    if (std::any_of(acquired_by_block.begin(), acquired_by_block.end(), covers)) return true;
    const auto mine = acquired.find(me);
    return mine != acquired.end() && std::any_of(mine->second.begin(), mine->second.end(), covers);
}

// ---- one access to one granule

struct Now {
    Access access;
    unsigned warp, lane;
};

// Whether the earlier access `a` of this launch comes before the one at hand.
static bool is_ordered(const Access& a, const Now& now) {
    if (a.interval >= checker.block_first) {
        if (a.interval < checker.interval || a.thread == now.access.thread) return true;
        if (a.thread / 32 == now.warp && a.sync < heard[now.warp][now.lane][a.thread % 32]) return true;
    }
    return ordered_by_atomic(a, now.access.thread);
}

// A read that races with the write at hand; null if there is none.
static const Access* racing_read(const Cell& cell, const Now& now, Access& rebuilt) {
    if (cell.read.interval < checker.interval)  // of an earlier interval: another block's, or ordered
        return is_ordered(cell.read, now) ? nullptr : &cell.read;
    for (const Access* one : {&cell.read, &cell.other_read})
        if (one->interval == checker.interval && !is_ordered(*one, now)) return one;
    // Of earlier readers only the warp is known, or the lane: not from where in the program they read.
    rebuilt = cell.read;
    if (const uint32_t warps = cell.reader_warps & ~(1u << now.warp)) {
        rebuilt.thread = static_cast<uint16_t>(32 * __builtin_ctz(warps));
        return is_ordered(rebuilt, now) ? nullptr : &rebuilt;
    }
    for (uint32_t lanes = cell.reader_lanes & ~(1u << now.lane); lanes; lanes &= lanes - 1) {
        rebuilt.thread = static_cast<uint16_t>(now.warp * 32 + __builtin_ctz(lanes));
        if (!is_ordered(rebuilt, now)) return &rebuilt;
    }
    return nullptr;
}

static void remember_read(Cell& cell, const Now& now, uint32_t oldest) {
    const Access old = cell.read;
    if (old.interval >= oldest && old.interval < checker.block_first) return;  // another block's: the one to remember
    cell.read = now.access;
    if (old.interval < checker.interval) {
        cell.other_read.interval = 0;
        cell.reader_warps = 1u << now.warp;
        cell.reader_lanes = 1u << now.lane;
        return;
    }
    if (old.thread != now.access.thread) cell.other_read = old;
    if (old.bytes != now.access.bytes) cell.read.bytes = 0;  // by single bytes: too fine to tell
    const bool together = old.thread / 32u == now.warp && old.sync == now.access.sync;
    cell.reader_warps |= 1u << now.warp;
    cell.reader_lanes = (together ? cell.reader_lanes : 0) | 1u << now.lane;
}

static void remember_atomic(Cell& cell, const Now& now) {
    if (cell.atomic.thread != now.access.thread || cell.atomic.interval < checker.block_first)
        cell.other_atomic = cell.atomic;
    cell.atomic = now.access;
}

static Touch touch_of(const Access& a) {
    const auto& firsts = checker.first_of_block;
    const size_t block = static_cast<size_t>(std::upper_bound(firsts.begin(), firsts.end(), a.interval) - firsts.begin());
    const dim3 grid = checker.worker->grid;
    const unsigned number = static_cast<unsigned>(block ? block - 1 : 0);
    return {a.action, a.size, a.site, {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y},
            thread_at(a.thread)};
}

// What is wrong with the access, and with which earlier one; null if nothing is.
static const char* examine(const Range& range, const Cell& cell, const Now& now, const Access*& other, Access& rebuilt) {
    const bool arena = range.kind == Range::shared;
    const uint32_t oldest = arena ? checker.block_first : checker.launch_first;
    const Action action = now.access.action;
    const auto races_with = [&](const Access& a) {
        other = &a;
        return a.interval >= oldest && a.bytes & now.access.bytes && !is_ordered(a, now);
    };
    if (cell.write.interval >= oldest && cell.write.pending) {
        other = &cell.write;
        return is_ordered(cell.write, now) ? "async_race" : "race";
    }
    if (action == Action::read || action == Action::atomic) {
        const uint32_t written = std::max(cell.write.interval, cell.atomic.interval);
        other = nullptr;
        if (arena ? written < oldest : !range.initialized && written == 0) return "uninitialized";
    }
    if (races_with(cell.write)) return "race";
    if (action != Action::atomic && (races_with(cell.atomic) || races_with(cell.other_atomic))) return "race";
    if (action != Action::read && cell.read.interval >= oldest && cell.read.bytes & now.access.bytes) {
        other = racing_read(cell, now, rebuilt);
        if (other) return "race";
    }
    return nullptr;
}

void check_range_access(Range& range, uintptr_t address, size_t bytes, Action action, uint32_t site, bool pending) {
    const unsigned thread = thread_number();
    Now now = {{checker.interval, site, syncs[thread / 32], static_cast<uint16_t>(thread), fences[thread].all, 3,
                static_cast<uint8_t>(std::min<size_t>(bytes, 255)), action, pending},
               thread / 32, thread % 32};
    const uint32_t oldest = range.kind == Range::shared ? checker.block_first : checker.launch_first;
    const uintptr_t end = address + bytes;
    if (action == Action::atomic) order_by_atomic(address);
    bool told = false;
    for (uintptr_t p = address & ~(GRANULE - 1); p < end; p += GRANULE) {
        Cell& cell = range.cells[(p - (range.start & ~(GRANULE - 1))) / GRANULE];
        now.access.bytes = static_cast<uint8_t>((p >= address ? 1 : 0) | (p + 1 < end ? 2 : 0));
        if (!told) {
            const Access* other = nullptr;
            Access rebuilt;
            if (const char* wrong = examine(range, cell, now, other, rebuilt)) {
                std::vector<Touch> touches = {touch_now(action, bytes, site)};
                if (other) touches.push_back(touch_of(*other));
                add_finding(wrong, describe_place(range, std::max(p, address)), touches, "");
                told = true;
            }
        }
        if (action == Action::read)
            remember_read(cell, now, oldest);
        else if (action == Action::atomic)
            remember_atomic(cell, now);
        else
            cell.write = now.access;
    }
}

void finish_async_copy(Range& range, uintptr_t address, size_t bytes, uint32_t) {
    const unsigned thread = thread_number();
    for (uintptr_t p = address; p < address + bytes; p += GRANULE) {
        Access& write = range.cells[(p - range.start) / GRANULE].write;
        if (write.interval < checker.block_first || write.thread != thread) continue;
        write.pending = false;
        write.interval = checker.interval;
        write.sync = syncs[thread / 32];
    }
}

}  // namespace simulator
