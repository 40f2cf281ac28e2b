// scheduler.cpp - one block: which thread runs next, barriers, warp operations, and the placement of shared variables.
//
// Except in graded builds, threads are never preempted. A thread runs until it waits (at a barrier, in a warp
// operation, in yield()) or returns; then the next ready thread runs, preferably of the same warp, whose data is in the
// cache. If no thread is ready, the block has finished or is deadlocked; the deadlock report says where each thread
// waits.
#include <stdarg.h>
#include <stdio.h>

#include <exception>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "apart.h"
#include "hopper.h"
#include "worker.h"
#include "checker.h"

namespace simulator {

constexpr int NAN_BYTE = 0xff;
int fresh_shared = NAN_BYTE;

// ---- the next thread

SIMULATOR_INLINE static void make_ready(Worker& worker, unsigned warp, uint32_t lanes) {
    worker.warps[warp].ready |= lanes;
    if (worker.warps[warp].ready) worker.ready_warps |= 1u << warp;
}

// Whether threads run in descending order of their numbers. Code that lacks a barrier may be right in one order, but
// hardly in both.
SIMULATOR_INLINE static bool backward() { return fresh_shared != NAN_BYTE; }

SIMULATOR_INLINE static unsigned first_bit(uint32_t bits) {
    return backward() ? 31 - __builtin_clz(bits) : __builtin_ctz(bits);
}
// The bits whose turn comes after bit `after`.
SIMULATOR_INLINE static uint32_t bits_after(uint32_t bits, unsigned after) {
    return bits & (backward() ? (1u << after) - 1 : ~((2u << after) - 1));
}
// The first set bit after `after`, wrapping around.
SIMULATOR_INLINE static unsigned next_bit(uint32_t bits, unsigned after) {
    const uint32_t rest = bits_after(bits, after);
    return first_bit(rest ? rest : bits);
}

SIMULATOR_INLINE static Thread* take(Worker& worker, unsigned warp, unsigned lane) {
    worker.warps[warp].ready &= ~(1u << lane);
    if (!worker.warps[warp].ready) worker.ready_warps &= ~(1u << warp);
    return &worker.threads[warp * 32 + lane];
}

static bool same_place(Position a, Position b) {
    return a.line == b.line && a.number == b.number && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

// No other lane of the warp can reach a lanes_here() now. The lanes that wait at the first such place in the source
// resume together. The others keep waiting: the resumed lanes may still reach their places.
static void answer_who_is_here(Worker& worker, unsigned number) {
    Warp& warp = worker.warps[number];
    Thread* lanes = &worker.threads[number * 32];
    Position first = lanes[__builtin_ctz(warp.asking)].position;
    uint32_t together = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
        if (warp.asking >> lane & 1 && lanes[lane].position.line < first.line) first = lanes[lane].position;
    for (unsigned lane = 0; lane < 32; ++lane)
        if (warp.asking >> lane & 1 && same_place(lanes[lane].position, first)) together |= 1u << lane;
    for (unsigned lane = 0; lane < 32; ++lane)
        if (together >> lane & 1) lanes[lane].mask = together;
    warp.asking &= ~together;
    make_ready(worker, number, together);
}
// Spinning lanes do not count as able to come: they may be waiting for a lane in lanes_here().
SIMULATOR_INLINE static void answer_if_nobody_comes(Worker& worker, unsigned warp) {
    const Warp& of = worker.warps[warp];
    const bool one_comes_later = worker.held_up && worker.held_up->warp == warp;
    if (of.asking && !(of.ready & ~of.yielded) && !one_comes_later) answer_who_is_here(worker, warp);
}

// ---- hold-ups
//
// A GPU runs a block's threads concurrently, so a read without a barrier may see an old value. In a graded build one
// thread at a time is held up before a store until no other thread can run or all have spun for a while. A fixed
// pseudorandom sequence gives the number of the block's stores until the next hold-up.
//
// Likewise for blocks: one block of a launch waits before a store to global memory until the others have ended or spin
// (run_with_a_late_block).
constexpr unsigned MOST_SPINS = 200;

SIMULATOR_INLINE static void choose_store(Worker& worker) {
    worker.random = next_random(worker.random);
    worker.stores_left = 1 + (worker.random >> 16) % MOST_STORES;
}
SIMULATOR_INLINE static Thread* take_held_up(Worker& worker) {
    worker.awaits_blocks = false;
    return std::exchange(worker.held_up, nullptr);
}

// The next thread after `from`, lanes of the same warp first; null if none can run.
SIMULATOR_INLINE static Thread* next_thread(Worker& worker, const Thread& from) {
    if (!worker.warps[from.warp].ready) answer_if_nobody_comes(worker, from.warp);
    if (worker.warps[from.warp].ready)
        return take(worker, from.warp, next_bit(worker.warps[from.warp].ready, from.lane));
    if (!worker.ready_warps) return worker.awaits_blocks ? nullptr : take_held_up(worker);
    const unsigned warp = next_bit(worker.ready_warps, from.warp);
    return take(worker, warp, first_bit(worker.warps[warp].ready));
}

void hold_up(Worker& worker) {
    choose_store(worker);
    if (worker.held_up) return;
    Thread* me = worker.running;
    if (Thread* next = next_thread(worker, *me)) {
        worker.held_up = me;
        worker.spins = 0;
        switch_thread(worker, next);
    }
}

void await_blocks(Worker& worker) {
    if (worker.held_up) return;
    worker.global_stores_left = 0;
    worker.held_up = worker.running;
    worker.awaits_blocks = true;
    worker.spins = 0;
    switch_thread(worker, next_thread(worker, *worker.running));
}
void stop_awaiting_blocks(Worker& worker) {
    worker.global_stores_left = 0;
    if (!worker.awaits_blocks) return;
    const Thread* const thread = take_held_up(worker);
    make_ready(worker, thread->warp, 1u << thread->lane);
}
static Thread* put_back(Worker& worker, Thread* thread) {
    if (thread) make_ready(worker, thread->warp, 1u << thread->lane);
    worker.yields = 0;
    return nullptr;
}

void wait_for_wakeup(State state, const char* operation, Position at) {
    const WhileOthersRun others;
    Worker& worker = current_worker();
    Thread& me = *worker.running;
    me.state = state, me.operation = operation, me.position = at;
    worker.warps[me.warp].yielded &= ~(1u << me.lane);
    switch_thread(worker, next_thread(worker, me));
    me.state = State::running;
}
void make_ready_again(Worker& worker, Thread& thread) { make_ready(worker, thread.warp, 1u << thread.lane); }

void yield() {
    Worker& worker = current_worker();
    Thread& me = *worker.running;
    worker.warps[me.warp].yielded |= 1u << me.lane;
    if (worker.held_up && ++worker.spins > MOST_SPINS * worker.live) {
        Thread& other = *take_held_up(worker);
        make_ready(worker, other.warp, 1u << other.lane);
    }
    answer_if_nobody_comes(worker, me.warp);
    // All other threads run before this one does, so this goes in the block's order, not by warp first.
    Thread* next;
    const uint32_t rest = bits_after(worker.warps[me.warp].ready, me.lane);
    if (rest)
        next = take(worker, me.warp, first_bit(rest));
    else if (worker.ready_warps) {
        const unsigned warp = next_bit(worker.ready_warps, me.warp);
        next = take(worker, warp, first_bit(worker.warps[warp].ready));
    } else if (worker.held_up)
        next = take_held_up(worker);
    else if (worker.together)
        next = nullptr;
    else
        return;
    // A spinning thread may wait for a co-resident block, so after one round of all threads the next block runs. That
    // block may in turn wait for data from this one, so one pending copy is performed.
    if (worker.together && ++worker.yields > worker.live) {
        run_engine(worker);
        next = put_back(worker, next);
    }
    const WhileOthersRun others;
    make_ready(worker, me.warp, 1u << me.lane);
    switch_thread(worker, next);
}

void yield_waiting() {
    current_worker().spins += MOST_SPINS;
    yield();
}
unsigned let_others_run(unsigned any) { return yield(), any; }

SIMULATOR_INLINE static void wait_for_others(Worker& worker, Thread& me) {
    switch_thread(worker, next_thread(worker, me));
}

static void pass_barrier(Worker& worker);
void thread_returned(Worker& worker) {
    Thread& me = *worker.running;
    me.state = State::returned;
    worker.warps[me.warp].alive &= ~(1u << me.lane);
    --worker.live;
    leave_cluster_barrier(worker);
    make_ready(worker, me.warp, worker.warps[me.warp].arrived);  // lanes that waited for this one check again
    if (worker.at_barrier && worker.at_barrier == worker.live) pass_barrier(worker);
    wait_for_others(worker, me);
}

unsigned lanes_here(Position position) {
    Worker& worker = current_worker();
    Thread& me = *worker.running;
    me.operation = "__activemask";
    me.position = position;
    me.state = State::asks_who_is_here;
    worker.warps[me.warp].asking |= 1u << me.lane;
    worker.warps[me.warp].yielded &= ~(1u << me.lane);
    wait_for_others(worker, me);
    me.state = State::running;
    return me.mask;
}

// ---- barriers

static void make_all_ready(Worker& worker) {
    count_progress(worker);
    for (unsigned warp = 0; warp < worker.warp_count; ++warp) {
        worker.warps[warp].yielded = 0;
        make_ready(worker, warp, worker.warps[warp].alive);
    }
}
// All threads that have not returned have arrived. As on GPUs since Volta, returned threads count as arrived.
static void pass_barrier(Worker& worker) {
    if constexpr (CHECKED)
        if (worker.live < worker.thread_count) check_barrier_after_return(worker.barrier_position);
    worker.result[worker.interval & 1] = worker.votes;
    worker.votes = worker.at_barrier = 0;
    ++worker.interval;
    if constexpr (CHECKED) check_barrier_passed();
    make_all_ready(worker);
}

static const char* number_in_line(Position position) {
    static const char* const words[] = {"", " (the first in its line)", " (the second)", " (the third)", " (a later one)"};
    return words[position.number < 4 ? position.number : 4];
}

SIMULATOR_UNCHECKED unsigned barrier(bool predicate, const char* operation, Position position) {
    Worker& worker = current_worker();
    Thread& me = *worker.running;
    me.operation = operation;
    me.position = position;
    const Position first = worker.barrier_position;
    if (worker.at_barrier == 0)
        worker.barrier_position = position;
    else if (!same_place(position, first))
        fail(
            "barrier divergence: this thread reached %s at %s:%d%s while %u thread(s) of its block wait at "
            "%s:%d%s",
            operation, position.file, position.line, number_in_line(position), worker.at_barrier, first.file, first.line,
            number_in_line(first));
    const unsigned parity = worker.interval & 1;
    worker.votes += predicate;
    if (++worker.at_barrier < worker.live) {
        me.state = State::at_barrier;
        wait_for_others(worker, me);
        me.state = State::running;
    } else {
        pass_barrier(worker);
        take(worker, me.warp, me.lane);
    }
    return worker.result[parity];
}

// ---- the barrier of a cooperative grid

bool is_cooperative() { return current_worker().grid_run->kernel->cooperative; }

void grid_barrier(Position position) {
    Worker& worker = current_worker();
    if (!is_cooperative())
        fail("%s:%d: grid.sync() in a kernel that was not launched with cudaLaunchCooperativeKernel()", position.file,
             position.line);
    Thread& me = *worker.running;
    me.operation = "grid.sync";
    me.position = position;
    me.state = State::at_grid_barrier;
    worker.grid_position = position;
    ++worker.at_grid_barrier;
    wait_for_others(worker, me);
    me.state = State::running;
}

void pass_grid_barrier(Worker& worker) {
    worker.at_grid_barrier = 0;
    ++worker.interval;
    make_all_ready(worker);
}

// ---- warp operations

// Whether all lanes of `mask` that have not returned wait in an operation with this mask.
SIMULATOR_INLINE static bool all_arrived(const Warp& warp, const Thread* lanes, uint32_t mask) {
    const uint32_t needed = mask & warp.alive;
    if ((warp.arrived & needed) != needed) return false;
    if (!warp.mixed) return true;
    for (unsigned lane = 0; lane < 32; ++lane)
        if (needed >> lane & 1 && lanes[lane].mask != mask) return false;
    return true;
}

// In a mixed warp, all lanes that complete an operation must be in the same one as the last lane, `me`.
static void check_same_operation(const Warp& warp, const Thread& me, uint32_t lanes) {
    for (unsigned lane = 0; lane < 32; ++lane) {
        const Thread& other = (&me - me.lane)[lane];
        if (!(lanes >> lane & 1)) continue;
        if (warp.combines[lane] != warp.combines[me.lane] || strcmp(other.operation, me.operation) != 0)
            fail(
                "warp divergence: this thread reached %s at %s:%d while lane %u of its warp waits in %s at "
                "%s:%d",
                me.operation, me.position.file, me.position.line, lane, other.operation, other.position.file,
                other.position.line);
    }
}

SIMULATOR_UNCHECKED
void collective(unsigned mask, void* arguments, Combine combine, const char* operation, Position position) {
    Worker& worker = current_worker();
    Thread& me = *worker.running;
    Warp& warp = worker.warps[me.warp];
    const uint32_t my_bit = 1u << me.lane;
    me.operation = operation;
    me.position = position;
    me.mask = mask;
    warp.arguments[me.lane] = arguments;
    warp.combines[me.lane] = combine;
    if (!(mask & my_bit))
        fail("%s at %s:%d: its mask 0x%08x does not name the calling lane %u", operation, position.file,
             position.line, mask, me.lane);
    if (!warp.arrived) {
        warp.mixed = false;
        warp.mask = mask;
        warp.operation = operation;
        warp.combine = combine;
    } else if (mask != warp.mask || combine != warp.combine || operation != warp.operation)
        warp.mixed = true;
    warp.arrived |= my_bit;
    while (!all_arrived(warp, &me - me.lane, mask)) {
        me.state = State::in_warp_operation;
        wait_for_others(worker, me);
        me.state = State::running;
        if (!(warp.arrived & my_bit)) return;  // the last lane has computed all results
    }
    const uint32_t lanes = mask & warp.alive;
    if (warp.mixed) check_same_operation(warp, me, lanes);
    warp.arrived &= ~lanes;
    warp.yielded &= ~lanes;
    make_ready(worker, me.warp, lanes & ~my_bit);
    count_progress(worker);
    if (combine) {
        worker.uninterrupted = true;
        combine(warp.arguments, lanes);
        worker.uninterrupted = false;
    }
    if constexpr (CHECKED) {
        check_warp_operation(me.warp, lanes, combine == nullptr);
        if (combine && lanes != mask) check_absent_votes(me, mask & ~lanes);
    }
}

void fill_absent(void* result, size_t bytes, unsigned lane, unsigned reader) {
    const Worker& worker = current_worker();
    const bool gone = !(worker.warps[worker.running->warp].alive >> lane & 1);
    if constexpr (CHECKED) check_absent_lane(worker.threads[worker.running->warp * 32 + reader], lane, gone);
    memset(result, gone ? 0 : 0xff, bytes);
}

// ---- shared memory

constexpr size_t SHARED_START = 1024;
bool is_shared(const void* address) {
    const Worker& worker = current_worker();
    return address >= worker.arena && address < worker.arena + SHARED_ARENA;
}
constexpr size_t SHARED_END = 256 << 10;  // end of dynamic memory
static size_t dynamic_offset(const Worker& worker) { return (SHARED_END - worker.dynamic_bytes) & ~size_t{1023}; }
size_t shared_offset(const void* address) {
    const Worker* worker = &current_worker();
    size_t block = 0;
    if (!is_shared(address)) {
        worker = owner_of_shared(address);
        if (!worker) fail("__cvta_generic_to_shared: the address %p is not in shared memory", address);
        block = size_t(cluster_rank_of(address) + 1) << CLUSTER_WINDOW_BITS;
    }
    const char* place = static_cast<const char*>(address);
    if (place >= worker->dynamic_end - (SHARED_END - dynamic_offset(*worker)))
        return block + SHARED_END - static_cast<size_t>(worker->dynamic_end - place);
    return block + static_cast<size_t>(place - worker->arena) + SHARED_START;
}
char* shared_address_in(Worker& worker, size_t offset) {
    if (offset >= dynamic_offset(worker)) return offset < SHARED_END ? worker.dynamic_end - (SHARED_END - offset) : nullptr;
    return offset >= SHARED_START ? worker.arena + (offset - SHARED_START) : nullptr;
}
void* shared_address(size_t offset) {
    Worker* worker = &current_worker();
    const size_t block = offset >> CLUSTER_WINDOW_BITS, place = offset & ((size_t{1} << CLUSTER_WINDOW_BITS) - 1);
    if (block) {
        if (!worker->cluster || block > worker->cluster->blocks.size())
            fail("the shared::cluster address 0x%zx names block %zu, which the cluster has not", offset, block - 1);
        worker = worker->cluster->blocks[block - 1];
    }
    // Invalid offsets trap, or the checked build detects them.
    if (place >= dynamic_offset(*worker)) return worker->dynamic_end - SHARED_END + place;
    return worker->arena + (place - SHARED_START);
}

int new_shared_slot(int* number) {
    static std::mutex lock;
    static int count = 0;
    const std::lock_guard<std::mutex> locked(lock);
    if (*number) return *number;  // assigned by another worker meanwhile
    if (count == static_cast<int>(MAX_SHARED_VARIABLES)) fail("simulator: too many __shared__ declarations in one library");
    __atomic_store_n(number, ++count, __ATOMIC_RELAXED);
    return count;
}

static void use_static_shared(Worker& worker, size_t bytes, const char* name) {
    worker.static_used = bytes;
    if (bytes > STATIC_SHARED_LIMIT)
        fail("%s: static shared memory reaches %zu bytes, the limit is %zu (use dynamic shared memory)",
             name, bytes, STATIC_SHARED_LIMIT);
    Grid& grid = *worker.grid_run;
    if (bytes > grid.static_bytes) grid.static_bytes = bytes;
    if (bytes + grid.dynamic_bytes <= grid.shared_limit) return;
    // A GPU would have rejected the launch; here the size of static shared memory is known only now.
    grid.out_of_shared = true;
    worker.failed = true;
    leave_threads(worker);
}

// A GPU refuses the launch; here the first thread notices before it does any work.
void keep_launch_bounds(unsigned most_threads) {
    Worker& worker = current_worker();
    if (worker.thread_count <= most_threads || !most_threads) return;
    worker.grid_run->launch_bounds = most_threads;
    worker.failed = true;
    leave_threads(worker);
}

// Places variables in the order in which the block reaches their declarations.
char* place_shared_variable(SharedSlot& slot, const Declaration& declaration) {
    Worker& worker = current_worker();
    const size_t mask = declaration.alignment - 1, at = (worker.static_used + mask) & ~mask;
    use_static_shared(worker, at + declaration.bytes, declaration.variables[0].name);
    slot.address = worker.arena + ((worker.static_top + mask) & ~mask);
    slot.block = worker.number;
    worker.static_top = static_cast<size_t>(slot.address - worker.arena) + declaration.bytes;
    worker.static_top += SHARED_GAP;  // so that an overrun does not land in the next variable
    if constexpr (CHECKED) check_shared_placed(declaration, slot.address);
    memset(slot.address, fresh_shared, declaration.bytes);
    return slot.address;
}

// ---- one block

void report_deadlock(Worker& worker) {
    char text[512];
    snprintf(text, sizeof text, "deadlock: in block (%u,%u,%u) of %s no thread can go on", worker.index.x,
             worker.index.y, worker.index.z, worker.grid_run->kernel->name);
    worker.error = text;
    std::vector<bool> told(worker.thread_count);
    for (unsigned i = 0; i < worker.thread_count; ++i) {
        if (told[i]) continue;
        const Thread& first = worker.threads[i];
        unsigned count = 0;
        for (unsigned k = i; k < worker.thread_count; ++k) {
            const Thread& other = worker.threads[k];
            const bool same =
                other.state == first.state && describe_wait(worker, other) == describe_wait(worker, first) &&
                (first.state == State::returned ||
                 (other.operation == first.operation && other.position.line == first.position.line &&
                  (first.state != State::in_warp_operation || other.mask == first.mask)));
            if (same && !told[k]) told[k] = true, ++count;
        }
        int length = snprintf(text, sizeof text, "\n  %u thread(s), first (%u,%u,%u), ", count, first.index.x,
                              first.index.y, first.index.z);
        if (first.state == State::returned)
            snprintf(text + length, sizeof text - length, "returned from the kernel");
        else if (first.state != State::in_warp_operation)
            snprintf(text + length, sizeof text - length, "wait in %s at %s:%d", first.operation,
                     first.position.file, first.position.line);
        else
            snprintf(text + length, sizeof text - length, "wait in %s at %s:%d for the lanes 0x%08x",
                     first.operation, first.position.file, first.position.line, first.mask);
        worker.error += text;
        if (first.state == State::at_mbarrier) worker.error += describe_wait(worker, first);
    }
    trace_wait(worker);
    worker.failed = true;
    worker.prepared = 0;
}

static std::atomic<uint64_t> blocks_run{0};

void begin_block(Worker& worker, uint64_t i) {
    const Grid& grid = *worker.grid_run;
    worker.Block::index = place_in(grid.size, i);
    worker.number = ++blocks_run;
    worker.interval = 0;
    worker.live = worker.thread_count;
    worker.at_barrier = worker.at_grid_barrier = worker.votes = 0;
    worker.static_used = worker.static_top = 0;
    worker.yields = 0;
    worker.held_up = nullptr;
    worker.global_stores_left = 0;
    worker.awaits_blocks = worker.uninterrupted = false;
    worker.random = static_cast<uint32_t>(i) ^ static_cast<uint32_t>(fresh_shared);
    choose_store(worker);
    begin_hopper(worker);
    begin_work(worker);
    if constexpr (CHECKED) check_block_begins();
    for (unsigned k = 0; k < worker.thread_count; ++k) worker.threads[k].state = State::running;
    worker.ready_warps = 0;
    for (unsigned warp = 0; warp < worker.warp_count; ++warp) {
        const unsigned lanes = worker.thread_count - warp * 32;
        worker.warps[warp].alive = lanes >= 32 ? ~0u : (1u << lanes) - 1;
        worker.warps[warp].ready = worker.warps[warp].arrived = 0;
        worker.warps[warp].asking = worker.warps[warp].yielded = 0;
        make_ready(worker, warp, worker.warps[warp].alive);
    }
    memset(worker.dynamic_end - grid.dynamic_bytes, fresh_shared, grid.dynamic_bytes);
}

static bool engine_works(Worker& worker) {
    try {
        return run_engine(worker);
    } catch (const std::exception& error) {
        worker.error = error.what();
        worker.failed = true;
        worker.prepared = 0;
        return false;
    }
}

// Runs until all threads have returned or wait for other blocks.
void resume_block(Worker& worker) {
    while (!worker.failed) {
        if (worker.ready_warps) {
            const unsigned warp = first_bit(worker.ready_warps);
            enter_threads(worker, take(worker, warp, first_bit(worker.warps[warp].ready)));
            if (worker.failed) return;
            if (worker.ready_warps) return;  // the remaining threads only spin: other blocks run
            continue;
        }
        if (worker.live == worker.at_grid_barrier && !worker.together) return;
        if (worker.awaits_blocks) return;
        if (engine_works(worker)) continue;
        if (worker.together || worker.live == worker.at_grid_barrier) return;
        if (!wake_in_vain(worker)) report_deadlock(worker);
    }
}

void end_block(Worker& worker) {
    end_hopper(worker);
    if constexpr (CHECKED) check_block_ends();
    end_work(worker);
    count_progress(worker);
}

uint64_t block_in_order(const Grid& grid, uint64_t i) {
    return backward() ? grid.block_count - 1 - i : i;  // blocks must not depend on earlier ones
}

void run_block(Worker& worker, uint64_t i) {
    begin_block(worker, i);
    resume_block(worker);
    end_block(worker);
}

}  // namespace simulator

// For Python (common/testing/calling.py): sets the fill byte for unwritten shared memory. If it is not NaN's (0xff),
// the threads of a block run in the opposite order.
extern "C" __attribute__((visibility("default"), used)) void simulator_fill_shared(int byte) { simulator::fresh_shared = byte; }
