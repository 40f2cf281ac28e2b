// thread.h - who is running: the CUDA thread, its block, and what device code may ask of the runtime.
//
//   current_thread(), current_block()    found from the stack pointer
//   barrier(), collective(), yield()     the three ways in which one thread lets others run
//   shared_variable<S>(), dynamic_shared<Alignment>()
//   fail(), not_implemented()            give up, with a message
//
// A worker (one OS thread) runs one block at a time; every CUDA thread of the block is a fiber with its own
// stack. All stacks of a worker are in one region whose start is a multiple of REGION_BYTES, behind the
// worker's own data:
//
//     region start                                                                   region start +
//     REGION_BYTES | Block, Thread[1024], ... | stack of thread 0 | stack of thread 1 | ... | stack of thread
//     1023 |
//       STACK_BYTES                STACK_BYTES         STACK_BYTES
//
// so the stack pointer alone tells block and thread: no thread-local storage, no register set aside.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "variable.h"
#include "vector_types.h"
#ifdef SIMULATOR_CHECKED
#include "checked.h"
#endif

// clang would inline the function and check it with its caller's accesses.
#if defined(SIMULATOR_CHECKED) && defined(__clang__)
#define SIMULATOR_APART __attribute__((noinline))
#else
#define SIMULATOR_APART
#endif
// Functions that run so often that the compiler's checks would cost too much, and their helpers; and those whose
// accesses are not the student's.
#if __has_attribute(no_sanitize_coverage)
#define SIMULATOR_UNCHECKED __attribute__((no_sanitize("bounds", "alignment", "thread"), no_sanitize_coverage))
#else
#define SIMULATOR_UNCHECKED __attribute__((no_sanitize("bounds", "alignment", "thread")))
#endif
#define SIMULATOR_INLINE SIMULATOR_UNCHECKED __attribute__((always_inline)) inline

namespace simulator {

constexpr uintptr_t STACK_BYTES = 256 << 10;
constexpr uintptr_t REGION_BYTES = 512 << 20;
constexpr unsigned MAX_THREADS = 1024;
constexpr unsigned MAX_SHARED_VARIABLES = 512;  // declarations of __shared__ variables in one library

// A position in the student's source; as a default argument `here()` is that of the caller.
struct Position {
    const char* file;
    int line;
    int number = 0;  // of the barrier in its line, where that holds several: the rewriter counts them
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
    void* stack_pointer;  // where it goes on; meaningful while another thread runs
    uint3 index;
    unsigned lane, warp;
    State state;
    const char* operation;  // what it waits in, or waited in last
    Position position;
    unsigned mask;  // of that, if it is a warp operation; of lanes_here(), the answer
};
static_assert(sizeof(Thread) == 64);  // one cache line

// Where the variable is in shared memory in block number `block`.
struct SharedSlot {
    uint64_t block;
    char* address;
};

struct Declaration;
struct Block {
    uint3 index;
    dim3 size, grid;
    uint64_t number;    // counts the blocks that ran anywhere since the program started
    uint64_t interval;  // counts the barriers that this block has passed
    char* dynamic_end;  // dynamic shared memory is just below, and above it comes a page that traps
    size_t dynamic_bytes;
    // What isn't counted may call only what no student can define by its name: what a shuffle reads from a lane that takes
    // no part in it (zeros if it has returned or never existed, else NaN bytes), and functions below.
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

// Waits for all threads of the block; returns for how many of them `predicate` was true.
unsigned barrier(bool predicate, const char* operation, Position position);
// Waits for all lanes in `mask`; the last to arrive runs `combine` for all of them.
void collective(unsigned mask, void* arguments, Combine combine, const char* operation, Position position);
// Lets the other threads of the block run first.
void yield();
void yield_waiting();  // the same, and it cannot go on before one of them has
// The same in `while (flag == 0);`. The compiler may take plain variables that it has read for unchanged, as nvcc may:
// a "pure" function writes to no memory. What is volatile or atomic is read again.
[[gnu::pure]] unsigned let_others_run(unsigned);
SIMULATOR_INLINE void spin() {
    unsigned any;
    asm volatile("" : "=r"(any));  // so that the call is not the same one in every turn, and needed
    any = let_others_run(any);
    asm volatile("" ::"r"(any));
}
// The lanes of the warp that run here together: this one, and those that come to the same place before they wait for
// anything else.
unsigned lanes_here(Position position);
// Waits for all threads of a grid that was launched cooperatively.
void grid_barrier(Position position);
bool is_cooperative();
void keep_launch_bounds(unsigned most_threads);  // of a block; where it has more, the launch is refused
bool on_device();  // whether a CUDA thread runs this, and not host code
// A copy without T's operator=, and without a function of the C library, of which a student may have another.
template <typename T>
SIMULATOR_INLINE void copy_bytes(void* to, const void* from) {
    struct Bytes {
        char bytes[sizeof(T)];
    };
    *static_cast<Bytes*>(to) = *static_cast<const Bytes*>(from);
}

[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char* format, ...);
[[noreturn]] void not_implemented(const char* file, int line);

// Shared memory as inline PTX names it, in 18 bits like the descriptors of wgmma: static variables from 1024 on (as on a
// GPU, 0 is no address of a variable), dynamic memory up to the end. The bits above name another block of the cluster.
constexpr size_t SHARED_LIMIT = size_t(1) << 26;  // above every such number, and below every pointer
bool is_shared(const void* address);
size_t shared_offset(const void* address);
void* shared_address(size_t offset);

// `struct S { float tile[32][33]; }` is what the rewriter makes of `__shared__ float tile[32][33]`.
struct Declaration {
    const Variable* variables;
    int count;
    size_t bytes, alignment;
};
int new_shared_slot(int* number);
char* place_shared_variable(SharedSlot& slot, const Declaration& declaration);
template <typename S>
inline int shared_slot = 0;  // given when it is first used, so that loading a library runs nothing
template <typename S, size_t Count>
SIMULATOR_UNCHECKED SIMULATOR_APART S& shared_variable(const Variable (&variables)[Count]) {
    Block* block = current_block();
    const int number = __atomic_load_n(&shared_slot<S>, __ATOMIC_RELAXED);
    SharedSlot& slot = block->shared[(number ? number : block->new_shared_slot(&shared_slot<S>)) - 1];
    char* address = slot.block == block->number
                        ? slot.address
                        : block->place_shared_variable(slot, {variables, static_cast<int>(Count), sizeof(S), alignof(S)});
    return *reinterpret_cast<S*>(address);
}

template <size_t Alignment>
SIMULATOR_UNCHECKED void* dynamic_shared([[maybe_unused]] const char* name, [[maybe_unused]] unsigned element_bytes,
                                         const Block* block = current_block()) {
    constexpr size_t alignment = Alignment < 16 ? 16 : Alignment;
    void* start = reinterpret_cast<void*>(
        reinterpret_cast<uintptr_t>(block->dynamic_end - block->dynamic_bytes) & ~(alignment - 1));
#ifdef SIMULATOR_CHECKED
    check_dynamic_shared(start, name, element_bytes);
#endif
    return start;
}

// __shared__ variables at namespace scope are thread-local variables of the worker that `prepare` makes
// ready: a static one is filled with NaN, an extern one pointed at dynamic shared memory. It runs before
// every block.
struct NamespaceShared {
    explicit NamespaceShared(void (*prepare)(const Block*));
    void (*prepare)(const Block*);
    NamespaceShared* next;
};

}  // namespace simulator
