// async_copy.h - cp.async behind common/cuda/cp_async.cuh, which says what each function does, and memcpy_async behind
// CUDA's own headers.
//
// The calls go straight from the student's function to the runtime (runtime/async_copy.cpp), so that there the return
// address names the place in the program.
#pragma once
#include "thread.h"

namespace simulator {

// `bytes` of the destination become NaN now; at the wait they become those at `source`, or zeros unless `inside`.
void issue_async_copy(void* destination, const void* source, unsigned bytes, bool inside, Position at);
void commit_async_copies();
// Finishes the running thread's copies but for its latest `groups` groups.
void wait_for_async_copies(unsigned groups);
void wait_for_all_async_copies();
// memcpy_async: of `bytes` the share of thread `rank` of `threads`. Without an owner it is for the thread's own waits,
// as above. Else it is a barrier's or pipeline's, and belongs to the present *stage, until that has been waited for.
void issue_memcpy_async(void* to, const void* from, size_t bytes, size_t rank, size_t threads, const void* owner,
                        const unsigned* stage, Position at);
void finish_stages(const void* owner, uint64_t end);  // all stages before `end`, of all threads

#ifdef SIMULATOR_CHECKED
// Before the destination becomes NaN (source: null for zeros), and after the data have arrived. own: the running thread
// has started the copy, and waits for it. return_address is in the student's function.
void check_async_issue(void* destination, const void* source, size_t bytes, const void* return_address);
void check_async_done(void* destination, size_t bytes, bool own, const void* return_address);
#endif

}  // namespace simulator

#define SIMULATOR_ASYNC __attribute__((always_inline)) inline void
template <int BYTES>
SIMULATOR_ASYNC cp_async_zfill(void* destination, const void* source, bool inside,
                               simulator::Position at = simulator::here()) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16);
    simulator::issue_async_copy(destination, source, BYTES, inside, at);
}
template <int BYTES>
SIMULATOR_ASYNC cp_async(void* destination, const void* source, simulator::Position at = simulator::here()) {
    cp_async_zfill<BYTES>(destination, source, true, at);
}
SIMULATOR_ASYNC cp_async_commit() { simulator::commit_async_copies(); }
template <int N>
SIMULATOR_ASYNC cp_async_wait() {
    static_assert(N >= 0);
    simulator::wait_for_async_copies(N);
}
SIMULATOR_ASYNC cp_async_wait_all() { simulator::wait_for_all_async_copies(); }
