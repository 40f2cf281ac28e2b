// weight_pipeline.cuh - the weight pipeline: a producer thread issues TMA bulk loads far ahead of the consumer warps.
// Hopper.
//
//   PipelineBarriers, pipeline_init    full and empty mbarriers of the stages
//   Producer                           load(...) as stages are released; wait_step(); drain()
//   Consumer                           wait_for(...) the next stages, release() them
//
//     producer   load(bytes); load(bytes); ...          false: the consumers have ended; then drain()
//     consumer   stage = wait_for(); ... use it ...     release()
//
// Every consumer warp uses every stage, in the producer's order. Memory idles while the producer computes between two
// loads, so it should only add and compare.
#pragma once
#include "common/cuda/mbarrier.cuh"
#include "common/cuda/tma.cuh"
#include "common/cuda/unroll.cuh"

constexpr int MAX_STAGES = 32;

struct PipelineBarriers {
    hopper::Mbarrier full[MAX_STAGES], empty[MAX_STAGES];
    hopper::Mbarrier step_done[2];  // the consumers have ended an even step, an odd step
    unsigned ended;                 // the consumers need nothing more
};

// One thread; a __syncthreads() must follow.
__device__ __forceinline__ void pipeline_init(PipelineBarriers& barriers, int stages, unsigned consumer_warps) {
    for (int i = 0; i < stages; ++i) {
        hopper::mbarrier_init(barriers.full[i], 1);
        hopper::mbarrier_init(barriers.empty[i], consumer_warps);
    }
    hopper::mbarrier_init(barriers.step_done[0], 1), hopper::mbarrier_init(barriers.step_done[1], 1);
    barriers.ended = 0;
}

// memory [stages][stage_bytes], 128-byte aligned
struct Pipeline {
    PipelineBarriers& barriers;
    unsigned char* const memory;
    const int stages;
    const unsigned stage_bytes;
    int stage = 0;
    unsigned parity = 0;

    // Advances by `by` stages, fewer than there are
    __device__ __forceinline__ void advance(int by) {
        stage += by;
        if (stage >= stages) stage -= stages, parity ^= 1;
    }
};

struct Consumer : Pipeline {
    // The next `count` stages, all polled together; past them the last one again. count: 1 .. N
    template <int N>
    __device__ __forceinline__ void wait_for(const unsigned char* (&data)[N], int count) const {
        bool ready = true;
        UNROLL
        for (int i = 0; i < N; ++i) {
            Pipeline at = *this;
            at.advance(min(i, count - 1));
            data[i] = memory + at.stage * stage_bytes;
            ready &= hopper::mbarrier_try_wait(barriers.full[at.stage], at.parity);
        }
        if (ready) return;
        NO_UNROLL
        for (int i = 0; i < count; ++i) {
            Pipeline at = *this;
            at.advance(i);
            hopper::mbarrier_wait(barriers.full[at.stage], at.parity);
        }
    }
    // Releases the next `count` stages, at most 32.
    __device__ __forceinline__ void release(int count) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        __syncwarp();
        if (lane < count) {
            Pipeline at = *this;
            at.advance(lane);
            hopper::mbarrier_arrive(barriers.empty[at.stage]);
        }
        advance(count);
    }
    // One thread calls, after a barrier of the consumers. more: another step follows.
    __device__ __forceinline__ void end_step(int step, bool more) {
        if (!more) atomicExch(&barriers.ended, 1u);
        hopper::mbarrier_arrive(barriers.step_done[step & 1]);
    }
};

struct Producer : Pipeline {
    // Loads `bytes` from `from`, and as many from `second`, if given, to `second_at` of the stage. keep: keep `from` in
    // the L2 cache. False: the consumers have ended.
    __device__ __forceinline__ bool load(const void* from, unsigned bytes, bool keep = false,
                                         const void* second = nullptr, unsigned second_at = 0) {
        while (!hopper::mbarrier_try_wait(barriers.empty[stage], parity ^ 1))
            if (have_ended()) return false;
        hopper::Mbarrier& full = barriers.full[stage];
        unsigned char* const to = memory + stage * stage_bytes;
        hopper::mbarrier_expect(full, second ? 2 * bytes : bytes);
        if (keep)
            hopper::bulk_load_kept(to, from, bytes, full);
        else
            hopper::bulk_load_once(to, from, bytes, full);
        if (second) hopper::bulk_load_once(to + second_at, second, bytes, full);
        advance(1);
        return true;
    }
    // Waits until the consumers have ended this step; the step after the next one must not have been loaded yet. False:
    // it was their last.
    __device__ __forceinline__ bool wait_step(int step) {
        hopper::mbarrier_wait(barriers.step_done[step & 1], step >> 1 & 1);
        return !have_ended();
    }
    // Waits until no load is in flight, so that the CTA may exit. A stage before the current one was filled in this
    // round, the others in the previous one; in the first round the wait for the phase before returns at once.
    __device__ __forceinline__ void drain() {
        for (int i = 0; i < stages; ++i) hopper::mbarrier_wait(barriers.full[i], i < stage ? parity : parity ^ 1);
    }

  private:
    __device__ __forceinline__ bool have_ended() const { return atomicAdd(&barriers.ended, 0u) != 0; }
};
