// step_phases.h - a decode step as one persistent kernel sees it (persistent_step.cu): sizes, phases, who has what.
//
//   1. Model     StepModel              the sizes of a GPT-2, and of a batch
//   2. Matrix    Matrix                 a phase's weights: where they lie, in which pieces they come
//   3. Plan      StepPlan, plan_steps   how many blocks, what lies in shared memory; whether it fits
//   4. Shares    BlockShare, take_share     what a block has of every phase
//   5. Launch    Steps, run_steps
//
// The grid is clusters of 8 blocks (of 4, 2 or 1 in tests). A head belongs to a cluster, with all that only a head
// needs, and so do some columns of the MLP's inside. A layer is
//
//   phase         a block multiplies                  who needs it       how it gets there
//   QKV           some rows of its heads' weights     its cluster        letters (cluster_mail.cuh)
//   ATTENTION     a part of its heads' tokens         its cluster        letters
//   PROJECTION    a slice of the outputs, its         all blocks         exchange: sums that count their addends, of
//                 heads' columns                                         which a block reads a slice (phase_residual.cuh)
//   EXPAND        some rows of its cluster's          its cluster        letters
//   CONTRACT      a slice of the outputs, its         all blocks         exchange
//                 cluster's columns
//
// and behind the last layer come LOGITS, rows that are shared out among all blocks, each of which hands on its largest:
// equally, since a block without a head has read less before but can begin no earlier.
//
// A unit is 8 rows of a matrix, a group 64 bytes of each of them: 512 bytes, 16 per lane. Weights lie in memory as they
// are taken (persistent_step.py packs them), K filled up to whole groups:
//
//   weights   [layers][QKV, PROJECTION, EXPAND, CONTRACT] and then LOGITS
//             QKV, EXPAND, LOGITS     [units][groups][8][64 bytes]; QKV's rows are [heads][query, key, value][head_dim]
//             PROJECTION, CONTRACT    [SLICES][groups][units of the slice][8][64 bytes]; PROJECTION's columns are
//                                     [heads][head_dim, filled up to whole groups]
//   vectors   float [layers][norm_1 weight, bias; QKV bias; PROJECTION bias; norm_2 weight, bias; EXPAND bias;
//             CONTRACT bias; scale, 0, 0, 0] and then norm weight, bias
//
// "T" is float32, float16 or bfloat16.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "common/cuda/float_type.h"
#include "common/kernels/gpt2/counted_scale.h"

namespace tagged {
struct Word;  // common/cuda/tagged_words.cuh
}

// ---------------------------------------------------------------------------------------------------- 1. Model

constexpr int UNIT_ROWS = 8, GROUP_BYTES = 512, GROUP_ROW_BYTES = GROUP_BYTES / UNIT_ROWS;
constexpr int INPUT_BYTES = 4;  // that a column of a product's input has in shared memory, of any type

// Of the input, for a group of weights of so many bytes each.
__host__ __device__ constexpr int input_group_bytes(int element_bytes) {
    return INPUT_BYTES * GROUP_ROW_BYTES / element_bytes;
}
template <typename T>
__host__ __device__ constexpr int input_group_bytes() {
    return input_group_bytes(static_cast<int>(sizeof(T)));
}

struct StepModel {
    FloatType type;
    int layers, width, heads, hidden, vocab;
    int rows;  // sequences of the batch, 1 .. MAX_STEP_ROWS
    int max_seq_len;
    bool sampled;  // tokens are drawn; else the likeliest is taken

    __host__ __device__ int head_dim() const { return width / heads; }
    __host__ __device__ int element_bytes() const { return type == FloatType::FLOAT32 ? 4 : 2; }
    __host__ __device__ int head_units() const { return 3 * head_dim() / UNIT_ROWS; }  // of QKV
    // Of PROJECTION's columns
    __host__ __device__ int head_groups() const {
        return (head_dim() * element_bytes() + GROUP_ROW_BYTES - 1) / GROUP_ROW_BYTES;
    }
};

constexpr int SLICES = 8;                    // of the outputs; the blocks of a cluster, or a multiple of them
constexpr int MAX_CLUSTERS = 32;
constexpr int DIGITS = 128, DRAW_TAGS = 32;  // values of a digit; tags that drawing takes (phase_draw.cuh)
constexpr int MOST_DRAWN_TOKENS = 1 << 18;   // of a vocabulary from which tokens are drawn

// --------------------------------------------------------------------------------------------------- 2. Matrix

enum Phase { QKV, PROJECTION, EXPAND, CONTRACT, LOGITS, MATRICES };  // ATTENTION has no matrix

// Of the first layer; the other layers' lie StepPlan::layer_bytes and layer_vectors further on.
struct Matrix {
    int n, units, groups;  // numbers that come out, [n][groups * 64 bytes] weights
    // As what units pass through the stream. QKV, EXPAND, LOGITS: one by one, in parts of so many groups. PROJECTION,
    // CONTRACT: so many groups of all units of a slice.
    int piece_groups;
    size_t weights;        // bytes from the beginning of all weights
    int bias;              // floats from the beginning of all vectors; -1: none
    int norm;              // the same of weight and bias of the layernorm before it; -1: none

    __host__ __device__ size_t unit_bytes() const { return size_t{GROUP_BYTES} * groups; }
    __host__ __device__ int slice_begin(int slice) const { return units * slice / SLICES; }  // units
};

// ----------------------------------------------------------------------------------------------------- 3. Plan

// 64-bit words of a step that all blocks share; numbers of words from the beginning of all.
constexpr int SUM_SETS = 3;  // one for PROJECTION, and for CONTRACT two in turn
struct Exchange {
    int sums;        // counted [SUM_SETS][rows][width]; zero when a launch begins
    int best;        // tagged [rows][blocks][best_words]: value and token of the largest logit; smallest, 0
    int best_words;  // 2, sampled 4
    int digit_parts;  // sampled: tagged [rows][DIGITS][blocks][4]: count, sum of token numbers; weight, 64 bits
    int digit_sums;   // sampled: tagged [rows][DIGITS][4]: the same of all blocks
    int words;        // of all
};

struct StepPlan {
    bool fits;
    int blocks, cluster, clusters;  // in all, blocks of a cluster, and how many of these
    Matrix matrices[MATRICES];
    size_t layer_bytes, weight_bytes;
    int layer_vectors, vectors;
    double inverse_width;
    int scale;  // of the attention's scores, floats from the beginning of a layer's vectors
    Exchange exchange;
    counted::Scale sum_scale;
    int head_dim, head_groups, head_units;  // what the model's functions say
    int part_units;  // of QKV: of a head's queries; a power of 2
    int head_lanes;  // that have a key or a value, 16 bytes each; a power of 2
    int most_heads, most_inner;  // of a cluster: heads, groups of CONTRACT's columns
    int most_slice;              // of a block: columns of the residual stream that it reads
    int slots;
    unsigned slot_bytes;
    int tokens_per_piece;  // of keys and values
    int draw_tokens;       // of the vocabulary, that a block has logits of, at most; sampled
    int shared_bytes;

    // Of a step: one for LOGITS, and behind it those of drawing.
    __host__ __device__ int tag_count(const StepModel& model) const { return 1 + (model.sampled ? DRAW_TAGS : 0); }
};

// most_blocks: 0 for as many as suit the GPU. If it does not fit, `fits` is false and the rest of no meaning.
StepPlan plan_steps(const StepModel& model, int most_blocks);

// --------------------------------------------------------------------------------------------------- 4. Shares

struct Range {
    int begin, end;
    __host__ __device__ int count() const { return end - begin; }
};

// Part `part` of begin ... end - 1 in so many parts, as equal as may be.
__host__ __device__ inline Range part_of(Range all, int parts, int part) {
    return {all.begin + all.count() * part / parts, all.begin + all.count() * (part + 1) / parts};
}

struct BlockShare {
    int cluster, rank;     // which cluster, which block of it
    Range heads, inner;    // of the cluster: heads, groups of CONTRACT's columns
    Range units[MATRICES];  // of QKV, EXPAND and LOGITS
    Range slices;          // of PROJECTION and CONTRACT
    Range columns;         // of the residual stream that the block reads: those of its slices
    int expand_begin;      // the cluster's first unit of EXPAND
};

__host__ __device__ inline void take_share(BlockShare& s, const StepModel& model, const StepPlan& plan, int block) {
    const int rank = block % plan.cluster, cluster = block / plan.cluster;
    const auto of_cluster = [&](int count) { return part_of({0, count}, plan.clusters, cluster); };
    const auto put = [](Range& to, int begin, int end) { to.begin = begin, to.end = end; };
    const auto put_mine = [&](Range& to, int begin, int end) {
        const Range mine = part_of({begin, end}, plan.cluster, rank);
        put(to, mine.begin, mine.end);
    };
    const Matrix& contract = plan.matrices[CONTRACT];
    const int inner_units = GROUP_ROW_BYTES / model.element_bytes() / UNIT_ROWS;  // of EXPAND for a group of CONTRACT
    const Range heads = of_cluster(model.heads), inner = of_cluster(contract.groups);
    const Range logits = of_cluster(plan.matrices[LOGITS].units);
    s.cluster = cluster, s.rank = rank;
    put(s.heads, heads.begin, heads.end);
    put(s.inner, inner.begin, inner.end);
    s.expand_begin = inner.begin * inner_units;
    put_mine(s.units[QKV], heads.begin * model.head_units(), heads.end * model.head_units());
    put_mine(s.units[EXPAND], s.expand_begin, inner.end * inner_units);
    put_mine(s.units[LOGITS], logits.begin, logits.end);
    put_mine(s.slices, 0, SLICES);
    put(s.columns, UNIT_ROWS * contract.slice_begin(s.slices.begin), UNIT_ROWS * contract.slice_begin(s.slices.end));
}

// --------------------------------------------------------------------------------------------------- 5. Launch

struct Steps {
    StepModel model;
    StepPlan plan;
    const unsigned char* weights;
    const float* vectors;
    const void *wte, *wpe;  // T [vocab, width], [context, width]
    int context;
    float eps;
    void* cache;  // T [layers][keys, values][batch][heads][max_seq_len][head_dim]
    int batch;    // of the cache, of which the first `rows` are used
    tagged::Word* words;  // [exchange.words]
    float* logits;      // [rows, vocab]; or nullptr, unless sampled

    int *positions, *lengths, *steps, *finished;  // [rows]; see NextToken in gpt2.h
    const int* stop;                              // [1], a token; -1: none
    int* history;                                 // [history_steps, rows]
    int history_steps;
    const double* uniforms;                // sampled: [history_steps, rows], a number for each token: see sampling.py,
    const double *temperature, *top_p;     // as for these, [1]
    const int64_t* top_k;                  // [1]
    int* arrived;       // [history_steps, rows] of host memory that the device reaches: the same tokens as they come
    const int* cancel;  // [1] of such memory: ends the run behind the step in which it is no longer 0
    int count;          // steps
    unsigned first_tag;  // the run uses those from here on to first_tag + count * tag_count() - 1; none twice
    cudaStream_t stream;
};

constexpr int NO_TOKEN = -2;  // instead of one in `arrived` and `history`: the logits are no numbers

// `count` steps, fewer if all sequences have come to their stop token or `cancel` is set. Token number steps[] - 1 of
// the history is the first one's input. Behind it positions, lengths and steps have moved on by the number of steps; a
// sequence that is finished goes on with the others, and what it makes is for nobody. A step that makes NO_TOKEN, for
// any sequence, is the last one.
void run_steps(const Steps& steps);
