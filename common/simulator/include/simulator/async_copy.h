// async_copy.h - the implementation of cp.async (documented in common/cuda/cp_async.cuh) and of CUDA's memcpy_async.
//
// Everything is inlined down to the call into the runtime (runtime/async_copy.cpp), so the runtime's return address is
// in the student's function.
#pragma once
#include "thread.h"

namespace simulator {

// Fills `bytes` of the destination with NaN now; the wait copies the source there, or zeros if not `inside`.
void issue_async_copy(void* destination, const void* source, unsigned bytes, bool inside, Position at);
void commit_async_copies();
// Completes the running thread's copies except those of its latest `groups` groups.
void wait_for_async_copies(unsigned groups);
void wait_for_all_async_copies();
// memcpy_async: copies the share of thread `rank` of `threads`. If owner is null, the thread's own waits complete it.
// Otherwise owner is a barrier or pipeline, and a wait for the current *stage completes it.
void issue_memcpy_async(void* to, const void* from, size_t bytes, size_t rank, size_t threads, const void* owner,
                        const unsigned* stage, Position at);
void finish_stages(const void* owner, uint64_t end);  // completes all threads' copies of the stages before `end`

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
