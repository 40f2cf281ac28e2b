// step_trace.cuh - when each CTA ends each phase. With -DSTEP_TRACE: see benchmarks/step_trace.cu; otherwise empty.
#pragma once
#include <cuda_runtime.h>

constexpr int TRACE_STAMPS = 8192, TRACE_CTAS = 256;
#ifdef STEP_TRACE
// [CTA][stamp]: nanoseconds of the GPU's clock * 16 + which phase has ended, for one launch
__device__ unsigned long long step_stamps[TRACE_CTAS][TRACE_STAMPS];
#endif

struct Trace {
    // NORM: an all-reduce and the layernorm; GATHER_...: waiting for the cluster
    enum Name { NORM, QKV, GATHER_QKV, ATTENTION, GATHER_STATES, PROJ, FC1, GATHER_INNER, FC2, LM_HEAD, TOKEN, NAMES };
#ifdef STEP_TRACE
    int stamps = 0;
    __device__ __forceinline__ void stamp(Name name) {
        if (threadIdx.x != 0 || stamps == TRACE_STAMPS) return;
        unsigned long long now;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        step_stamps[blockIdx.x][stamps++] = now << 4 | name;
    }
#else
    __device__ __forceinline__ void stamp(Name) {}
#endif
};
