// checked.cpp - the compiler's callbacks, called for every load, store and basic block of a kernel. The return address
// gives the place in the program, the current fiber the CUDA thread.
//
// Accesses are first classified by address. CUDA threads' stacks hold local variables, which no other thread sees;
// kernel arguments are on the launching thread's stack; everything else is shared memory, a known range of global
// memory, or a mistake.
#include <dlfcn.h>
#include <stdio.h>

#include <map>

#include "checker.h"

namespace simulator {

Checker checker;
const uintptr_t library_start = [] {
    Dl_info here;
    dladdr(reinterpret_cast<void*>(&add_host_finding), &here);
    return reinterpret_cast<uintptr_t>(here.dli_fbase);
}();

SIMULATOR_INLINE static bool in_checked_kernel() {
    return checker.mode != Mode::off && !checker.quiet && stack_address() - checker.region < REGION_BYTES;
}
SIMULATOR_INLINE static uint32_t site_of(const void* return_address) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(return_address) - library_start);
}

constexpr size_t HOST_FRAMES = 1 << 20;    // how far above launch()'s frame kernel arguments may be
constexpr uintptr_t LOWEST_ADDRESS = 65536;  // lower addresses trap by themselves, like null pointers

// ---- the range that each place in the program accessed last: the likely target of a bad address there

struct Habit {
    uint32_t site;
    Range* range;
};
static Habit habits[4096];  // for this launch, hashed by site; a newer site evicts an older one

static Habit& habit_of(uint32_t site) { return habits[site * 2654435761u >> 20]; }
static Range* usual_range(uint32_t site, uintptr_t address) {
    const Habit& habit = habit_of(site);
    return habit.range && habit.site == site ? habit.range : nearest_range(address);
}

// ---- bad addresses

static const char* name_of(Action action) {
    switch (action) {
        case Action::read: return "read";
        case Action::write: return "write";
        case Action::atomic: return "atomic";
        default: return "async copy";
    }
}

static void out_of_bounds(uintptr_t address, size_t bytes, Action action, uint32_t site) {
    Range& arena = arena_range();  // includes the guard page after dynamic shared memory
    Range* near = address - arena.start < arena.bytes + STACK_BYTES ? &arena : usual_range(site, address);
    if (!near) fail("out of bounds: %s of %zu byte(s) in no tensor and no cudaMalloc'd memory", name_of(action), bytes);
    const Place place = describe_place(*near, address);
    const int64_t past = static_cast<int64_t>(address - near->start) - static_cast<int64_t>(near->bytes);
    add_finding("out_of_bounds", place, {touch_now(action, bytes, site)}, "");
    if (near->kind == Range::shared)
        fail("out of bounds: %s of %zu byte(s) of shared memory, outside %s", name_of(action), bytes,
             place.variable.c_str());
    const std::string name = place.variable.empty() ? "the nearest allocation" : place.variable;
    if (past >= 0)
        fail("out of bounds: %s of %zu byte(s), %lld byte(s) past the end of %s", name_of(action), bytes,
             static_cast<long long>(past), name.c_str());
    fail("out of bounds: %s of %zu byte(s), %lld byte(s) before %s", name_of(action), bytes,
         static_cast<long long>(near->start - address), name.c_str());
}

static void misaligned(Range& range, uintptr_t address, size_t bytes, Action action, uint32_t site) {
    add_finding("misaligned", describe_place(range, address), {touch_now(action, bytes, site)}, "");
    fail("misaligned: %s of %zu bytes at an address that is not a multiple of %zu", name_of(action), bytes, bytes);
}

// Host code between launches. (In standalone programs, device memory is closed to host code anyway: memory.cpp.)
SIMULATOR_INLINE static bool on_watched_host() {
    return checker.mode == Mode::check && !checker.region && !checker.quiet;
}
__attribute__((noinline)) static void host_access(uintptr_t address, size_t bytes, Action action, uint32_t site) {
    Quiet quiet;
    Range* range = is_program() ? nullptr : find_range(address, bytes);
    if (!range || range->freed || range->host_may_use) return;
    add_host_access(describe_place(*range, address), {action, bytes, site});
}

static void use_after_free(Range& range, uintptr_t address, size_t bytes, Action action, uint32_t site) {
    add_finding("use_after_free", describe_place(range, address), {touch_now(action, bytes, site)},
                "freed at " + range.freed_at);
    fail("use after free: %s of %zu byte(s) in memory that was freed at %s", name_of(action), bytes,
         range.freed_at.c_str());
}

// An access in the heap that is not within one live block.
static void check_heap_block(Range& range, uintptr_t address, size_t bytes, Action action, uint32_t site) {
    const auto* one = heap_block_at(address);
    const HeapBlock none = {};
    const HeapBlock& block = one ? one->second : none;
    const uintptr_t start = one ? one->first : range.start;
    if (one && address + bytes <= start + block.bytes && !block.freed) return;
    const bool freed = one && address < start + block.bytes && block.freed;
    add_finding(freed ? "use_after_free" : "out_of_bounds", describe_place(range, address), {touch_now(action, bytes, site)},
                freed ? "freed at " + text_of(block.freed_at) : "");
    if (freed) fail("use after free: %s of %zu byte(s) in memory that was freed at %s:%d", name_of(action), bytes,
                    block.freed_at.file, block.freed_at.line);
    fail("out of bounds: %s of %zu byte(s), %lld byte(s) past the end of %s", name_of(action), bytes,
         static_cast<long long>(address - start - block.bytes), one ? name_of(block).c_str() : "the device heap");
}

// ---- one access

// The fast path: whole words of shared memory, or of the range that this site accessed last, that cannot be wrong.
template <Action ACTION, size_t BYTES>
SIMULATOR_INLINE static bool is_quick(uintptr_t address, uint32_t site) {
    constexpr size_t WORDS = BYTES / WORD;
    if (BYTES < WORD || address % BYTES || checker.unresolved || checker.mode != Mode::check || checker.recording) return false;
    const uintptr_t offset = address - arena.start;
    if (offset < arena.bytes) {
        Cell* cells = arena.cells + offset / WORD;
        if (ACTION == Action::write && order && order->watches_writes) return false;
        return ACTION == Action::read ? read_quickly<WORDS, true>(arena, cells, site) : write_quickly<WORDS, true>(cells, site);
    }
    const Habit& habit = habit_of(site);
    if (habit.site != site || !habit.range) return false;
    const Range& range = *habit.range;
    if (!range.contains(address, BYTES) || range.freed || range.kind == Range::shared || range.kind == Range::heap) return false;
    Cell* cells = &range.cell_of(address);
    return ACTION == Action::read ? read_quickly<WORDS, false>(range, cells, site) : write_quickly<WORDS, false>(cells, site);
}

__attribute__((noinline)) static void access(uintptr_t address, size_t bytes, Action action, uint32_t site, bool aligned, bool pending = false,
                                             bool is_volatile = false) {
    if (address - checker.region < REGION_BYTES) {  // a local variable
        if (checker.accumulators) check_accumulator(address, bytes, action, site);
        return;
    }
    Quiet quiet;
    if (checker.unresolved) resolve_write();
    Range& arena = arena_range();
    const Habit& habit = habit_of(site);
    Range* range = arena.contains(address, 1) ? &arena
                   : habit.site == site && habit.range && habit.range->contains(address, bytes) && !habit.range->freed
                       ? habit.range
                       : find_range(address, bytes);
    if (!range) {
        if (owner_of_shared(reinterpret_cast<const void*>(address))) return;  // another block of the cluster
        if (address < LOWEST_ADDRESS || address - checker.host_stack < HOST_FRAMES) return;
        if (checker.mode == Mode::check) out_of_bounds(address, bytes, action, site);
        return;
    }
    if (checker.mode == Mode::profile) {
        if (range != &arena) habit_of(site) = {site, range};
        trace_access(*range, address, bytes, action, site);
        return;
    }
    if (aligned && address % bytes) misaligned(*range, address, bytes, action, site);
    if (range->freed) use_after_free(*range, address, bytes, action, site);
    if (range->kind == Range::heap) check_heap_block(*range, address, bytes, action, site);
    if (range != &arena) habit_of(site) = {site, range};
    if (range == &arena && !inside_shared_variable(address, bytes)) out_of_bounds(address, bytes, action, site);
    if (checker.recording) replay_access(*range, address, bytes, action, site);
    if (range == &arena && action != Action::read && order && order->watches_writes) check_overwrite(address, bytes, action, site);
    check_range_access(*range, address, bytes, action, site, pending, is_volatile);
}

void check_compare_and_swap(const void* address) {
    if (!in_checked_kernel() || checker.mode != Mode::check) return;
    Quiet quiet;
    const uintptr_t at = reinterpret_cast<uintptr_t>(address);
    if (const Range* range = arena_range().contains(at, 1) ? &arena_range() : find_range(at, 1)) note_compare_and_swap(*range, at);
}

void check_atomic(const void* address, size_t bytes, bool reads) {
    if (in_checked_kernel())
        access(reinterpret_cast<uintptr_t>(address), bytes, Action::atomic, site_of(__builtin_return_address(0)), true, false, !reads);
}

// ---- asynchronous copies (async_copy.cpp): in flight from issue to done

void check_async_issue(void* destination, const void* source, size_t bytes, const void* return_address) {
    if (!in_checked_kernel()) return;
    const uint32_t site = site_of(return_address);
    if (source) access(reinterpret_cast<uintptr_t>(source), bytes, Action::read, site, true);
    access(reinterpret_cast<uintptr_t>(destination), bytes, Action::async_copy, site, true, true);
}

void check_async_done(void* destination, size_t bytes, bool own, const void* return_address) {
    if (!checker.region || checker.mode != Mode::check) return;
    Quiet quiet;
    const uintptr_t address = reinterpret_cast<uintptr_t>(destination);
    Range* range = arena_range().contains(address, bytes) ? &arena_range() : find_range(address, bytes);
    if (!range) return;
    finish_async_copy(*range, address, bytes, own);
    if (checker.recording) replay_arrival(*range, address, bytes, site_of(return_address));
}

// ---- blocks that take turns

// The saved state of each block that takes turns with others.
struct Paused {
    uint32_t interval = 0, block_first = 0, shared_first = 0;
    BlockOrdering ordering;
};
static std::map<const Worker*, Paused>& paused() { return lasting<std::map<const Worker*, Paused>>(); }
static void next_interval() { checker.interval = ++checker.newest_interval; }

// ---- notifications from launches

void check_launch_begins(Worker& worker) {
    checker.worker = &worker;
    checker.region = reinterpret_cast<uintptr_t>(&worker);
    checker.host_stack = stack_address();
    checker.quiet = false;
    next_interval();
    checker.launch_first = checker.interval;
    paused().clear();
    checker.first_of_block.clear();
    if (checker.mode == Mode::off) return;
    start_ranges();
    use_shared_memory_of(worker);
    memset(habits, 0, sizeof habits);
    start_ordering();
    if (checker.mode == Mode::profile) profile_launch_begins();
    if (checker.recording) replay_launch_begins();
}

void check_launch_ends() {
    if (checker.unresolved) resolve_write();
    if (checker.mode == Mode::profile) profile_launch_ends();
    if (checker.recording) replay_launch_ends();
    checker.region = 0;
}

static uint64_t number_in_grid(const Worker& worker) {
    const uint3 i = worker.Block::index;
    return i.x + worker.grid.x * (i.y + static_cast<uint64_t>(worker.grid.y) * i.z);
}

void check_block_resumes(Worker& worker, bool begins) {
    if (checker.worker && checker.worker != &worker && checker.worker->together && checker.worker->grid_run)
        paused()[checker.worker] = {checker.interval, checker.block_first, checker.shared_first, std::exchange(ours, {})};
    const bool changes = checker.worker != &worker;
    checker.worker = &worker;
    checker.region = reinterpret_cast<uintptr_t>(&worker);
    use_shared_memory_of(worker);
    use_order_of(worker);
    if (begins) return;
    if (checker.recording) replay_block(number_in_grid(worker));
    if (changes) {
        Paused& before = paused()[&worker];
        checker.interval = before.interval;
        checker.block_first = before.block_first;
        checker.shared_first = before.shared_first;
        give_block_ordering(std::move(before.ordering));
    }
    if (checker.interval >= checker.launch_first) {  // resumes
        check_cluster_barrier_passed();
        return;
    }
    next_interval();
    checker.block_first = checker.interval;
    checker.first_of_block.push_back({checker.interval, number_in_grid(worker)});
    start_block_ordering();
}

// Orders the cluster's earlier accesses before its later ones.
void check_cluster_barrier_passed() {
    if (!checker.worker->cluster_passed) return;
    checker.worker->cluster_passed = false;
    next_interval();
    if (checker.mode == Mode::check) barrier_ordering();
}

void check_grid_barrier_passed() {
    if (checker.mode == Mode::profile) profile_warps_aligned(~0u);
    next_interval();
    checker.launch_first = checker.interval;
}

void check_block_begins() {
    next_interval();
    checker.block_first = checker.shared_first = checker.interval;
    forget_order(*checker.worker);
    checker.first_of_block.push_back({checker.interval, number_in_grid(*checker.worker)});
    forget_shared_variables();
    start_block_ordering();
    if (checker.mode == Mode::profile) profile_block_begins(number_in_grid(*checker.worker));
    if (checker.recording) replay_block(number_in_grid(*checker.worker));
}

void check_block_ends() {
    if (checker.mode == Mode::profile) profile_block_ends();
    if (checker.recording) replay_block_ends();
}

void check_barrier_passed() {
    Quiet quiet;
    next_interval();
    if (checker.mode == Mode::check) barrier_ordering();
    if (checker.mode == Mode::profile) profile_barrier();
    if (checker.recording) replay_barrier();
}

}  // namespace simulator

// ---- the callbacks

namespace simulator {

template <Action ACTION, size_t BYTES>
SIMULATOR_INLINE static bool is_repeated(uintptr_t address, uint32_t site) {
    if (ACTION != Action::read || BYTES < WORD || address % BYTES || checker.mode != Mode::check || checker.recording) return false;
    const uintptr_t offset = address - arena.start;
    if (offset >= arena.bytes) return false;
    for (size_t i = 0; i < BYTES / WORD; ++i)  // recording a word twice is harmless
        if (!read_again<true>(arena.cells[offset / WORD + i], site)) return false;
    return true;
}
// Not inlined, so that the callbacks save no registers.
template <Action ACTION, size_t BYTES, bool ALIGNED>
__attribute__((noinline)) static void any_access(uintptr_t address, uint32_t site) {
    if (!is_quick<ACTION, BYTES>(address, site)) access(address, BYTES, ACTION, site, ALIGNED);
}
template <Action ACTION, size_t BYTES, bool ALIGNED>
static void volatile_access(uintptr_t address, uint32_t site) {
    access(address, BYTES, ACTION, site, ALIGNED, false, true);
}

}  // namespace simulator

#define SIMULATOR_CALLBACK extern "C" __attribute__((visibility("hidden"), used, no_sanitize("bounds", "alignment")))
#define SIMULATOR_ACCESS(name, action, bytes, aligned, how)                          \
    SIMULATOR_CALLBACK void __tsan_##name(void* pointer) {                           \
        using namespace simulator;                                                   \
        const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);              \
        const uint32_t site = site_of(__builtin_return_address(0));                  \
        if (!in_checked_kernel()) {                                                  \
            if (on_watched_host()) host_access(address, bytes, Action::action, site); \
            return;                                                                  \
        }                                                                            \
        if (address - checker.region < REGION_BYTES) {                               \
            if (checker.accumulators) check_accumulator(address, bytes, Action::action, site); \
            return;                                                                  \
        }                                                                            \
        how(Action::action, bytes, aligned)                                          \
    }
#define SIMULATOR_PLAIN(action, bytes, aligned)              \
    if (is_repeated<action, bytes>(address, site)) return;   \
    any_access<action, bytes, aligned>(address, site);
#define SIMULATOR_VOLATILE(action, bytes, aligned) volatile_access<action, bytes, aligned>(address, site);
#define SIMULATOR_ACCESSES(bytes, aligned)                                                      \
    SIMULATOR_ACCESS(read##bytes, read, bytes, aligned, SIMULATOR_PLAIN)                        \
    SIMULATOR_ACCESS(write##bytes, write, bytes, aligned, SIMULATOR_PLAIN)                      \
    SIMULATOR_ACCESS(unaligned_read##bytes, read, bytes, false, SIMULATOR_PLAIN)                \
    SIMULATOR_ACCESS(unaligned_write##bytes, write, bytes, false, SIMULATOR_PLAIN)              \
    SIMULATOR_ACCESS(volatile_read##bytes, read, bytes, aligned, SIMULATOR_VOLATILE)            \
    SIMULATOR_ACCESS(volatile_write##bytes, write, bytes, aligned, SIMULATOR_VOLATILE)          \
    SIMULATOR_ACCESS(unaligned_volatile_read##bytes, read, bytes, false, SIMULATOR_VOLATILE)    \
    SIMULATOR_ACCESS(unaligned_volatile_write##bytes, write, bytes, false, SIMULATOR_VOLATILE)
SIMULATOR_ACCESSES(1, false)
SIMULATOR_ACCESSES(2, true)
SIMULATOR_ACCESSES(4, true)
SIMULATOR_ACCESSES(8, true)
SIMULATOR_ACCESSES(16, true)

static void simulator_range(void* address, unsigned long bytes, simulator::Action action, void* return_address) {
    using namespace simulator;
    if (bytes && in_checked_kernel())
        access(reinterpret_cast<uintptr_t>(address), bytes, action, site_of(return_address), false);
    else if (bytes && on_watched_host())
        host_access(reinterpret_cast<uintptr_t>(address), bytes, action, site_of(return_address));
}
SIMULATOR_CALLBACK void __tsan_read_range(void* address, unsigned long bytes) {
    simulator_range(address, bytes, simulator::Action::read, __builtin_return_address(0));
}
SIMULATOR_CALLBACK void __tsan_write_range(void* address, unsigned long bytes) {
    simulator_range(address, bytes, simulator::Action::write, __builtin_return_address(0));
}

#define SIMULATOR_COPY(symbol, function)                                                               \
    SIMULATOR_CALLBACK void* symbol(void* to, const void* from, size_t bytes) {                        \
        simulator_range(const_cast<void*>(from), bytes, simulator::Action::read, __builtin_return_address(0)); \
        simulator_range(to, bytes, simulator::Action::write, __builtin_return_address(0));             \
        return function(to, from, bytes);                                                              \
    }
#define SIMULATOR_FILL(symbol)                                                             \
    SIMULATOR_CALLBACK void* symbol(void* to, int value, size_t bytes) {                   \
        simulator_range(to, bytes, simulator::Action::write, __builtin_return_address(0)); \
        return memset(to, value, bytes);                                                   \
    }
SIMULATOR_COPY(simulator_memcpy, memcpy)
SIMULATOR_COPY(simulator_memmove, memmove)
SIMULATOR_FILL(simulator_memset)
SIMULATOR_COPY(__tsan_memcpy, memcpy)
SIMULATOR_COPY(__tsan_memmove, memmove)
SIMULATOR_FILL(__tsan_memset)

SIMULATOR_CALLBACK void __sanitizer_cov_trace_pc() {
    if (simulator::checker.mode == simulator::Mode::profile && simulator::in_checked_kernel())
        simulator::trace_basic_block(simulator::site_of(__builtin_return_address(0)));
}

SIMULATOR_CALLBACK void __tsan_init() {}
SIMULATOR_CALLBACK void __tsan_func_entry(void*) {}
SIMULATOR_CALLBACK void __tsan_func_exit() {}
SIMULATOR_CALLBACK void __tsan_vptr_update(void** address, void*) {  // by constructors of polymorphic classes
    simulator_range(address, sizeof *address, simulator::Action::write, __builtin_return_address(0));
}
SIMULATOR_CALLBACK void __tsan_vptr_read(void**) {}

// Atomic built-ins, on which atomicAdd() etc. are built. Only performed here: those functions notify the checker
// themselves.
SIMULATOR_CALLBACK void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
SIMULATOR_CALLBACK void __tsan_atomic_signal_fence(int) {}
#define SIMULATOR_FETCH(bits, operation)                                                                        \
    SIMULATOR_CALLBACK uint##bits##_t __tsan_atomic##bits##_##operation(volatile uint##bits##_t* p,             \
                                                                        uint##bits##_t v, int) {                \
        return __atomic_##operation(p, v, __ATOMIC_SEQ_CST);                                                    \
    }
#define SIMULATOR_COMPARE(bits, kind)                                                                           \
    SIMULATOR_CALLBACK int __tsan_atomic##bits##_compare_exchange_##kind(                                       \
        volatile uint##bits##_t* p, uint##bits##_t* expected, uint##bits##_t v, int, int) {                     \
        return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);          \
    }
#define SIMULATOR_ATOMICS(bits)                                                                                 \
    SIMULATOR_CALLBACK uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t* p, int) {       \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                            \
    }                                                                                                           \
    SIMULATOR_CALLBACK void __tsan_atomic##bits##_store(volatile uint##bits##_t* p, uint##bits##_t v, int) {    \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                               \
    }                                                                                                           \
    SIMULATOR_CALLBACK uint##bits##_t __tsan_atomic##bits##_exchange(volatile uint##bits##_t* p,                \
                                                                     uint##bits##_t v, int) {                   \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                                     \
    }                                                                                                           \
    SIMULATOR_CALLBACK uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(                               \
        volatile uint##bits##_t* p, uint##bits##_t expected, uint##bits##_t v, int, int) {                      \
        __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                \
        return expected;                                                                                        \
    }                                                                                                           \
    SIMULATOR_FETCH(bits, fetch_add)                                                                            \
    SIMULATOR_FETCH(bits, fetch_sub)                                                                            \
    SIMULATOR_FETCH(bits, fetch_and)                                                                            \
    SIMULATOR_FETCH(bits, fetch_or)                                                                             \
    SIMULATOR_FETCH(bits, fetch_xor)                                                                            \
    SIMULATOR_FETCH(bits, fetch_nand)                                                                           \
    SIMULATOR_COMPARE(bits, strong)                                                                             \
    SIMULATOR_COMPARE(bits, weak)
SIMULATOR_ATOMICS(8)
SIMULATOR_ATOMICS(16)
SIMULATOR_ATOMICS(32)
SIMULATOR_ATOMICS(64)

// ---- for Python (common/inspect/findings/model.py): exported functions

#define SIMULATOR_EXPORT extern "C" __attribute__((visibility("default"), used))
SIMULATOR_EXPORT void simulator_check_begin(int mode) {
    simulator::checker.mode = static_cast<simulator::Mode>(mode);
    simulator::clear_findings();
    simulator::clear_profile();
    simulator::forget_freed_ranges();
}
SIMULATOR_EXPORT const char* simulator_check_report() {
    static std::string report;
    report = "{\"findings\": " + simulator::findings_json() + ", \"kernels\": " + simulator::profile_json() + "}";
    return report.c_str();
}
