// step_plan.h - how a model is laid out for the persistent kernel: who gets what, and where it lies. Host code.
//
//   1. Sizes       sizes_fit             what the kernel takes for granted
//   2. Matrices    lay_out_matrices      pieces; weights and vectors in memory
//   3. Words       lay_out_words         what all blocks share
//   4. Plan        lay_out               all of it, for so many clusters of so many blocks
#pragma once
#include <algorithm>

#include "common/kernels/gpt2/phase_block.cuh"

// ---------------------------------------------------------------------------------------------------- 1. Sizes

inline bool sizes_fit(const StepModel& model) {
    const int vector = 16 / model.element_bytes(), row = GROUP_ROW_BYTES / model.element_bytes();
    const int lanes = model.head_dim() / vector;
    return model.rows >= 1 && model.rows <= MAX_STEP_ROWS && model.width % model.heads == 0 &&
           model.head_dim() % UNIT_ROWS == 0 && lanes >= 1 && lanes <= 32 && (lanes & (lanes - 1)) == 0 &&
           model.width % row == 0 && model.hidden % row == 0 && model.width <= 4 * NORM_ITEMS * BLOCK_THREADS &&
           !(model.sampled && model.vocab > MOST_DRAWN_TOKENS);
}
static_assert(4 * NORM_ITEMS * BLOCK_THREADS <= SLICES * BLOCK_WARPS * WARP_UNITS * UNIT_ROWS, "the widest slice");

// Blocks of a cluster: as many as there are slices, fewer where a block would have none, or where `blocks` (0: as many
// as suit the GPU) are not whole clusters.
inline int cluster_of(const StepModel& model, int blocks) {
    int cluster = SLICES;
    while (cluster > 1 && (cluster > model.width / UNIT_ROWS || blocks % cluster != 0)) cluster /= 2;
    return cluster;
}

// ------------------------------------------------------------------------------------------------- 2. Matrices

// Pieces of up to 16 KB: small enough to be many, large enough for what it takes to feed one.
constexpr int MOST_GROUPS = WARP_GROUPS * BLOCK_WARPS;

inline void lay_out_matrices(StepPlan& plan, const StepModel& model) {
    const int width = model.width, hidden = model.hidden, in_group = GROUP_ROW_BYTES / model.element_bytes();
    const auto set = [&](Phase phase, int n, int groups) {
        Matrix& m = plan.matrices[phase];
        m.n = n, m.units = ceil_div(n, UNIT_ROWS), m.groups = groups;
        m.bias = m.norm = -1;
        int piece_units = 1;
        if (phase == PROJECTION || phase == CONTRACT) {
            piece_units = ceil_div(m.units, SLICES);
            m.piece_groups = std::clamp(MOST_GROUPS / piece_units, 1, PIECE_GROUPS);
        } else {
            m.piece_groups = ceil_div(groups, ceil_div(groups, MOST_GROUPS));
        }
        const int bytes = GROUP_BYTES * piece_units * m.piece_groups;
        plan.slot_bytes = std::max(plan.slot_bytes, static_cast<unsigned>(bytes));
    };
    set(QKV, 3 * width, width / in_group);
    set(PROJECTION, width, model.heads * model.head_groups());
    set(EXPAND, hidden, width / in_group);
    set(CONTRACT, width, hidden / in_group);
    set(LOGITS, model.vocab, width / in_group);
    const int token_bytes = 2 * model.head_dim() * model.element_bytes();
    plan.tokens_per_piece = std::min(static_cast<int>(plan.slot_bytes) / token_bytes, BLOCK_THREADS * 32 / token_bytes);

    int vectors = 0;
    const auto take = [&](int count) { return vectors += count, vectors - count; };
    for (int i = 0; i < LOGITS; ++i) {
        Matrix& m = plan.matrices[i];
        m.weights = plan.layer_bytes;
        plan.layer_bytes += m.units * m.unit_bytes();
        if (i == QKV || i == EXPAND) m.norm = take(2 * width);
        m.bias = take(m.n);
    }
    plan.scale = take(4);
    plan.layer_vectors = vectors;
    Matrix& head = plan.matrices[LOGITS];
    head.norm = head.weights = 0;  // behind the last layer's
    plan.vectors = model.layers * plan.layer_vectors + 2 * width;
    plan.weight_bytes = model.layers * plan.layer_bytes + head.units * head.unit_bytes();
}

// ---------------------------------------------------------------------------------------------------- 3. Words

inline void lay_out_words(StepPlan& plan, const StepModel& model) {
    Exchange& words = plan.exchange;
    const auto give = [&](int count) { return words.words += (count + 1) / 2 * 2, words.words - (count + 1) / 2 * 2; };
    words.sums = give(SUM_SETS * model.rows * model.width);
    words.best_words = model.sampled ? 4 : 2;
    words.best = give(model.rows * plan.blocks * words.best_words);
    if (!model.sampled) return;
    words.digit_parts = give(model.rows * DIGITS * plan.blocks * 4);
    words.digit_sums = give(model.rows * DIGITS * 4);
}

// ----------------------------------------------------------------------------------------------------- 4. Plan

// All but slots and shared_bytes.
inline void lay_out(StepPlan& plan, const StepModel& model, int cluster, int clusters) {
    plan.cluster = cluster, plan.clusters = clusters, plan.blocks = cluster * clusters;
    plan.sum_scale = counted::scale_for(clusters);
    plan.head_dim = model.head_dim(), plan.head_groups = model.head_groups(), plan.head_units = model.head_units();
    plan.part_units = plan.head_dim / UNIT_ROWS, plan.head_lanes = plan.head_dim * model.element_bytes() / 16;
    plan.inverse_width = 1.0 / model.width;
    lay_out_matrices(plan, model);
    for (int block = 0; block < plan.blocks; ++block) {
        BlockShare share = {};
        take_share(share, model, plan, block);
        plan.most_heads = std::max(plan.most_heads, share.heads.count());
        plan.most_inner = std::max(plan.most_inner, share.inner.count());
        plan.most_slice = std::max(plan.most_slice, share.columns.count());
        if (model.sampled) plan.draw_tokens = std::max(plan.draw_tokens, UNIT_ROWS * share.units[LOGITS].count());
    }
    lay_out_words(plan, model);
}
