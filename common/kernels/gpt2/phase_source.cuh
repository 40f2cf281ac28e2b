// phase_source.cuh - in which order a block needs its pieces: those of its units, phase by phase, step by step.
//
//   feed_steps     by one thread of the feeding warp, until the run ends
//
// The phases walk through the same units and pieces (phase_product.cuh, phase_attention.cuh); nothing else tells them
// which piece they hold. A step's weights depend on nothing; of the cache it needs what was written two steps before
// and earlier, so the feeder is at most a step ahead of what the readers have told it.
#pragma once
#include "common/cuda/hopper_tiles.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/gpt2/phase_block.cuh"
#include "common/kernels/gpt2/piece_stream.cuh"

// The run's units of weights; false: the run of steps has ended. weights: of the phase.
__device__ __forceinline__ bool feed_weights(const Phase& phase, const UnitRun& run, const unsigned char* weights,
                                             PieceFeeder& feeder) {
    const unsigned char* from = weights + run.first * phase.unit_bytes();
    for (int unit = 0; unit < run.count; unit += phase.piece_units) {
        const int units = min(phase.piece_units, run.count - unit);
        for (int group = 0; group < phase.groups; group += phase.piece_groups) {
            const unsigned bytes = GROUP_BYTES * units * min(phase.piece_groups, phase.groups - group);
            if (!feeder.feed({from, bytes, nullptr, 0, 0})) return false;
            from += bytes;
        }
    }
    return true;
}

// The run's parts of the cache.
template <typename T>
__device__ __forceinline__ bool feed_tokens(const Steps& a, const StepState& state, const UnitRun& run, int layer,
                                            int step, PieceFeeder& feeder) {
    const int each = a.plan.tokens_per_piece;
    const unsigned row_bytes = static_cast<unsigned>(sizeof(T)) * a.model.head_dim();
    for (int unit = run.first; unit < run.first + run.count; ++unit) {
        const CachePart part = cache_part(a.model, a.plan, unit, state.position, step);
        if (part.begin == part.end) continue;
        const T* keys = cache_row<T>(a, layer, 0, part.row, part.head, part.begin);
        const T* values = cache_row<T>(a, layer, 1, part.row, part.head, part.begin);
        for (int token = part.begin; token < part.end; token += each) {
            const unsigned bytes = row_bytes * min(each, part.end - token);
            if (!feeder.feed({keys, bytes, values, bytes, row_bytes * each})) return false;
            keys += each * a.model.head_dim(), values += each * a.model.head_dim();
        }
    }
    return true;
}

template <typename T>
__device__ __forceinline__ void feed_steps(const Steps& a, const StepState& state, PieceFeeder& feeder) {
    const StepPlan& plan = a.plan;
    NO_UNROLL
    for (int step = 0; step < a.count; ++step) {
        if (step >= 2) {
            if (!feeder.hear(step - 2)) return;
            hopper::fence_global_for_copy_engine();  // of the cache's tokens that the readers have heard of
        }
        int begin = 0;
        const unsigned char* layer_weights = a.weights;
        NO_UNROLL
        for (int layer = 0; layer < a.model.layers; ++layer, layer_weights += plan.layer_bytes) {
            NO_UNROLL
            for (int kind = 0; kind < LAYER_PHASES; ++kind) {
                const Phase& phase = plan.phases[kind];
                const UnitRun run = next_run(plan, phase, begin);
                const bool more = kind == static_cast<int>(PhaseKind::ATTENTION)
                                      ? feed_tokens<T>(a, state, run, layer, step, feeder)
                                      : feed_weights(phase, run, layer_weights + phase.weights, feeder);
                if (!more) return;
            }
        }
        const Phase& head = plan.phases[LAYER_PHASES];
        if (!feed_weights(head, next_run(plan, head, begin), layer_weights, feeder)) return;
    }
}
