// checker.h - declarations shared by the parts of the checked build. Other builds have none of their definitions.
//
//   checked.cpp     the compiler's callbacks: called for every load, store and basic block of a kernel
//   ranges.cpp      valid memory: tensors, cudaMalloc'd ranges, shared variables, the library's own variables
//   races.cpp       the latest accesses to each word, and whether they are ordered before the current one
//   findings.cpp    the findings, one per pair of source lines; the report as JSON
//   profile.cpp     per warp: transactions, bank conflicts, bytes, how often each basic block ran
//   replay.cpp      every access in execution order, for replaying small launches
//
// In the checked build one worker runs all blocks, one after the other, so nothing here needs a lock.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "../include/simulator/checked.h"
#include "worker.h"

namespace simulator {

enum class Mode : int { off, check, profile };
enum class Action : uint8_t { read, write, atomic, async_copy, bulk_copy, product };

// Memory is tracked in 4-byte words. A word that is accessed in part is tracked in halves from then on: 2 bytes is the
// smallest element that neighboring threads write in practice.
constexpr size_t WORD = 4, HALF = 2;

// One recorded access. `interval` counts the barriers passed by any block, so it identifies both block and interval;
// `sync` counts the __syncwarp()s of its warp, `fences` the fences of its thread.
struct Access {
    uint32_t interval, site, sync;
    uint16_t thread, fences;
    uint8_t bytes;  // mask of the bytes accessed in the word or half
    uint8_t size;   // size of the whole access, capped at 255
    Action action;
    bool pending : 1;               // an asynchronous copy that no thread has waited for yet
    bool is_volatile : 1 = false;   // for a load or store: may be a flag; for an atomic store: it reads nothing
    bool fenced : 1 = false;        // the thread has executed a fence before
};

// The access history of a word or half: the last plain write; the last atomic operation and the last one by another
// thread; the last read of an interval and the last one by another thread; all readers of that interval, by warp, and
// by lane within the last reader's warp. The fast path for safe accesses needs only the first cache line.
struct alignas(64) Cell {
    uint32_t in_order;  // the interval in which any thread of the block may read this
    uint32_t newest;    // the interval of the last access
    uint32_t begun;     // the interval of the first access in this launch (shared memory: in this block)
    uint16_t owner;     // the only thread that accessed this in the newest interval, or NOBODY
    bool split;         // the halves are tracked instead
    uint32_t reader_warps, reader_lanes;
    Access read, other_read;
    Access write, atomic, other_atomic;
};
static_assert(sizeof(Access) == 20 && sizeof(Cell) == 128);
constexpr uint16_t NOBODY = 0xffff;

struct Range {
    uintptr_t start = 0;
    size_t bytes = 0;
    std::string name;
    unsigned element_bytes = 1;
    std::vector<int64_t> shape;
    enum Kind { tensor, allocated, library, shared, heap } kind = tensor;
    bool initialized = false;     // before any kernel wrote to it
    bool freed = false;           // by cudaFree
    bool host_may_use = false;    // managed and pinned memory, and the library's own variables
    bool told = false;            // reported as a leak
    std::string freed_at, allocated_at;
    Cell* cells = nullptr;        // one per word, counted from the one that holds `start`
    Cell* halves = nullptr;       // two per word
    uint8_t* sectors = nullptr;   // for profiles, one per 32-byte sector: 1 read, 2 written in this launch
    Cell& cell_of(uintptr_t p) const { return cells[(p - (start & ~(WORD - 1))) / WORD]; }
    Cell* halves_of(uintptr_t p) const { return halves + 2 * ((p - (start & ~(WORD - 1))) / WORD); }
    bool contains(uintptr_t p, size_t size) const { return p >= start && p + size <= start + bytes; }
};

// The target of an access: a range and, in shared memory, the variable.
struct Place {
    Range* range;
    std::string variable;
    unsigned element_bytes;
    std::vector<int64_t> shape;
    int64_t byte_offset;
    bool is_dynamic = false;  // the extern __shared__ array, which kernels carve up themselves
    size_t bytes() const {    // of the whole variable
        size_t product = element_bytes;
        for (const int64_t size : shape) product *= static_cast<size_t>(size);
        return product;
    }
};

struct Checker {
    Mode mode = Mode::off;
    Worker* worker = nullptr;      // the running launch's worker
    uintptr_t region = 0;          // its stacks
    bool quiet = false;            // runtime code is running on a CUDA thread's stack
    bool recording = false;        // in addition to checking, every access goes to replay.cpp
    bool unresolved = false;       // the value of a write in progress decides how it is classified: see findings.cpp
    uintptr_t host_stack = 0;      // a frame of the launching thread: kernel arguments are above it
    uint32_t interval = 1;         // the current interval
    uint32_t newest_interval = 1;  // the newest of any block: co-resident blocks take turns
    unsigned accumulators = 0;     // number of threads with accumulators in flight
    uint32_t block_first = 1;      // the first interval of this block ...
    uint32_t launch_first = 1;     // ... and of this launch
    uint32_t shared_first = 1;     // like block_first, for this block's shared memory: differs in cooperative grids
    std::vector<std::pair<uint32_t, uint64_t>> first_of_block;  // first interval and number in the grid, in that order
};
extern Checker checker;
#ifdef SIMULATOR_CHECKED
template <bool QUIET>
struct Scope {
    const bool before = std::exchange(checker.quiet, QUIET);
    ~Scope() { checker.quiet = before; }
};
#else
template <bool QUIET>
struct Scope {
    Scope() {}
};
#endif
// Guards runtime code that runs on a CUDA thread's stack. The linker keeps one copy of each inline library function,
// maybe the instrumented one compiled with the kernel; its accesses here are not the kernel's.
using Quiet = Scope<true>;
// Checks other threads' accesses while they run, even though the current one is inside the runtime.
using WhileOthersRun = Scope<false>;

extern const uintptr_t library_start;  // this library's load address: pcs are relative to it

// ranges.cpp
Range* find_range(uintptr_t address, size_t bytes);          // null: not in any range
Range* nearest_range(uintptr_t address);                     // for messages; null: no ranges exist
Place describe_place(Range& range, uintptr_t address);
Range& arena_range();
extern Range arena;                                          // what arena_range() returns, once initialized
Range& arena_range_of(Worker& worker);                       // the arena of another block of the cluster
bool inside_shared_variable(uintptr_t address, size_t bytes);
void forget_shared_variables();                              // at the start of a block
void use_shared_memory_of(Worker& worker);                   // when blocks take turns
void start_ranges();                                         // at the start of a launch
std::vector<Range*> all_ranges();
void forget_freed_ranges();
void check_heap_opens(uintptr_t start, size_t bytes);         // the device heap
void check_heap_given(uintptr_t start, size_t bytes);
void check_heap_freed_wrongly(const HeapBlock& before, Position at);
std::string name_of(const HeapBlock& block);
std::string text_of(Position at);

// checked.cpp: asynchronous copies. Called before the destination is filled with NaN (source is null for zeros), and
// after the data arrive. own: the running thread issued the copy it waits for. return_address is in the student's
// function.
void check_async_issue(void* destination, const void* source, size_t bytes, const void* return_address);
void check_async_done(void* destination, size_t bytes, bool own, const void* return_address);

// races.cpp
void check_range_access(Range& range, uintptr_t address, size_t bytes, Action action, uint32_t site, bool pending,
                        bool is_volatile = false);
void note_compare_and_swap(const Range& range, uintptr_t address);
void finish_async_copy(Range& range, uintptr_t address, size_t bytes, bool own);  // own: by its wait
void start_ordering();        // at the start of a launch
void start_block_ordering();  // and of a block
void barrier_ordering();

// async_order.cpp: asynchronous operations of compute capability 9.0
struct Order;
extern Order* order;  // the running block's; null until it uses one
void forget_order(const Worker& worker);
void use_order_of(const Worker& worker);
void order_release(std::vector<uint32_t>& into);
void order_acquire(const std::vector<uint32_t>& from, Thread* thread = nullptr);
void order_phase_complete(struct Mbarrier& barrier);
void order_at_barrier();
void order_at_syncwarp(unsigned warp, uint32_t lanes);
void order_proxy_fence();
void check_overwrite(uintptr_t address, size_t bytes, Action action, uint32_t site);
void check_accumulator(uintptr_t address, size_t bytes, Action action, uint32_t site);
struct OperandPiece {
    const char* address;
    int line, piece;
};
struct OperandPieces {
    const char* name;
    unsigned mode;
    std::vector<OperandPiece> pieces;
};
void check_operand_pieces(const OperandPieces& pieces, const void* return_address);
void check_copy_starts(struct Transfer& t, struct Mbarrier& barrier, const void* return_address);
void check_copy_landed(const struct Transfer& t, const struct Mbarrier& barrier);
void check_store_starts(struct Transfer& t, const void* return_address);
void check_store_done(const struct Transfer& t);
void check_mbarrier_memory(const void* address, const void* return_address);
void check_block_leaves(Worker& worker);
void check_product(void** places, unsigned count, bool accumulate, const void* return_address);
void check_product_fence();
void check_product_wait(uint32_t left);
void check_cluster_barrier_passed();

// findings.cpp
struct Touch {
    Action action;
    size_t bytes;
    uint32_t site;
    uint3 block, thread;
    Position at = {};      // used if `site` is 0
    bool on_host = false;  // by host code
};
void add_finding(const char* kind, const Place& place, const std::vector<Touch>& touches, const std::string& detail);
void add_host_access(const Place& place, Touch touch);  // host code uses device memory
// A write that races with another one. resolve_write() checks after the write whether it changed the value.
void add_racing_write(const Place& place, const std::vector<Touch>& touches, uintptr_t address, size_t bytes);
void resolve_write();
void note_guarded_read(uint32_t site);  // an atomicCAS of the same thread follows
void add_host_finding(const char* kind, const std::string& name, const std::string& at, const std::string& detail);
void clear_findings();
std::string findings_json();
std::string quoted(const std::string& text);  // as a JSON string
std::string triple(dim3 v);                   // as a JSON list
Touch touch_now(Action action, size_t bytes, uint32_t site);
uint3 thread_at(unsigned number);

// profile.cpp
void trace_access(Range& range, uintptr_t address, size_t bytes, Action action, uint32_t site);
void trace_basic_block(uint32_t site);
void profile_launch_begins();
void profile_launch_ends();
void profile_barrier();
void profile_warps_aligned(uint32_t warps);  // the lanes of these warps are at the same point in the program
void profile_block_begins(uint64_t number);
void profile_block_ends();
void clear_profile();
std::string profile_json();

// sample.cpp: only some blocks run
extern unsigned sample_size;    // number of blocks to run; 0: all
extern uint64_t block_weight;   // number of blocks that the running one represents
void choose_blocks(dim3 grid);
uint64_t next_block(Grid& grid);  // its number; block_count if none is left
void sample_not_modeled(const char* what);
void sample_ends_launch(const char* what);

// replay.cpp
void replay_access(Range& range, uintptr_t address, size_t bytes, Action action, uint32_t site);
void replay_arrival(Range& range, uintptr_t address, size_t bytes, uint32_t site);  // an asynchronous copy completed
void replay_warp_operation(uint32_t lanes);
void replay_launch_begins();
void replay_launch_ends();
void replay_block(uint64_t number);  // begins, or resumes after a grid barrier
void replay_block_ends();
void replay_barrier();

// Called by scheduler.cpp and launch.cpp.
void check_launch_begins(Worker& worker);
void check_launch_ends();
void check_block_resumes(Worker& worker, bool begins);  // in cooperative grids, whose blocks take turns
void check_grid_barrier_passed();
void check_block_begins();
void check_block_ends();
void check_barrier_passed();
void check_warp_operation(unsigned warp, uint32_t lanes, bool orders_memory);
void check_barrier_after_return(Position at);                                // some threads had returned
void check_absent_lane(const Thread& reader, unsigned source, bool gone);    // a shuffle reads from an absent lane
void check_absent_votes(const Thread& voter, uint32_t gone);                 // lanes have returned before a vote
void check_shared_placed(const Declaration& declaration, const char* address);

}  // namespace simulator
