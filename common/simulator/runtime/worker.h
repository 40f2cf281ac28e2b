// worker.h - declarations shared by the parts of the runtime: the worker, one OS thread that runs blocks one after the
// other.
//
//   fiber.cpp       stacks and switching between them
//   scheduler.cpp   one block: barriers, warp operations, shared memory
//   launch.cpp      one grid: checks, the pool of OS threads, the watchdog
//   report.cpp      errors: failures, signals, source lines
//   host_api.cpp    the state behind cudaGetLastError() and cudaFuncSetAttribute()
#pragma once
#include <signal.h>

#include <atomic>
#include <string>
#include <utility>

#include "../include/simulator/host_api.h"

namespace simulator {

constexpr size_t STATIC_SHARED_LIMIT = 48 << 10;   // nvcc's limit for __shared__ T x[N]
constexpr size_t DEFAULT_SHARED_LIMIT = 48 << 10;  // static + dynamic, without cudaFuncSetAttribute
constexpr size_t OPTIN_SHARED_LIMIT = 227 << 10;   // static + dynamic, with it
// Whether this is the checked build. The others discard calls of what checker.h declares: if constexpr (CHECKED) ...
#ifdef SIMULATOR_CHECKED
constexpr bool CHECKED = true;
#else
constexpr bool CHECKED = false;
#endif
constexpr size_t SHARED_GAP = CHECKED ? 64 : 0;  // between static variables
constexpr size_t SHARED_ARENA = (276 << 10) + MAX_SHARED_VARIABLES * SHARED_GAP;  // static, then dynamic

constexpr unsigned WORK_SIZES = 64;

// One launch, shared by all workers.
struct Grid {
    const Kernel* kernel;
    dim3 size, block, cluster = {1, 1, 1};
    bool has_clusters = false;
    size_t dynamic_bytes, shared_limit;
    uint64_t block_count;
    std::atomic<uint64_t> next_block{0};
    std::atomic<bool> stop{false};           // after an error the remaining blocks do not run
    std::atomic<bool> out_of_shared{false};  // static + dynamic shared memory exceed the limit
    std::atomic<unsigned> launch_bounds{0};  // the __launch_bounds__ that a block exceeds; 0: none
    bool cut_short = false;                  // by sample_ends_launch(): the remaining blocks would add nothing
    std::atomic<size_t> static_bytes{0};     // the maximum over blocks
    // counted builds, see work.cpp. work[i]: total work of the threads that did 2^i to 2^(i + 1) - 1; most_work: the
    // busiest thread's; work_of_block, most_of_block: per block
    std::atomic<uint64_t> work[WORK_SIZES] = {}, most_work{0}, work_of_block{0}, most_of_block{0};
};

struct Warp {
    uint32_t ready, alive, arrived;  // lanes that can run; have not returned; wait in a warp operation
    uint32_t asking, yielded;        // lanes that wait in lanes_here(); that have yielded and not waited since
    bool mixed;                      // the waiting lanes differ in operation or mask
    uint32_t mask;                   // the first arrived lane's mask
    const char* operation;
    Combine combine;
    void* arguments[32];  // per lane
    Combine combines[32];
};

struct Hopper;   // hopper.h
struct Cluster;
struct AsyncCopies;  // async_copy.cpp

struct Worker : Block {
    // the block
    Grid* grid_run;
    unsigned thread_count, warp_count, live;
    Warp warps[32];
    uint32_t ready_warps;       // warps with a lane that can run
    unsigned at_barrier;        // threads that wait at the block's barrier
    unsigned at_grid_barrier;   // threads that wait at the grid's barrier
    Position grid_position;
    unsigned votes, result[2];  // of the barrier; results of even and odd intervals
    Position barrier_position;
    size_t static_used, static_top;  // size as a GPU counts it; where the next static variable may begin
    // the fibers
    Thread* running;        // null outside kernels
    void* scheduler_stack;  // where scheduling resumes when no thread can run
    unsigned prepared;      // number of fibers waiting at the start of thread_main()
    unsigned guarded;       // number of warps with a guard page below their stacks
    char* arena;            // shared memory
    Hopper* hopper;         // state for compute capability 9.0; null until used
    Cluster* cluster;       // its cluster; null: none
    AsyncCopies* copies;    // its asynchronous copies in flight; null until used
    bool together;          // its grid's blocks are co-resident and may wait for each other
    bool cluster_passed;    // a cluster barrier has been passed since it last ran
    unsigned yields;        // consecutive yields
    dim3 indexed;           // the block size for which threads[].index is right
    // errors
    bool failed;
    std::string error;  // without source lines
    void* trace[32];    // the call stack of the error
    int trace_size;
    bool signaled;  // caused by a signal: trace[2] is the faulting instruction
    void* signal_stack;
    // for the watchdog
    pthread_t os_thread;
    pid_t os_thread_id;
    unsigned interrupts;  // in this launch
    std::atomic<bool> busy;
    std::atomic<uint64_t> progress;  // counts barriers, warp operations and blocks
    Worker* watched;                 // whose progress the watchdog monitors: its own; in cooperative grids, the first's
    // graded builds: one thread at a time is held up before a store, see hold_up()
    Thread* held_up;              // null: none
    bool uninterrupted;           // in the middle of a warp-wide operation
    unsigned stores_left, spins;  // stores until the next hold-up; the other threads' spins since the last one
    unsigned global_stores_left;  // global stores until a thread is held up to wait for other blocks; 0: never
    bool awaits_blocks;           // a thread is held up to wait for other blocks
    uint32_t random;
    // counted builds, see work.cpp
    bool counts;  // any work was counted
    uint64_t work[MAX_THREADS];
};
static_assert(sizeof(Worker) < STACK_BYTES);

// Where the stack that contains this address begins. Stacks begin at different offsets; otherwise all would compete for
// a few cache sets and page table entries.
SIMULATOR_INLINE uintptr_t stack_top(uintptr_t address) {
    const uintptr_t thread = address / STACK_BYTES % (REGION_BYTES / STACK_BYTES) - 1;
    return (address & ~(STACK_BYTES - 1)) + STACK_BYTES - 64 * (thread * 37 % 1024);
}

// The library's T, made at its first use and never destroyed: code that runs before main() or at exit may use it.
template <typename T>
T& lasting() {
    static T* const one = new T;
    return *one;
}

// The i-th place of a grid, a cluster or a block.
inline uint3 place_in(dim3 size, uint64_t i) {
    return {static_cast<unsigned>(i % size.x), static_cast<unsigned>(i / size.x % size.y),
            static_cast<unsigned>(i / size.x / size.y)};
}

void fill_absent(void* result, size_t bytes, unsigned lane, unsigned reader);
SIMULATOR_INLINE Worker& current_worker() { return *static_cast<Worker*>(current_block()); }

// fiber.cpp
Worker* new_worker();                               // throws std::runtime_error if out of memory
void prepare_threads(Worker& worker);               // gives every thread of the block a fiber
void enter_threads(Worker& worker, Thread* first);  // runs fibers until no thread can run
[[noreturn]] void leave_threads(Worker& worker);    // for good: none of them resumes

extern "C" __attribute__((visibility("hidden"))) void simulator_switch(void** save, void* to);

SIMULATOR_INLINE void switch_thread(Worker& worker, Thread* next) {  // null: back to enter_threads()
    Thread* me = worker.running;
    worker.running = next;
    simulator_switch(&me->stack_pointer, next ? next->stack_pointer : worker.scheduler_stack);
}

// scheduler.cpp
void run_block(Worker& worker, uint64_t number);
uint64_t block_in_order(const Grid& grid, uint64_t i);  // graded builds: the block that runs i-th
// run_block() in steps, for cooperative grids: resume_block() runs until all threads have returned or wait for the
// grid.
void begin_block(Worker& worker, uint64_t number);
void resume_block(Worker& worker);
void end_block(Worker& worker);
void pass_grid_barrier(Worker& worker);  // releases its threads
inline void count_progress(Worker& worker) {
    std::atomic<uint64_t>& progress = worker.watched->progress;
    progress.store(progress.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}
void thread_returned(Worker& worker);
// For custom waits: suspends the running thread until make_ready_again().
void wait_for_wakeup(State state, const char* operation, Position at);
void make_ready_again(Worker& worker, Thread& thread);
// Graded builds: called before a store to shared or global memory; see scheduler.cpp and run_with_a_late_block().
constexpr unsigned MOST_STORES = 64;  // at most this many stores until one is held up
inline uint32_t next_random(uint32_t random) { return random * 1664525 + 1013904223; }
void hold_up(Worker& worker);
void await_blocks(Worker& worker);
void stop_awaiting_blocks(Worker& worker);  // for good
void report_deadlock(Worker& worker);
char* shared_address_in(Worker& worker, size_t offset);  // null: invalid offset

// work.cpp
void begin_work(Worker& worker);  // at the start of a block
void end_work(const Worker& worker);
void add_work(const Grid& grid);
void take_work(uint64_t* four);
void weigh_blocks(uint64_t start, const uint64_t* blocks, size_t count);

// stores.cpp
void watch_stores(const void* tensors, size_t bytes);  // from now on, device code may write to device memory only
void check_store(const void* address, size_t bytes);
void mark_allocated(uintptr_t start, size_t bytes, bool is_allocated);  // device memory, for check_store()
Worker* owner_of_shared(const void* address);
constexpr size_t AROUND_TENSORS = size_t{1} << 32;  // nothing is mapped there, see testing/runner/runner.cpp

// launch.cpp
void take_launches(uint64_t* launches, uint64_t* threads);
void start_launching();  // starts the first worker and the watchdog ahead of time
struct LaunchLock {  // launches run one at a time, and never while the process forks
    LaunchLock();
    ~LaunchLock();
};

// report.cpp
extern thread_local Worker* this_worker;  // this OS thread's, during a launch
void prepare_reports();                   // once, outside signal handlers
void install_handlers();                  // around every launch
void restore_handlers();
void use_signal_stack(Worker& worker, stack_t* previous);
std::string whereabouts(const Worker& worker, const Thread& thread);
std::string source_lines(const Worker& worker);  // "\n  in f at file:line" for the call stack of the error
constexpr int INTERRUPT = SIGURG;                // sent by the watchdog; ignored wherever it is not expected

// memory.cpp
struct OpenMemory {  // opens device memory to device code or a copy
    OpenMemory();
    ~OpenMemory();
};
void close_memory_to_host();
void give_back(void* address);
uintptr_t take_device_memory(size_t bytes);  // never freed; 0: out of memory

struct HeapBlock {
    size_t bytes, taken, counted;  // requested; with the gap after it; counted against the limit
    Position at, freed_at;
    bool freed;
    bool told = false;  // reported as a leak, or exempt
};
// The block that begins at or before the address; null: none, or the address is not in the heap.
const std::pair<const uintptr_t, HeapBlock>* heap_block_at(uintptr_t address);
void for_each_heap_leak(void (*visit)(const HeapBlock& block, void* data), void* data);  // reports each leak once
void heap_is_told();
size_t take_heap_use();  // the most bytes in use since the last call
bool describe_device_address(const void* address, char* text, size_t size);
constexpr size_t REGION_OF_DEVICE = size_t(24) << 30;  // leaves room for fragmentation
void prepare_region();
uintptr_t region_start();
bool is_in_region(const void* address);                   // in the device memory region
bool is_allocated(const void* address, size_t bytes);     // by cudaMalloc()
void close_for_host(void* tensors, size_t bytes);
bool is_variable(const void* address, size_t bytes);      // a device variable, in graded builds

// program.cpp
bool is_program();
void hint(const char* text);  // explains an error code on stderr, in standalone programs
[[noreturn]] void end_program(const std::string& error);
bool is_own_variable(const void* address);

// host_api.cpp
constexpr unsigned MOST_REGISTERS = 64 << 10;  // per block
struct KernelState {
    size_t dynamic_limit = DEFAULT_SHARED_LIMIT;  // set by cudaFuncSetAttribute
    size_t static_bytes = 0;                      // the most seen so far
    unsigned most_threads = MAX_THREADS;          // per block; known in graded builds
    unsigned registers = 0;                       // per thread; 0: unknown
    size_t shared_limit() const { return dynamic_limit > DEFAULT_SHARED_LIMIT ? OPTIN_SHARED_LIMIT : DEFAULT_SHARED_LIMIT; }
    uint64_t registers_of_block(uint64_t threads) const { return (threads + 31) / 32 * 32 * ((registers + 7) / 8 * 8); }
};
size_t static_bytes_of(const void* kernel);
// Requires a LaunchLock. Null stands for kernels whose address is unknown (template arguments deduced from converted
// arguments): they take the attributes set for any kernel.
KernelState& kernel_state(const void* address);

// Fill byte for unwritten shared memory: 0xff, which makes floats NaN, unless a test sets another.
extern int fresh_shared;

}  // namespace simulator
