// checker.h - the checked build: what its parts share. None of this exists in the plain build.
//
//   checked.cpp     the compiler's callbacks: every load, store and basic block of a kernel comes in here
//   ranges.cpp      what memory there is: tensors, cudaMalloc'd ranges, shared variables, the library's own variables
//   races.cpp       who touched each piece of memory last, and whether that is ordered before the access at hand
//   findings.cpp    what was found, each pair of source places once; the report as JSON
//   profile.cpp     warp by warp: transactions, bank conflicts, bytes, how often each basic block ran
//   replay.cpp      every access in the order of its happening, for small launches that are played back
//
// In the checked build one worker runs all blocks, one after the other, so nothing here needs a lock.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "worker.h"

namespace simulator {

enum class Mode : int { off, check, profile };
enum class Action : uint8_t { read, write, atomic, async_copy, bulk_copy, product };

// Memory is watched in words of four bytes, and a word that is accessed in part from then on in halves: halves are the
// smallest elements that neighboring threads write in practice.
constexpr size_t WORD = 4, HALF = 2;

// One access that is remembered. `interval` counts the barriers passed by any block, so it names block and interval;
// `sync` counts the __syncwarp()s of its warp, `fences` those of its thread.
struct Access {
    uint32_t interval, site, sync;
    uint16_t thread, fences;
    uint8_t bytes;  // of the word or half, as a mask
    uint8_t size;   // of the whole access, at most 255
    Action action;
    bool pending : 1;               // an asynchronous copy that nobody has waited for yet
    bool is_volatile : 1 = false;   // what other threads may meet: a flag; of an atomic store: it reads nothing
    bool fenced : 1 = false;        // the thread had executed a fence before
};

// What is remembered of a word or half: the last plain write; the last atomic operation and the last one of another
// thread; the last read of an interval and the last one of another thread, and all its readers, by warp, and by lane in
// the last reader's warp. And, to be quick where nothing can be wrong: the first cache line.
struct alignas(64) Cell {
    uint32_t in_order;  // the interval in which any thread of the block may read this
    uint32_t newest;    // the interval of the last access
    uint32_t begun;     // and of the first one of this launch, or in shared memory of this block
    uint16_t owner;     // the only thread that was here in the newest interval, or NOBODY
    bool split;         // look at the halves instead
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
    bool told = false;            // as a leak
    std::string freed_at, allocated_at;
    Cell* cells = nullptr;        // one per word, counted from the one that holds `start`
    Cell* halves = nullptr;       // two per word
    uint8_t* sectors = nullptr;   // of 32 bytes, in profiles: 1 read, 2 written in this launch
    Cell& cell_of(uintptr_t p) const { return cells[(p - (start & ~(WORD - 1))) / WORD]; }
    Cell* halves_of(uintptr_t p) const { return halves + 2 * ((p - (start & ~(WORD - 1))) / WORD); }
    bool contains(uintptr_t p, size_t size) const { return p >= start && p + size <= start + bytes; }
};

// Where an access goes: a range, and in shared memory the variable.
struct Place {
    Range* range;
    std::string variable;
    unsigned element_bytes;
    std::vector<int64_t> shape;
    int64_t byte_offset;
    bool is_dynamic = false;  // the extern __shared__ array, which kernels divide among several of their own
};

struct Checker {
    Mode mode = Mode::off;
    Worker* worker = nullptr;      // of the launch that runs
    uintptr_t region = 0;          // its stacks
    bool quiet = false;            // the runtime is at work on a CUDA thread's stack
    bool recording = false;        // besides checking: every access goes to replay.cpp
    bool unresolved = false;       // a write is under way whose value decides what it is: see findings.cpp
    uintptr_t host_stack = 0;      // a frame of the launching thread: kernel arguments are above it
    uint32_t interval = 1;         // the current one
    uint32_t newest_interval = 1;  // of any block: blocks that run together take turns
    unsigned accumulators = 0;     // how many threads' accumulators are under way
    uint32_t block_first = 1;      // the first interval of this block ...
    uint32_t launch_first = 1;     // ... and of this launch
    uint32_t shared_first = 1;     // the first interval of this block's shared memory: block_first, but in cooperative grids
    std::vector<std::pair<uint32_t, uint64_t>> first_of_block;  // first interval and number in the grid, in that order
};
extern Checker checker;
// Around what the runtime does on a CUDA thread's stack. The linker keeps one copy of a standard library's inline
// function, maybe the one that was compiled with the kernel, and its accesses are not the kernel's.
struct Quiet {
    const bool before = checker.quiet;
    Quiet() { checker.quiet = true; }
    ~Quiet() { checker.quiet = before; }
};

extern const uintptr_t library_start;  // where this library is in memory: pcs are counted from here

// ranges.cpp
Range* find_range(uintptr_t address, size_t bytes);          // null: not in any
Range* nearest_range(uintptr_t address);                     // for messages; null if there is none
Place describe_place(Range& range, uintptr_t address);
Range& arena_range();
extern Range arena;                                          // the same, once there is one
Range& arena_range_of(Worker& worker);                       // the same of another block of the cluster
bool inside_shared_variable(uintptr_t address, size_t bytes);
void forget_shared_variables();                              // at the start of a block
void use_shared_memory_of(Worker& worker);                   // where blocks take turns
void start_ranges();                                         // at the start of a launch
std::vector<Range*> all_ranges();
void forget_freed_ranges();
void check_heap_opens(uintptr_t start, size_t bytes);         // the device heap
void check_heap_given(uintptr_t start, size_t bytes);
void check_heap_freed_wrongly(const HeapBlock& before, Position at);
std::string name_of(const HeapBlock& block);
std::string text_of(Position at);

// races.cpp
void check_range_access(Range& range, uintptr_t address, size_t bytes, Action action, uint32_t site, bool pending,
                        bool is_volatile = false);
void note_compare_and_swap(const Range& range, uintptr_t address);
void finish_async_copy(Range& range, uintptr_t address, size_t bytes, bool own);  // own: by its wait
void start_ordering();        // at the start of a launch
void start_block_ordering();  // and of a block
void barrier_ordering();

// async_order.cpp: what is asynchronous since compute capability 9.0, see there
struct Order;
extern Order* order;  // of the block that runs; null: it has used nothing of it
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
void check_operand_pieces(const OperandPieces& pieces, Position at, const void* return_address);
void check_copy_starts(struct Transfer& t, struct Mbarrier& barrier, const void* return_address);
void check_copy_landed(const struct Transfer& t, const struct Mbarrier& barrier);
void check_store_starts(struct Transfer& t, const void* return_address);
void check_store_done(const struct Transfer& t, const void* return_address);
void check_mbarrier_memory(const void* address, const void* return_address);
void check_block_leaves(Worker& worker);
void check_product(void** places, unsigned count, bool accumulate, Position at, const void* return_address);
void check_product_fence();
void check_product_wait(uint32_t left);
void check_cluster_barrier_passed();

// findings.cpp
struct Touch {
    Action action;
    size_t bytes;
    uint32_t site;
    uint3 block, thread;
    Position at = {};      // in place of `site`, if that is 0
    bool on_host = false;  // no CUDA thread
};
void add_finding(const char* kind, const Place& place, const std::vector<Touch>& touches, const std::string& detail);
void add_host_access(const Place& place, Touch touch);  // host code uses device memory
// A write that races with another one: whether it changes the value is seen when it has been done, by resolve_write().
void add_racing_write(const Place& place, const std::vector<Touch>& touches, uintptr_t address, size_t bytes);
void resolve_write();
void note_guarded_read(uint32_t site);  // an atomicCAS of the same thread follows
void add_host_finding(const char* kind, const std::string& name, const std::string& at, const std::string& detail);
void clear_findings();
std::string findings_json();
std::string quoted(const std::string& text);  // as a JSON string
Touch touch_now(Action action, size_t bytes, uint32_t site);
uint3 thread_at(unsigned number);

// profile.cpp
void trace_access(Range& range, uintptr_t address, size_t bytes, Action action, uint32_t site);
void trace_basic_block(uint32_t site);
void profile_launch_begins();
void profile_launch_ends();
void profile_barrier();
void profile_warps_aligned(uint32_t warps);  // the lanes of these warps are at the same point of the program
void profile_block_begins(uint64_t number);
void profile_block_ends();
void clear_profile();
std::string profile_json();

// sample.cpp: only some blocks run
extern unsigned sample_size;    // how many; 0: all of them
extern uint64_t block_weight;   // how many blocks the one that runs stands for
void choose_blocks(dim3 grid);
uint64_t next_block(Grid& grid);  // its number; block_count: there is none
void sample_not_modeled(const char* what);
void sample_ends_launch(const char* what);

// replay.cpp
void replay_access(Range& range, uintptr_t address, size_t bytes, Action action, uint32_t site);
void replay_arrival(Range& range, uintptr_t address, size_t bytes, uint32_t site);  // of an asynchronous copy
void replay_warp_operation(uint32_t lanes);
void replay_launch_begins();
void replay_launch_ends();
void replay_block(uint64_t number);  // begins, or goes on after a grid's barrier
void replay_block_ends();
void replay_barrier();

// For scheduler.cpp and launch.cpp.
void check_launch_begins(Worker& worker);
void check_launch_ends();
void check_block_resumes(Worker& worker, bool begins);  // of a cooperative grid, whose blocks take turns
void check_grid_barrier_passed();
void check_block_begins();
void check_block_ends();
void check_barrier_passed();
void check_warp_operation(unsigned warp, uint32_t lanes, bool orders_memory);
void check_barrier_after_return(Position at);                                // threads are gone that a barrier counts
void check_absent_lane(const Thread& reader, unsigned source, bool gone);    // a shuffle reads from nobody
void check_absent_votes(const Thread& voter, uint32_t gone);                 // lanes have returned before a vote
void check_shared_placed(const Declaration& declaration, const char* address);

}  // namespace simulator
