// phase_source.cuh - in which order a block needs its pieces: those of its share, phase by phase, step by step.
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

// These return false when the run of steps has ended. weights: of the matrix.

// Whole rows: a batch of units after the other; the units one after the other, or part by part if they come in parts.
__device__ __forceinline__ bool feed_units(const Matrix& matrix, const Range& units, const unsigned char* weights,
                                           PieceFeeder& feeder) {
    const unsigned unit_bytes = static_cast<unsigned>(matrix.unit_bytes());
    const unsigned char* batch = weights + size_t{unit_bytes} * units.begin;
    for (int first = units.begin; first < units.end; first += UNIT_BATCH, batch += UNIT_BATCH * unit_bytes) {
        const int end = min(first + UNIT_BATCH, units.end);
        const unsigned char* part = batch;
        for (int group = 0; group < matrix.groups; group += matrix.piece_groups) {
            const unsigned bytes = GROUP_BYTES * min(matrix.piece_groups, matrix.groups - group);
            const unsigned char* from = part;
            for (int unit = first; unit < end; ++unit, from += unit_bytes)
                if (!feeder.feed({from, bytes, nullptr, 0, 0})) return false;
            part += bytes;
        }
    }
    return true;
}

// Some columns of the rows of the block's slices.
__device__ __forceinline__ bool feed_slices(const Matrix& matrix, const Range& slices, const Range& groups,
                                            const unsigned char* weights, PieceFeeder& feeder) {
    for (int slice = slices.begin; slice < slices.end; ++slice) {
        const int begin = matrix.slice_begin(slice);
        const unsigned group_bytes = GROUP_BYTES * (matrix.slice_begin(slice + 1) - begin);
        if (group_bytes == 0) continue;  // of 8 slices of a narrow model
        const unsigned char* from = weights + begin * matrix.unit_bytes() + size_t{group_bytes} * groups.begin;
        for (int group = groups.begin; group < groups.end; group += matrix.piece_groups) {
            const unsigned bytes = group_bytes * min(matrix.piece_groups, groups.end - group);
            if (!feeder.feed({from, bytes, nullptr, 0, 0})) return false;
            from += bytes;
        }
    }
    return true;
}

// The block's part of the cache of its heads.
template <typename T>
__device__ __forceinline__ bool feed_tokens(const Steps& a, const StepState& state, const BlockShare& share, int layer,
                                            int step, PieceFeeder& feeder) {
    const int each = a.plan.tokens_per_piece;
    const unsigned row_bytes = static_cast<unsigned>(sizeof(T)) * a.plan.head_dim;
    for (int row = 0; row < a.model.rows; ++row) {
        const Range part = cache_part(a.model, a.plan, share.rank, state.position[row] + step);
        for (int head = share.heads.begin; head < share.heads.end; ++head) {
            if (part.count() == 0) continue;
            const T* keys = cache_row<T>(a, layer, 0, row, head, part.begin);
            const T* values = cache_row<T>(a, layer, 1, row, head, part.begin);
            for (int token = part.begin; token < part.end; token += each) {
                const unsigned bytes = row_bytes * min(each, part.end - token);
                if (!feeder.feed({keys, bytes, values, bytes, row_bytes * each})) return false;
                keys += each * a.plan.head_dim, values += each * a.plan.head_dim;
            }
        }
    }
    return true;
}

template <typename T>
__device__ __forceinline__ void feed_steps(const Steps& a, const StepState& state, const BlockShare& share,
                                           PieceFeeder& feeder) {
    const StepPlan& plan = a.plan;
    const int head_groups = plan.head_groups;
    const Range attended = {share.heads.begin * head_groups, share.heads.end * head_groups};
    const auto& matrices = plan.matrices;
    NO_UNROLL
    for (int step = 0; step < a.count; ++step) {
        if (step >= 2) {
            if (!feeder.hear(step - 2)) return;
            hopper::fence_global_for_copy_engine();  // of the cache's tokens that the readers have heard of
        }
        const unsigned char* weights = a.weights;
        NO_UNROLL
        for (int layer = 0; layer < a.model.layers; ++layer, weights += plan.layer_bytes) {
            const auto of = [&](Phase phase) { return weights + matrices[phase].weights; };
            if (!feed_units(matrices[QKV], share.units[QKV], of(QKV), feeder)) return;
            if (!feed_tokens<T>(a, state, share, layer, step, feeder)) return;
            if (!feed_slices(matrices[PROJECTION], share.slices, attended, of(PROJECTION), feeder)) return;
            if (!feed_units(matrices[EXPAND], share.units[EXPAND], of(EXPAND), feeder)) return;
            if (!feed_slices(matrices[CONTRACT], share.slices, share.inner, of(CONTRACT), feeder)) return;
        }
        if (!feed_units(matrices[LOGITS], share.units[LOGITS], weights, feeder)) return;
    }
}
