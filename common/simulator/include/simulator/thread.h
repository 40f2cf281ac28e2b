// thread.h - the running CUDA thread, its block, and the runtime functions that device code calls.
//
//   current_thread(), current_block()    computed from the stack pointer
//   barrier(), collective(), yield()     the three ways in which a thread lets others run
//   shared_variable<S>(), dynamic_shared<Alignment>()
//   fail(), not_implemented()            end the launch with a message
//
// A worker (one OS thread) runs one block at a time; every CUDA thread of the block is a fiber with its own
// stack. All stacks of a worker are in one region, aligned to REGION_BYTES, after the worker's own data:
//
//     region start                                                                   region start +
//     REGION_BYTES | Block, Thread[1024], ... | stack of thread 0 | stack of thread 1 | ... | stack of thread
//     1023 |
//       STACK_BYTES                STACK_BYTES         STACK_BYTES
//
// so the stack pointer alone identifies block and thread: no thread-local storage, no reserved register.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "variable.h"
#include "vector_types.h"
#ifdef SIMULATOR_CHECKED
#include "checked.h"
#endif

// clang would inline the function and instrument it as part of its caller.
#if defined(SIMULATOR_CHECKED) && defined(__clang__)
#define SIMULATOR_APART __attribute__((noinline))
#else
#define SIMULATOR_APART
#endif
// For functions that run too often to be instrumented, and functions whose accesses are not the student's. They aren't
// counted as work, either (runtime/work.cpp), so no student's code may be inlined in them: they use no class or variable
// template and call no function template, since a student can specialize those for any type, and nothing depends on a
// type that they have not compared with the simulator's own by __is_same (std::is_same can be specialized).
#if __has_attribute(no_sanitize_coverage)
#define SIMULATOR_UNCHECKED __attribute__((no_sanitize("bounds", "alignment", "thread"), no_sanitize_coverage))
#else
#define SIMULATOR_UNCHECKED __attribute__((no_sanitize("bounds", "alignment", "thread")))
#endif
#ifdef SIMULATOR_GRADED  // counted; these run code of a student's types
#define SIMULATOR_UNWATCHED __attribute__((no_sanitize("bounds", "alignment", "thread")))
#else
#define SIMULATOR_UNWATCHED SIMULATOR_UNCHECKED
#endif
#define SIMULATOR_INLINE SIMULATOR_UNWATCHED __attribute__((always_inline)) inline

namespace simulator {

constexpr uintptr_t STACK_BYTES = 256 << 10;
constexpr uintptr_t REGION_BYTES = 512 << 20;
constexpr unsigned MAX_THREADS = 1024;
constexpr unsigned MAX_SHARED_VARIABLES = 512;  // declarations of __shared__ variables in one library

// A position in the student's source; as a default argument, here() gives the caller's.
struct Position {
    const char* file;
    int line;
    int number = 0;  // tells apart several barriers on one line; set by the rewriter
};
constexpr Position here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
}
constexpr Position here_number(int number, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line, number};
}

// Computes the results of a warp operation: lanes[i] are the arguments of lane i, for every i in `mask`.
using Combine = void (*)(void** lanes, unsigned mask);

enum class State {
    running,
    at_barrier,
    in_warp_operation,
    asks_who_is_here,
    at_grid_barrier,
    at_mbarrier,
    at_named_barrier,
    at_cluster_barrier,
    returned
};

struct alignas(64) Thread {
    void* stack_pointer;  // where it resumes; valid while another thread runs
    uint3 index;
    unsigned lane, warp;
    State state;
    const char* operation;  // the operation in which it waits or waited last
    Position position;
    unsigned mask;  // mask of that operation if it is a warp operation; for lanes_here(), its result
};
static_assert(sizeof(Thread) == 64);  // one cache line

// The address of a shared variable in block number `block`.
struct SharedSlot {
    uint64_t block;
    char* address;
};

struct Declaration;
struct Block {
    uint3 index;
    dim3 size, grid;
    uint64_t number;    // serial number among all blocks run since the program started
    uint64_t interval;  // number of barriers that this block has passed
    char* dynamic_end;  // end of dynamic shared memory; a guard page follows
    size_t dynamic_bytes;
    // Code that isn't counted as work may call only functions that a student cannot redefine by name, so it calls these
    // through pointers. fill_absent: the value that a shuffle reads from a lane outside the mask (zeros if the lane has
    // returned or never existed, otherwise NaN bytes).
    void (*fill_absent)(void* result, size_t bytes, unsigned lane, unsigned reader);
    void (*fail)(const char* format, ...);
    int (*new_shared_slot)(int* number);
    char* (*place_shared_variable)(SharedSlot& slot, const Declaration& declaration);
    SharedSlot shared[MAX_SHARED_VARIABLES];
    Thread threads[MAX_THREADS];
};

SIMULATOR_INLINE uintptr_t stack_address() { return reinterpret_cast<uintptr_t>(__builtin_frame_address(0)); }
SIMULATOR_INLINE Block* current_block() {
    return reinterpret_cast<Block*>(stack_address() & ~(REGION_BYTES - 1));
}
SIMULATOR_INLINE Thread* current_thread() {
    return &current_block()->threads[stack_address() / STACK_BYTES % (REGION_BYTES / STACK_BYTES) - 1];
}

// Waits for all threads of the block; returns the number of threads whose `predicate` is true.
unsigned barrier(bool predicate, const char* operation, Position position);
// Waits for all lanes in `mask`; the last to arrive runs `combine` for all of them.
void collective(unsigned mask, void* arguments, Combine combine, const char* operation, Position position);
// Lets the other threads of the block run first.
void yield();
void yield_waiting();  // the same, for a thread that cannot continue until another one has run
// yield() in `while (flag == 0);`. The function is "pure", so, like nvcc, the compiler may assume that plain variables
// are unchanged; volatile and atomic ones are read again.
[[gnu::pure]] unsigned let_others_run(unsigned);
SIMULATOR_INLINE void spin() {
    unsigned any;
    asm volatile("" : "=r"(any));  // keeps the pure call from being hoisted or dropped
    any = let_others_run(any);
    asm volatile("" ::"r"(any));
}
// The lanes of the warp that execute this call together: this one, and those that reach it before they wait for
// anything else.
unsigned lanes_here(Position position);
// Waits for all threads of a cooperatively launched grid.
void grid_barrier(Position position);
bool is_cooperative();
void keep_launch_bounds(unsigned most_threads);  // refuses the launch if its blocks have more threads
bool on_device();  // whether a CUDA thread (rather than host code) is running

[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char* format, ...);
[[noreturn]] void not_implemented(const char* file, int line);

// Shared-memory addresses in inline PTX, 18 bits as in wgmma descriptors: static variables start at 1024 (as on a GPU,
// no variable has address 0), dynamic memory extends to the end. The bits above select another block of the cluster.
constexpr size_t SHARED_LIMIT = size_t(1) << 26;  // above every shared address, below every pointer
bool is_shared(const void* address);
size_t shared_offset(const void* address);
void* shared_address(size_t offset);

// The rewriter turns `__shared__ float tile[32][33]` into `struct S { float tile[32][33]; }`.
struct Declaration {
    const Variable* variables;
    int count;
    size_t bytes, alignment;
};
int new_shared_slot(int* number);
char* place_shared_variable(SharedSlot& slot, const Declaration& declaration);
template <typename S, size_t Count>
SIMULATOR_UNCHECKED SIMULATOR_APART S& shared_variable(const Variable (&variables)[Count]) {
    static int known = 0;  // assigned on first use, so that loading a library runs no initializers
    Block* block = current_block();
    const int number = __atomic_load_n(&known, __ATOMIC_RELAXED);
    SharedSlot& slot = block->shared[(number ? number : block->new_shared_slot(&known)) - 1];
    char* address = slot.block == block->number
                        ? slot.address
                        : block->place_shared_variable(slot, {variables, static_cast<int>(Count), sizeof(S), alignof(S)});
    return *reinterpret_cast<S*>(address);
}

template <size_t Alignment>
SIMULATOR_UNCHECKED void* dynamic_shared([[maybe_unused]] const char* name, [[maybe_unused]] unsigned element_bytes) {
    const Block* block = current_block();
    constexpr size_t alignment = Alignment < 16 ? 16 : Alignment;
    void* start = reinterpret_cast<void*>(
        reinterpret_cast<uintptr_t>(block->dynamic_end - block->dynamic_bytes) & ~(alignment - 1));
#ifdef SIMULATOR_CHECKED
    check_dynamic_shared(start, name, element_bytes);
#endif
    return start;
}

}  // namespace simulator
