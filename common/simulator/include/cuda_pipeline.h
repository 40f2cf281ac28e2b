// cuda_pipeline.h - the __pipeline_* functions: cp.async as function calls.
#pragma once
#include <cuda_runtime.h>

#include "simulator/async_copy.h"

SIMULATOR_ASYNC __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0,
                                        simulator::Position at = simulator::here()) {
    if (bytes != 4 && bytes != 8 && bytes != 16)
        simulator::fail("%s:%d: __pipeline_memcpy_async copies 4, 8 or 16 bytes, not %zu", at.file, at.line, bytes);
    if (zeros && zeros != bytes)
        simulator::fail("%s:%d: the simulator fills all of a copy with zeros or nothing", at.file, at.line);
    simulator::issue_async_copy(to, from, static_cast<unsigned>(bytes), zeros == 0, at);
}
SIMULATOR_ASYNC __pipeline_commit() { simulator::commit_async_copies(); }
SIMULATOR_ASYNC __pipeline_wait_prior(unsigned groups) { simulator::wait_for_async_copies(groups); }
