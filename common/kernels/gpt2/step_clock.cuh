// step_clock.cuh - where the time of a step goes, as the first block sees it. Off, and nothing, without STEP_CLOCK.
//
//   StepClock        begin() of a step; stamp(what) what has just been done; store() at the end
//
// Cycles between two stamps go to the second one's name; their sums over all steps to step_cycles. A stamp is of the
// first thread, so a phase is over when its first warp is done. bare/step_times.cu prints them.
#pragma once
#include <cuda_runtime.h>

#ifdef STEP_CLOCK
__device__ long long step_cycles[16];
#endif

struct StepClock {
    // STREAM: waiting for an exchange, and the layernorm. Hops: waiting for letters
    enum Name {
        STREAM,
        QKV,
        QKV_HOP,
        ATTENTION,
        STATES_HOP,
        PROJECTION,
        EXPAND,
        INNER_HOP,
        CONTRACT,
        LOGITS,
        TOKENS,
        NAMES
    };
#ifdef STEP_CLOCK
    long long last = 0, cycles[NAMES] = {};
    __device__ __forceinline__ void begin() { last = clock64(); }
    __device__ __forceinline__ void stamp(Name name) {
        const long long now = clock64();
        cycles[name] += now - last;
        last = now;
    }
    __device__ __forceinline__ void store() const {
        if (blockIdx.x != 0 || threadIdx.x != 0) return;
        for (int i = 0; i < NAMES; ++i) step_cycles[i] = cycles[i];
    }
#else
    __device__ __forceinline__ void begin() {}
    __device__ __forceinline__ void stamp(Name) {}
    __device__ __forceinline__ void store() const {}
#endif
};
