// stores.cpp - checks where device code writes in a graded build, since other memory holds the numbers that grade it.
//
// The compiler calls __asan_store...() before each store in the student's file (rewriter.COUNTED_FLAGS), and the build
// replaces C library functions that store by the functions at the end of this file (grading/build.py).
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "worker.h"

namespace simulator {

struct Open {
    uintptr_t start = 0;
    size_t bytes = 0;
    bool holds(uintptr_t at, size_t more) const { return at - start < bytes && more <= bytes - (at - start); }
};
static Open tensors, allocations;  // with unmapped margins, where a store traps by itself with a better message
static bool stores_are_watched = false;

void watch_stores(const void* start, size_t bytes) {
    tensors = {reinterpret_cast<uintptr_t>(start) - AROUND_TENSORS, bytes + 2 * AROUND_TENSORS};
    allocations = {region_start(), REGION_OF_DEVICE};
    stores_are_watched = true;
}

// A bit for each granule of the region that is allocated, or was by a kernel's malloc()
constexpr size_t GRANULE = 256;
static uint8_t granules[REGION_OF_DEVICE / GRANULE / 8];
void mark_allocated(uintptr_t start, size_t bytes, bool is_allocated) {
    if (!stores_are_watched) return;
    const size_t offset = start - allocations.start;
    for (size_t i = offset / GRANULE; i * GRANULE < offset + bytes; ++i) {  // cudaMalloc() and a heap may share a byte
        const uint8_t bit = 1 << i % 8;
        is_allocated ? __atomic_fetch_or(&granules[i / 8], bit, __ATOMIC_RELAXED)
                     : __atomic_fetch_and(&granules[i / 8], ~bit, __ATOMIC_RELAXED);
    }
}
SIMULATOR_INLINE static bool are_allocated(uintptr_t at, size_t bytes) {
    if (!allocations.holds(at, bytes)) return false;
    const size_t offset = at - allocations.start;
    for (size_t i = offset / GRANULE; i * GRANULE < offset + bytes; ++i)
        if (!(granules[i / 8] >> i % 8 & 1)) return false;
    return true;
}

// Static variables, of which a block of a cluster may have placed more than the block it writes to; dynamic memory,
// which may begin earlier for alignment; and the guard after it, which traps.
SIMULATOR_INLINE static bool is_own_shared(const Worker& worker, const Worker& owner, uintptr_t at, size_t bytes) {
    const auto arena = reinterpret_cast<uintptr_t>(owner.arena);
    const size_t statics = worker.static_top > owner.static_top ? worker.static_top : owner.static_top;
    const size_t dynamic = (owner.dynamic_bytes + 1023) & ~size_t{1023};
    return Open{arena, statics}.holds(at, bytes) ||
           Open{arena + SHARED_ARENA - dynamic, dynamic + STACK_BYTES}.holds(at, bytes);
}
__attribute__((noinline)) static void look_again(const Worker& worker, uintptr_t at, size_t bytes) {
    constexpr uintptr_t NULL_PAGES = 1 << 16;  // these trap, too
    const auto* address = reinterpret_cast<const char*>(at);
    const Worker* owner = owner_of_shared(address);
    if (!bytes || at < NULL_PAGES || is_variable(address, bytes)) return;
    if (owner && is_own_shared(worker, *owner, at, bytes)) return;
    if (owner)
        fail("a kernel writes to shared memory outside of its __shared__ variables: an index is out of bounds. The static "
             "variables take %zu bytes, dynamic shared memory %zu", owner->static_top, owner->dynamic_bytes);
    if (is_in_region(address))
        fail("a kernel writes to %p, where no device memory is allocated: an index is out of bounds",
             static_cast<const void*>(address));
    const uintptr_t offset = at - reinterpret_cast<uintptr_t>(&worker);
    const char* where = offset >= REGION_BYTES  ? "memory that the device does not have"
                        : offset < STACK_BYTES ? "the simulator's memory"
                                               : "another thread's local memory";
    fail("a kernel writes to %p, which is in %s: neither global memory, nor the block's shared memory, nor a thread's own "
         "variables",
         static_cast<const void*>(address), where);
}

// In the running thread's frames: beyond them its stack would be memory that is not counted
SIMULATOR_INLINE static bool is_own(uintptr_t at, size_t bytes) {
    const uintptr_t here = stack_address();
    return Open{here, stack_top(here) - here}.holds(at, bytes);
}
// In the frames of a waiting thread, for which the last thread of its warp to arrive does a warp-wide operation
SIMULATOR_INLINE static bool is_of_warp(const Worker& worker, uintptr_t at, size_t bytes) {
    const uintptr_t stack = (at - reinterpret_cast<uintptr_t>(&worker)) / STACK_BYTES - 1;
    if (!worker.uninterrupted || stack >= worker.thread_count) return false;
    const uintptr_t first = reinterpret_cast<uintptr_t>(worker.threads[stack].stack_pointer);
    return Open{first, stack_top(first) - first}.holds(at, bytes);
}
SIMULATOR_INLINE static bool is_global(uintptr_t at, size_t bytes) { return tensors.holds(at, bytes) || are_allocated(at, bytes); }
SIMULATOR_INLINE static void check_others(const Worker& worker, uintptr_t at, size_t bytes) {
    if (!is_own_shared(worker, worker, at, bytes) && !is_global(at, bytes) && !is_of_warp(worker, at, bytes)) look_again(worker, at, bytes);
}
void check_store(const void* address, size_t bytes) {
    if (!stores_are_watched) return;
    const auto at = reinterpret_cast<uintptr_t>(address);
    const Worker& worker = current_worker();
    if (!is_own(at, bytes)) check_others(worker, at, bytes);
}
SIMULATOR_INLINE static void look(const void* address, size_t bytes) {
    if (!stores_are_watched) return;
    const auto at = reinterpret_cast<uintptr_t>(address);
    Worker& worker = current_worker();
    if (is_own(at, bytes)) return;
    check_others(worker, at, bytes);
    if (!worker.running || worker.uninterrupted) return;
    if (worker.global_stores_left && is_global(at, bytes) && --worker.global_stores_left == 0) await_blocks(worker);
    if (--worker.stores_left == 0) hold_up(worker);
}

}  // namespace simulator

#ifndef SIMULATOR_CHECKED
#pragma GCC visibility push(hidden)
extern "C" {
#define STORE(bytes) \
    __attribute__((used)) void __asan_store##bytes##_noabort(const void* address) { simulator::look(address, bytes); }
STORE(1) STORE(2) STORE(4) STORE(8) STORE(16)
#undef STORE
__attribute__((used)) void __asan_storeN_noabort(const void* address, size_t bytes) { simulator::look(address, bytes); }
__attribute__((used)) void __asan_handle_no_return() {}

// The build renames NAME in a student's file to simulator_stores_NAME
#define STORES(type, name, parameters, arguments, pointer, bytes)              \
    __attribute__((used)) type simulator_stores_##name parameters {            \
        simulator::look(pointer, bytes);                                       \
        return name arguments;                                                 \
    }
STORES(void*, memcpy, (void* to, const void* from, size_t bytes), (to, from, bytes), to, bytes)
STORES(void*, memmove, (void* to, const void* from, size_t bytes), (to, from, bytes), to, bytes)
STORES(void*, memset, (void* to, int value, size_t bytes), (to, value, bytes), to, bytes)
STORES(double, modf, (double x, double* to), (x, to), to, sizeof *to)
STORES(float, modff, (float x, float* to), (x, to), to, sizeof *to)
STORES(double, frexp, (double x, int* to), (x, to), to, sizeof *to)
STORES(float, frexpf, (float x, int* to), (x, to), to, sizeof *to)
STORES(double, remquo, (double x, double y, int* to), (x, y, to), to, sizeof *to)
STORES(float, remquof, (float x, float y, int* to), (x, y, to), to, sizeof *to)
#undef STORES
__attribute__((used)) void simulator_stores_sincos(double x, double* s, double* c) {
    simulator::look(s, sizeof *s), simulator::look(c, sizeof *c);
    sincos(x, s, c);
}
__attribute__((used)) void simulator_stores_sincosf(float x, float* s, float* c) {
    simulator::look(s, sizeof *s), simulator::look(c, sizeof *c);
    sincosf(x, s, c);
}
// Prints nothing in a graded build: %n stores, and nothing reads a graded kernel's output
__attribute__((used)) int simulator_stores_vprintf(const char* format, va_list values) {
    return simulator::stores_are_watched ? 0 : vprintf(format, values);
}
__attribute__((used)) int simulator_stores_printf(const char* format, ...) {
    va_list values;
    va_start(values, format);
    const int printed = simulator_stores_vprintf(format, values);
    va_end(values);
    return printed;
}
}
#pragma GCC visibility pop
#endif
