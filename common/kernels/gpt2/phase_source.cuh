// phase_source.cuh - in which order a block needs its pieces: those of its units, phase by phase, step by step.
//
//   StepSource    next(piece) for PieceStream::refill; begin(step) when the block begins a step
//
// The phases walk through the same units and pieces (phase_product.cuh, phase_attention.cuh); nothing else tells them
// which piece they hold.
#pragma once
#include "common/kernels/gpt2/phase_block.cuh"
#include "common/kernels/gpt2/piece_stream.cuh"

template <typename T>
class StepSource {
public:
    __device__ __forceinline__ StepSource(const Steps& a, const StepState& state) : a_(a), state_(state) {}

    __device__ __forceinline__ void begin(int step) { now_ = step; }

    // False at the end of the next step: the block has not heard yet of what the tokens' keys and values will be then.
    __device__ __forceinline__ bool next(Piece& piece) {
        const StepPlan& plan = a_.plan;
        while (step_ < a_.count && step_ <= now_ + 1) {
            const int layer = number_ / LAYER_PHASES, kind = layer < a_.model.layers ? number_ % LAYER_PHASES : LAYER_PHASES;
            const Phase& phase = plan.phases[kind];
            if (unit_ < 0) unit_ = first_unit(plan, phase, layer), part_ = 0;
            if (unit_ >= phase.units) {
                unit_ = -1;
                if (++number_ == plan.phase_count(a_.model.layers)) number_ = 0, ++step_;
                continue;
            }
            if (kind == static_cast<int>(PhaseKind::ATTENTION) ? next_tokens(piece, layer)
                                                               : next_weights(piece, phase, layer))
                return true;
        }
        return false;
    }

private:
    __device__ __forceinline__ bool next_weights(Piece& piece, const Phase& phase, int layer) {
        const int group = part_ * phase.piece_groups;
        piece.first = a_.weights + layer * a_.plan.layer_bytes + phase.weights + unit_ * phase.unit_bytes() +
                      size_t{GROUP_BYTES} * group;
        piece.first_bytes = GROUP_BYTES * min(phase.piece_groups, phase.groups - group);
        piece.second_bytes = 0;
        if (++part_ == phase.pieces) part_ = 0, unit_ += a_.plan.blocks;
        return true;
    }
    __device__ __forceinline__ bool next_tokens(Piece& piece, int layer) {
        const CachePart part = cache_part(a_.model, a_.plan, unit_, state_.position, step_);
        const int each = a_.plan.tokens_per_piece, token = part.begin + part_ * each;
        if (token >= part.end) {
            part_ = 0, unit_ += a_.plan.blocks;
            return false;
        }
        const unsigned row_bytes = static_cast<unsigned>(sizeof(T)) * a_.model.head_dim();
        piece.first = cache_row<T>(a_, layer, 0, part.row, part.head, token);
        piece.second = cache_row<T>(a_, layer, 1, part.row, part.head, token);
        piece.first_bytes = piece.second_bytes = row_bytes * min(each, part.end - token);
        piece.second_at = row_bytes * each;
        ++part_;
        return true;
    }

    const Steps& a_;
    const StepState& state_;
    int now_ = 0, step_ = 0;
    int number_ = 0;  // of the phase in the step
    int unit_ = -1, part_ = 0;
};
