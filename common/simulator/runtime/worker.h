// worker.h - what the parts of the runtime share: the worker, one OS thread that runs blocks one after the
// other.
//
//   fiber.cpp       stacks and the switch from one to another
//   scheduler.cpp   one block: barriers, warp operations, shared memory
//   launch.cpp      one grid: checks, the pool of OS threads, the watchdog
//   report.cpp      what went wrong: failures, signals, source lines
//   host_api.cpp    the state behind cudaGetLastError() and cudaFuncSetAttribute()
#pragma once
#include <signal.h>

#include <atomic>
#include <string>
#include <utility>

#include "../include/simulator/host_api.h"

namespace simulator {

constexpr size_t STATIC_SHARED_LIMIT = 48 << 10;   // the compiler's limit for __shared__ T x[N]
constexpr size_t DEFAULT_SHARED_LIMIT = 48 << 10;  // static + dynamic, without cudaFuncSetAttribute
constexpr size_t OPTIN_SHARED_LIMIT = 227 << 10;   // static + dynamic, with it
#ifdef SIMULATOR_CHECKED
constexpr size_t SHARED_GAP = 64;  // between static variables
#else
constexpr size_t SHARED_GAP = 0;
#endif
constexpr size_t SHARED_ARENA = (276 << 10) + MAX_SHARED_VARIABLES * SHARED_GAP;  // static first, dynamic up to the end

constexpr unsigned WORK_SIZES = 64;

// One launch, seen by all workers.
struct Grid {
    const Kernel* kernel;
    dim3 size, block, cluster = {1, 1, 1};
    bool has_clusters = false;
    size_t dynamic_bytes, shared_limit;
    uint64_t block_count;
    std::atomic<uint64_t> next_block{0};
    std::atomic<bool> stop{false};           // after an error the remaining blocks do not run
    std::atomic<bool> out_of_shared{false};  // static + dynamic shared memory exceed the limit
    std::atomic<unsigned> launch_bounds{0};  // that the block exceeds; 0: none
    bool cut_short = false;                  // by sample_ends_launch(): the rest would say nothing more
    std::atomic<size_t> static_bytes{0};     // the most that a block used
    // in a counted build, see work.cpp: of threads that did 2^i to 2^(i + 1) - 1; of the busiest; of the blocks' busiest
    std::atomic<uint64_t> work[WORK_SIZES] = {}, most_work{0}, work_of_block{0}, most_of_block{0};
};

struct Warp {
    uint32_t ready, alive, arrived;  // the lanes that can run, have not returned, wait in a warp operation
    uint32_t asking, yielded;        // that wait in lanes_here(); that let others run first, and have not waited since
    bool mixed;                      // not all wait in the same operation with the same mask
    uint32_t mask;                   // of the first lane that arrived
    const char* operation;
    Combine combine;
    void* arguments[32];  // of every lane
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
    uint32_t ready_warps;       // the warps with a lane that can run
    unsigned at_barrier;        // threads that wait at the barrier
    unsigned at_grid_barrier;   // and at that of the grid
    Position grid_position;
    unsigned votes, result[2];  // of the barrier; results of even and odd intervals
    Position barrier_position;
    size_t static_used, static_top;  // as a GPU counts, and where the next static variable may begin
    // the fibers
    Thread* running;        // null outside kernels
    void* scheduler_stack;  // where scheduling goes on when no thread can run
    unsigned prepared;      // how many fibers wait at the start of thread_main()
    unsigned guarded;       // how many warps have a guard page below their stacks
    char* arena;            // shared memory
    Hopper* hopper;         // what it has of compute capability 9.0; null: nothing yet
    Cluster* cluster;       // that it belongs to; null: none
    AsyncCopies* copies;    // under way; null: it has started none yet
    bool together;          // blocks of its grid run at the same time, and wait for each other
    bool cluster_passed;    // a barrier of the cluster, since it ran last
    unsigned yields;        // in a row
    dim3 indexed;           // the block size for which threads[].index is right
    // errors
    bool failed;
    std::string error;  // without source lines
    void* trace[32];    // the call stack where a signal came
    int trace_size;
    bool signaled;  // by a signal: trace[2] is the instruction where it happened
    void* signal_stack;
    // for the watchdog
    pthread_t os_thread;
    pid_t os_thread_id;
    unsigned interrupts;  // of this launch
    std::atomic<bool> busy;
    std::atomic<uint64_t> progress;  // barriers, warp operations and blocks
    Worker* watched;                 // whose progress the watchdog looks at: this one's, in a cooperative grid the first's
    // in a graded build: one thread at a time is held up before a store, see hold_up()
    Thread* held_up;              // null: none
    bool uninterrupted;           // what runs is half of an operation of the whole warp
    unsigned stores_left, spins;  // until the next one is held up; of the others since it was
    unsigned global_stores_left;  // until one is held up that waits for other blocks; 0: none
    bool awaits_blocks;           // that one is held up
    uint32_t random;
    // in a counted build, see work.cpp
    bool counts;  // something was counted
    uint64_t work[MAX_THREADS];
};
static_assert(sizeof(Worker) < STACK_BYTES);

void fill_absent(void* result, size_t bytes, unsigned lane, unsigned reader);
SIMULATOR_INLINE Worker& current_worker() { return *static_cast<Worker*>(current_block()); }

// fiber.cpp
Worker* new_worker();                               // throws std::runtime_error without memory
void prepare_threads(Worker& worker);               // every thread of the block gets a fiber
void enter_threads(Worker& worker, Thread* first);  // runs fibers until no thread can run
[[noreturn]] void leave_threads(Worker& worker);    // for good: none of them will go on

extern "C" __attribute__((visibility("hidden"))) void simulator_switch(void** save, void* to);

SIMULATOR_INLINE void switch_thread(Worker& worker, Thread* next) {  // null: back to enter_threads()
    Thread* me = worker.running;
    worker.running = next;
    simulator_switch(&me->stack_pointer, next ? next->stack_pointer : worker.scheduler_stack);
}

// scheduler.cpp
void run_block(Worker& worker, uint64_t number);
uint64_t block_in_order(const Grid& grid, uint64_t i);  // in a graded build: the number of the block that is i-th to run
// The same in steps, for cooperative grids: resume_block() runs until all threads have returned or wait for the grid.
void begin_block(Worker& worker, uint64_t number);
void resume_block(Worker& worker);
void end_block(Worker& worker);
void pass_grid_barrier(Worker& worker);  // its threads may go on
inline void count_progress(Worker& worker) {
    std::atomic<uint64_t>& progress = worker.watched->progress;
    progress.store(progress.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}
void thread_returned(Worker& worker);
// For what waits in its own ways: the running thread waits, and somebody else wakes it.
void wait_for_wakeup();
// While other threads run, what they do is watched, also where the running one is inside of the runtime.
struct WhileOthersRun {
#ifdef SIMULATOR_CHECKED
    WhileOthersRun();
    ~WhileOthersRun();
    bool before;
#else
    WhileOthersRun() {}
#endif
};
void make_ready_again(Worker& worker, Thread& thread);
// In a graded build, before a store to shared or global memory: see scheduler.cpp and run_with_a_late_block().
constexpr unsigned MOST_STORES = 64;  // until one is held up
inline uint32_t next_random(uint32_t random) { return random * 1664525 + 1013904223; }
void hold_up(Worker& worker);
void await_blocks(Worker& worker);
void stop_awaiting_blocks(Worker& worker);  // for good
SIMULATOR_INLINE void hold_up_now_and_then(Worker& worker) {
    if (worker.running && !worker.uninterrupted && --worker.stores_left == 0) hold_up(worker);
}
void report_deadlock(Worker& worker);
char* shared_address_in(Worker& worker, size_t offset);  // null: not there

// work.cpp
void begin_work(Worker& worker);  // of a block
void end_work(const Worker& worker);
void add_work(const Grid& grid);
void take_work(uint64_t* four);
void weigh_blocks(uint64_t start, const uint64_t* blocks, size_t count);

// stores.cpp
void watch_stores(const void* tensors, size_t bytes);  // from now on: device code writes to device memory only
void check_store(const void* address, size_t bytes);
Worker* owner_of_shared(const void* address);
constexpr size_t AROUND_TENSORS = size_t{1} << 32;  // nothing is mapped there, see testing/runner/runner.cpp

// launch.cpp
void take_launches(uint64_t* launches, uint64_t* threads);
void start_launching();  // the first worker and the watchdog, before they are needed
struct LaunchLock {  // launches run one at a time, and never while the process forks
    LaunchLock();
    ~LaunchLock();
};

// report.cpp
extern thread_local Worker* this_worker;  // of this OS thread, during a launch
void prepare_reports();                   // once, outside signal handlers
void install_handlers();                  // around every launch
void restore_handlers();
void use_signal_stack(Worker& worker, stack_t* previous);
std::string whereabouts(const Worker& worker, const Thread& thread);
std::string source_lines(const Worker& worker);  // "\n  in f at file:line" for the call stack of the error
constexpr int INTERRUPT = SIGURG;                // sent by the watchdog; ignored wherever it is not expected

// memory.cpp
struct OpenMemory {  // while device code, or a copy, is at work on device memory
    OpenMemory();
    ~OpenMemory();
};
void close_memory_to_host();
void give_back(void* address);
uintptr_t take_device_memory(size_t bytes);  // for good; 0: there is none

struct HeapBlock {
    size_t bytes, taken, counted;  // asked for; with what follows it; of the limit
    Position at, freed_at;
    bool freed;
    bool told = false;  // as a leak, or never to be
};
// The block that begins at or before the address; null: it is not in the heap, or there is none.
const std::pair<const uintptr_t, HeapBlock>* heap_block_at(uintptr_t address);
void for_each_heap_leak(void (*visit)(const HeapBlock& block, void* data), void* data);  // each once
void heap_is_told();
bool describe_device_address(const void* address, char* text, size_t size);
constexpr size_t REGION_OF_DEVICE = size_t(24) << 30;  // leaves room for what freed pieces waste
void prepare_region();
uintptr_t region_start();
bool is_in_region(const void* address);                   // of device memory
bool is_allocated(const void* address, size_t bytes);     // by cudaMalloc()
void close_for_host(void* tensors, size_t bytes);
bool is_variable(const void* address, size_t bytes);      // of the device, in a graded build

// program.cpp
bool is_program();
void hint(const char* text);  // on stderr, in a program of its own: what an error code is about
[[noreturn]] void end_program(const std::string& error);
bool is_own_variable(const void* address);

// host_api.cpp
constexpr unsigned MOST_REGISTERS = 64 << 10;  // of a block
struct KernelState {
    size_t dynamic_limit = DEFAULT_SHARED_LIMIT;  // set by cudaFuncSetAttribute
    size_t static_bytes = 0;                      // as far as seen
    unsigned most_threads = MAX_THREADS;          // of a block; known in a graded build
    unsigned registers = 0;                       // of a thread; 0: unknown
    uint64_t registers_of_block(uint64_t threads) const { return (threads + 31) / 32 * 32 * ((registers + 7) / 8 * 8); }
};
size_t static_bytes_of(const void* kernel);
// Under a LaunchLock. Null stands for the kernels whose address is not known (template arguments deduced from
// converted arguments): what was set for any kernel holds for them.
KernelState& kernel_state(const void* address);

}  // namespace simulator
