// races.cpp - is an access ordered after the earlier ones to the same memory?
//
// Two accesses by different threads race if one of them writes, they are not both atomic, and nothing orders them.
// Accesses within a block are ordered by a barrier between them (visible in the interval numbers) and, within a warp,
// by a __syncwarp() in which both lanes took part. Shuffles order nothing. Two blocks of a launch, or threads of a
// block without a barrier, are ordered by an atomic operation of the first after a fence and one of the second on the
// same address. As on a GPU, a volatile store counts as the former, and a volatile load followed by a fence or barrier
// as the latter.
//
// Blocks run one after the other, and only one thread runs at a time; the recorded accesses reveal a race in whatever
// order the threads happened to run.
#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "async_order.h"
#include "checker.h"

namespace simulator {

// ---- order within a warp: the __syncwarp() at which lane `me` last synchronized with lane `other`, even indirectly

static uint32_t syncs[32], heard[32][32][32];  // [warp], [warp][me][other]
static bool any_sync;
Order* order;

void check_warp_operation(unsigned warp, uint32_t lanes, bool orders_memory) {
    Quiet quiet;
    if (checker.mode == Mode::profile && lanes == checker.worker->warps[warp].alive)
        profile_warps_aligned(1u << warp);
    if (checker.recording) replay_warp_operation(lanes);
    if (checker.mode != Mode::check || !orders_memory) return;
    any_sync = true;
    const uint32_t now = ++syncs[warp];
    uint32_t joint[32] = {};
    for (unsigned me = 0; me < 32; ++me)
        if (lanes >> me & 1)
            for (unsigned other = 0; other < 32; ++other) joint[other] = std::max(joint[other], heard[warp][me][other]);
    for (unsigned other = 0; other < 32; ++other)
        if (lanes >> other & 1) joint[other] = now;
    for (unsigned me = 0; me < 32; ++me)
        if (lanes >> me & 1) std::copy(joint, joint + 32, heard[warp][me]);
    order_at_syncwarp(warp, lanes);
}

// ---- order by fence and atomic operation
//
// An atomic operation releases its thread's accesses before the thread's last fence. It also releases the accesses of
// other threads of the block that a barrier separates from it, if their own thread or the releasing one has fenced
// since then. A thread that later executes an atomic operation on the same address acquires these; its whole block does
// at the next barrier. __threadfence_block() counts within the block only.

struct Fences {
    uint16_t all = 0, device = 0;  // number of fences so far, and as of the last __threadfence()
    uint32_t interval = 0;         // the last __threadfence()'s
};
struct Release {
    uint32_t first, upto;  // the block's first interval, and the operation's
    uint16_t thread;
    uint32_t number;                                     // the block's fence count
    std::shared_ptr<const std::vector<Fences>> fences_;  // of all threads of the block

    bool is_older_than(const Release& other) const {
        return upto < other.upto || (upto == other.upto && number < other.number);
    }
    bool covers(const Access& a, bool same_block) const {
        if (a.interval < first || a.interval > upto) return false;
        const std::vector<Fences>& fences = *fences_;
        const Fences& own = fences[a.thread];
        // A releasing access follows the fence itself, so it needs no later one.
        const unsigned least = a.fences + (a.action != Action::atomic && !a.is_volatile);
        const bool fenced = least <= (same_block ? own.all : own.device);
        if (a.thread == thread) return fenced;
        return a.interval < upto && (fenced || fences[thread].interval > a.interval);
    }
};
using Releases = std::map<std::pair<uint32_t, uint16_t>, Release>;  // by block and thread

static std::unordered_map<uintptr_t, Releases> released;  // by the address of the atomic operation
// One block's; if blocks take turns, each has its own.
struct BlockOrdering {
    std::unordered_map<unsigned, Releases> acquired;  // per thread, since the block's last barrier
    std::unordered_map<unsigned, Releases> read_of;   // by volatile loads: acquired at the thread's next fence or barrier
    Releases acquired_by_block;
    std::vector<Fences> fences;  // per thread
    uint32_t fence_count = 0;
    bool any_fence = false;
    std::shared_ptr<const std::vector<Fences>> latest_fences;  // a snapshot; null if out of date
};
static BlockOrdering ours;

void start_ordering() { released.clear(); }
static void give_block_ordering(BlockOrdering&& from) {
    ours = std::move(from);
    const unsigned threads = checker.worker ? checker.worker->thread_count : 0;
    if (ours.fences.size() != threads) ours.fences.assign(threads, {});
}
void start_block_ordering() { give_block_ordering({}); }
static void merge(Releases& into, const Releases& from) {
    for (const auto& [key, release] : from) {
        const auto [entry, is_new] = into.try_emplace(key, release);
        if (!is_new && entry->second.is_older_than(release)) entry->second = release;
    }
}
void barrier_ordering() {
    order_at_barrier();
    if (any_sync && !order && !checker.worker->together) {  // they order within an interval
        memset(syncs, 0, sizeof syncs);
        memset(heard, 0, sizeof heard);
        any_sync = false;
    }
    for (auto* of : {&ours.acquired, &ours.read_of}) {
        for (const auto& [thread, releases] : *of) merge(ours.acquired_by_block, releases);
        of->clear();
    }
}

SIMULATOR_INLINE static unsigned thread_of_stack() {
    return static_cast<unsigned>(stack_address() / STACK_BYTES % (REGION_BYTES / STACK_BYTES) - 1);
}
static unsigned thread_number() { return static_cast<unsigned>(checker.worker->running - checker.worker->threads); }

void check_fence(bool device) {
    if (checker.mode != Mode::check || !checker.region) return;
    Quiet quiet;
    const unsigned me = thread_number();
    if (const auto read = ours.read_of.find(me); read != ours.read_of.end()) {
        merge(ours.acquired[me], read->second);
        ours.read_of.erase(read);
    }
    Fences& mine = ours.fences[me];
    ++mine.all;
    ++ours.fence_count;
    ours.latest_fences = nullptr;
    ours.any_fence = true;
    if (!device) return;
    mine.device = mine.all;
    mine.interval = checker.interval;
}

enum class Synchronizes { load, store, both };  // a volatile load, a volatile store, an atomic operation
static void order_by_atomic(uintptr_t address, Synchronizes how) {
    if (released.empty() && !ours.any_fence) return;
    const uint16_t me = static_cast<uint16_t>(thread_number());
    Releases& here = released[address];
    if (how == Synchronizes::store) here.clear();  // readers of this value do not acquire earlier releases
    if (!here.empty()) merge((how == Synchronizes::load ? ours.read_of : ours.acquired)[me], here);
    if (how == Synchronizes::load) return;
    const auto mine = ours.acquired.find(me);
    if (mine != ours.acquired.end()) merge(here, mine->second);
    merge(here, ours.acquired_by_block);
    if (!ours.any_fence) return;
    if (!ours.latest_fences) ours.latest_fences = std::make_shared<const std::vector<Fences>>(ours.fences);
    here.insert_or_assign({checker.block_first, me},
                          Release{checker.block_first, checker.interval, me, ours.fence_count, ours.latest_fences});
}

static bool ordered_by_atomic(const Access& a, unsigned me) {
    const auto covers = [&](const auto& entry) {
        return entry.second.covers(a, entry.second.first == checker.block_first);
    };
    if (std::any_of(ours.acquired_by_block.begin(), ours.acquired_by_block.end(), covers)) return true;
    const auto mine = ours.acquired.find(me);
    return mine != ours.acquired.end() && std::any_of(mine->second.begin(), mine->second.end(), covers);
}

// ---- one access to one granule

struct Now {
    Access access;
    unsigned warp, lane;
};

// Whether the earlier access `a` of this launch is ordered before the current one.
static bool is_ordered(const Access& a, const Now& now) {
    if (order && a.thread >= order->threads)  // a copy: its phase must have been waited for
        return a.interval < checker.block_first || order->row(now.access.thread)[a.thread] > a.sync;
    if (order && a.interval >= checker.block_first && order->row(now.access.thread)[a.thread] > a.sync) return true;
    if (a.interval >= checker.block_first) {
        if (a.interval < checker.interval || a.thread == now.access.thread) return true;
        if (a.thread / 32 == now.warp && a.sync < heard[now.warp][now.lane][a.thread % 32]) return true;
    }
    return ordered_by_atomic(a, now.access.thread);
}

// A read that races with the current write; null if there is none.
static const Access* racing_read(const Cell& cell, const Now& now, Access& rebuilt) {
    if (cell.read.interval < checker.interval)  // an earlier interval: another block's, or ordered
        return is_ordered(cell.read, now) ? nullptr : &cell.read;
    for (const Access* one : {&cell.read, &cell.other_read})
        if (one->interval == checker.interval && !is_ordered(*one, now)) return one;
    if (order) return nullptr;  // when the other readers read, and what they have released since, is unknown
    // For earlier readers only the warp or lane is known, not the place in the program.
    rebuilt = cell.read;
    if (const uint32_t warps = cell.reader_warps & ~(1u << now.warp)) {
        const unsigned first = 32 * __builtin_ctz(warps), last = std::min(first + 32, checker.worker->thread_count);
        rebuilt.thread = static_cast<uint16_t>(first);
        if (!ours.any_fence) return is_ordered(rebuilt, now) ? nullptr : &rebuilt;
        for (unsigned thread = first; thread < last; ++thread) {  // which thread read is unknown
            rebuilt.thread = static_cast<uint16_t>(thread);
            if (is_ordered(rebuilt, now)) return nullptr;
        }
        return &rebuilt;
    }
    for (uint32_t lanes = cell.reader_lanes & ~(1u << now.lane); lanes; lanes &= lanes - 1) {
        rebuilt.thread = static_cast<uint16_t>(now.warp * 32 + __builtin_ctz(lanes));
        if (!is_ordered(rebuilt, now)) return &rebuilt;
    }
    return nullptr;
}

SIMULATOR_INLINE static void remember_read(Cell& cell, const Now& now, uint32_t oldest) {
    const Access old = cell.read;
    if (old.interval >= oldest && old.interval < checker.block_first) return;  // another block's read: keep that
    cell.read = now.access;
    if (old.interval < checker.interval) {
        cell.other_read.interval = 0;
        cell.reader_warps = 1u << now.warp;
        cell.reader_lanes = 1u << now.lane;
        return;
    }
    if (old.thread != now.access.thread) cell.other_read = old;
    if (old.bytes != now.access.bytes) cell.read.bytes = 0;  // differing bytes: too fine to track
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
    const auto next = std::upper_bound(firsts.begin(), firsts.end(), std::make_pair(a.interval, UINT64_MAX));
    const unsigned number = next == firsts.begin() ? 0 : static_cast<unsigned>(std::prev(next)->second);
    const unsigned thread = order && a.thread >= order->threads ? 0 : a.thread;  // a TMA copy is issued by some thread
    return {a.action, a.size, a.site, place_in(checker.worker->grid, number), thread_at(thread)};
}

// A flag: one side stores it as volatile after a fence or updates it atomically, the other reads it as volatile or
// atomically.
static bool is_flag(const Access& a, const Access& b) {
    const auto gives = [](const Access& x) { return x.action == Action::atomic || (x.action == Action::write && x.is_volatile && x.fenced); };
    const auto takes = [](const Access& x) { return x.action == Action::atomic || (x.action == Action::read && x.is_volatile); };
    return (gives(a) && takes(b)) || (gives(b) && takes(a));
}

// The kind of mistake, and the other access involved; null if the access is correct.
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
        if (order && cell.write.thread >= order->threads) {
            if (!is_ordered(cell.write, now)) return "copy_not_awaited";
        } else
            return is_ordered(cell.write, now) ? "async_race" : "race";
    }
    if (action == Action::read || (action == Action::atomic && !now.access.is_volatile)) {
        const uint32_t written = std::max(cell.write.interval, cell.atomic.interval);
        other = nullptr;
        if (arena ? written < checker.shared_first : !range.initialized && written == 0) return "uninitialized";
    }
    if (races_with(cell.write)) return "race";
    if (action != Action::atomic && (races_with(cell.atomic) || races_with(cell.other_atomic))) return "race";
    if (action != Action::read && cell.read.interval >= oldest && cell.read.bytes & now.access.bytes) {
        other = racing_read(cell, now, rebuilt);
        if (other) return "race";
    }
    return nullptr;
}

static Now now_at(Action action, size_t bytes, uint32_t site, bool pending, bool is_volatile = false) {
    const unsigned thread = thread_number();
    return {{checker.interval, site, syncs[thread / 32], static_cast<uint16_t>(thread), ours.fences[thread].all, 15,
             static_cast<uint8_t>(std::min<size_t>(bytes, 255)), action, pending, is_volatile, ours.fences[thread].all > 0},
            thread / 32, thread % 32};
}

static uint32_t oldest_of(const Range& range) {
    return range.kind == Range::shared ? checker.block_first : checker.launch_first;
}

// Whether an earlier access is ordered before every access of this block in this interval.
SIMULATOR_INLINE static bool is_settled(const Access& a, uint32_t oldest) {
    return a.interval < oldest || (a.interval >= checker.block_first && a.interval < checker.interval);
}

SIMULATOR_INLINE static void remember(Cell& cell, const Now& now, uint32_t oldest) {
    if (cell.newest < oldest) cell.begun = checker.interval;
    cell.owner = cell.newest == checker.interval && cell.owner != now.access.thread ? NOBODY : now.access.thread;
    cell.newest = checker.interval;
    if (now.access.action == Action::read) {
        remember_read(cell, now, oldest);
        const bool settled = is_settled(cell.write, oldest) && is_settled(cell.atomic, oldest) &&
                             is_settled(cell.other_atomic, oldest) && !cell.write.pending;
        cell.in_order = settled ? checker.interval : 0;
        return;
    }
    cell.in_order = 0;
    if (now.access.action == Action::atomic)
        remember_atomic(cell, now);
    else
        cell.write = now.access;
}

// ---- fast paths for accesses that cannot be wrong

// Whether no other thread has accessed this in the current interval, and no other block before that in this launch.
// Shared memory must have been accessed in this block before: whether it belongs to a variable is not checked again.
template <bool SHARED>
SIMULATOR_INLINE static bool is_ours(const Cell& cell, uint32_t oldest, uint16_t thread) {
    if (cell.newest < oldest) return !SHARED;
    return cell.begun >= checker.block_first && (cell.newest < checker.interval || cell.owner == thread) && !cell.write.pending;
}

SIMULATOR_INLINE static Access access_of_words(Action action, unsigned thread, size_t words, uint32_t site) {
    return {checker.interval, site, any_sync ? syncs[thread / 32] : 0, static_cast<uint16_t>(thread),
            ours.any_fence ? ours.fences[thread].all : uint16_t(0), 15, static_cast<uint8_t>(words * WORD), action, false};
}

// A read of a word that another lane of the warp has just read at the same site: the most common case, and the fastest.
template <bool SHARED>
SIMULATOR_INLINE bool read_again(Cell& cell, uint32_t site) {
    if (cell.in_order != checker.interval) return false;
    Access& last = cell.read;
    if (last.interval != checker.interval) return !SHARED;  // keep another block's
    const unsigned thread = thread_of_stack();
    if (last.site != site || last.thread / 32 != thread / 32) return false;
    if (any_sync && last.sync != syncs[thread / 32]) return false;
    if (last.thread == thread) return true;
    Access& other = cell.other_read;
    if (other.interval != checker.interval || other.thread == thread) other = last;
    last.thread = static_cast<uint16_t>(thread);
    cell.owner = NOBODY;
    cell.reader_lanes |= 1u << thread % 32;
    return true;
}

// A read of whole words. False, with nothing recorded, if it needs the full check.
template <size_t WORDS, bool SHARED>
SIMULATOR_INLINE bool read_quickly(const Range& range, Cell* cells, uint32_t site) {
    const uint32_t oldest = SHARED ? checker.block_first : checker.launch_first;
    const uint16_t thread = static_cast<uint16_t>(thread_of_stack());
    for (size_t i = 0; i < WORDS; ++i) {
        const Cell& cell = cells[i];
        if (cell.in_order == checker.interval) continue;
        const uint32_t written = cell.write.interval > cell.atomic.interval ? cell.write.interval : cell.atomic.interval;
        const bool fresh = SHARED ? written < oldest : !range.initialized && written == 0;
        if (fresh || cell.split || !is_ours<SHARED>(cell, oldest, thread)) return false;
    }
    const Access access = access_of_words(Action::read, thread, WORDS, site);
    for (size_t i = 0; i < WORDS; ++i) {
        Cell& cell = cells[i];
        if (cell.in_order != checker.interval) {
            remember(cell, {access, thread / 32u, thread % 32u}, oldest);
            continue;
        }
        // As in remember(), given that the first read of the interval has been recorded.
        Access& last = cell.read;
        if (last.interval != checker.interval) continue;  // keep another block's
        const bool together = last.thread / 32 == thread / 32 && last.sync == access.sync;
        if (last.thread != thread) {
            cell.owner = NOBODY;
            cell.other_read = last;
        }
        const uint8_t bytes = last.size == access.size ? 15 : 0;  // several sizes: too fine to track
        last = access;
        last.bytes = bytes;
        cell.reader_warps |= 1u << thread / 32;
        cell.reader_lanes = (together ? cell.reader_lanes : 0) | 1u << thread % 32;
    }
    return true;
}

// A write of whole words.
template <size_t WORDS, bool SHARED>
SIMULATOR_INLINE bool write_quickly(Cell* cells, uint32_t site) {
    const uint32_t oldest = SHARED ? checker.block_first : checker.launch_first;
    const uint16_t thread = static_cast<uint16_t>(thread_of_stack());
    for (size_t i = 0; i < WORDS; ++i)
        if (cells[i].split || !is_ours<SHARED>(cells[i], oldest, thread)) return false;
    const Access access = access_of_words(Action::write, thread, WORDS, site);
    for (size_t i = 0; i < WORDS; ++i) remember(cells[i], {access, thread / 32u, thread % 32u}, oldest);
    return true;
}

// ---- any access

static void split(Cell& cell, Cell* halves) {
    cell.split = true;
    for (int i = 0; i < 2; ++i) {
        halves[i] = cell;
        halves[i].split = false;
        for (Access* a : {&halves[i].read, &halves[i].other_read, &halves[i].write, &halves[i].atomic, &halves[i].other_atomic})
            if (a->bytes) a->bytes = 3;
    }
}

void check_range_access(Range& range, uintptr_t address, size_t bytes, Action action, uint32_t site, bool pending, bool is_volatile) {
    Now now = now_at(action, bytes, site, pending, is_volatile);
    const uint32_t oldest = oldest_of(range);
    const uintptr_t end = address + bytes;
    if (action == Action::atomic || is_volatile)
        order_by_atomic(address, action == Action::read ? Synchronizes::load : action == Action::write ? Synchronizes::store : Synchronizes::both);
    bool told = false;
    const auto look_at = [&](Cell& cell, uintptr_t p) {
        if (!told) {
            const Access* other = nullptr;
            Access rebuilt;
            if (const char* wrong = examine(range, cell, now, other, rebuilt)) {
                std::vector<Touch> touches = {touch_now(action, bytes, site)};
                if (other) touches.push_back(touch_of(*other));
                const Place place = describe_place(range, std::max(p, address));
                if (action == Action::write && other && other->action == Action::write && other->size == now.access.size)
                    add_racing_write(place, touches, address, bytes);
                else
                    add_finding(other && !strcmp(wrong, "race") && is_flag(now.access, *other) ? "volatile_flag" : wrong, place,
                                touches, "");
                told = true;
            }
        }
        remember(cell, now, oldest);
    };
    for (uintptr_t p = address & ~(WORD - 1); p < end; p += WORD) {
        Cell& cell = range.cell_of(p);
        const bool whole = p >= address && p + WORD <= end;
        if (whole && !cell.split) {
            now.access.bytes = 15;
            look_at(cell, p);
            continue;
        }
        Cell* halves = range.halves_of(p);
        if (!cell.split) split(cell, halves);
        for (uintptr_t h = p; h < p + WORD; h += HALF) {
            now.access.bytes = static_cast<uint8_t>((h >= address && h < end ? 1 : 0) | (h + 1 >= address && h + 1 < end ? 2 : 0));
            if (now.access.bytes) look_at(halves[(h - p) / HALF], h);
        }
    }
}

// A stale plain read before an atomicCAS loop is harmless: the atomicCAS then fails.
void note_compare_and_swap(const Range& range, uintptr_t address) {
    const Cell& word = range.cell_of(address);
    const Cell& cell = word.split ? range.halves_of(address)[address % WORD / HALF] : word;
    if (cell.read.thread == thread_number() && cell.read.interval == checker.interval) note_guarded_read(cell.read.site);
}

// At its own thread's wait a copy is a write of that moment. Else it is one of the moment when it was started: its
// thread has arrived or committed since, and whoever waits comes after that.
void finish_async_copy(Range& range, uintptr_t address, size_t bytes, bool own) {
    const unsigned thread = thread_number();
    const auto finish = [&](Cell& cell) {
        Access& write = cell.write;
        if (write.interval < checker.block_first || !write.pending || (own && write.thread != thread)) return;
        write.pending = false;
        if (own) {
            write.interval = cell.newest = checker.interval;
            write.sync = syncs[thread / 32];
        }
        cell.owner = NOBODY;
        cell.in_order = 0;
    };
    for (uintptr_t p = address; p < address + bytes; p += WORD) {
        Cell& cell = range.cell_of(p);
        finish(cell);
        if (cell.split) finish(range.halves_of(p)[0]), finish(range.halves_of(p)[1]);
    }
}

}  // namespace simulator
