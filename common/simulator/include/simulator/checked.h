// checked.h - the checked build (SIMULATOR_CHECKED): what compiled code reports to the checker besides loads and
// stores.
//
// Kernels are compiled with -fsanitize=thread -fsanitize-coverage=trace-pc. The compiler then emits a call such as
// __tsan_read4(address) before every load and store, and __sanitizer_cov_trace_pc() in every basic block. The runtime
// implements these functions itself (runtime/checked.cpp) instead of linking the sanitizers' libraries.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "variable.h"

// Kernels' calls to these three go through the checker. (Compilers also emit them for struct copies.)
#if defined(SIMULATOR_CHECKED) && !defined(SIMULATOR_RUNTIME)
extern "C" {
void* memcpy(void*, const void*, size_t) noexcept __asm__("simulator_memcpy");
void* memmove(void*, const void*, size_t) noexcept __asm__("simulator_memmove");
void* memset(void*, int, size_t) noexcept __asm__("simulator_memset");
}
#endif

namespace simulator {

struct Position;

// The tensors of one operator call: check_tensor_begin() for each, check_tensors_end() when the operator is done. Every
// build defines both, so that one object file of a binding links with any of them; without the checker they do nothing.
void check_tensor_begin(const char* name, const void* address, unsigned element_bytes, const int64_t* shape, int rank,
                        bool initialized);
void check_tensors_end();

// Called by cudaMalloc() and cudaFree(). A freed range is never reused, so later accesses are recognized as use after
// free. check_freed() returns false for an address that is not (or no longer) allocated.
void check_allocated(const void* address, size_t bytes, bool initialized, Position at);
bool check_freed(const void* address, Position at);
void check_written_by_host(const void* address, size_t bytes);  // cudaMemcpy(), cudaMemset()

// check_atomic: a read-modify-write by this thread, called from the student's function. check_fence: __threadfence()
// or __threadfence_block().
void check_atomic(const void* address, size_t bytes, bool reads = true);
void check_compare_and_swap(const void* address);  // before check_atomic()
void check_fence(bool device);  // false: block scope

// One warp's tensor core operations.
void check_tensor_work(unsigned flops);

// A __shared__ variable at namespace scope is outside the arena.
void check_dynamic_shared(const void* start, const char* name, unsigned element_bytes);

}  // namespace simulator
