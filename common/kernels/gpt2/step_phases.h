// step_phases.h - a decode step as a list of phases, which one persistent kernel works off (persistent_step.cu).
//
//   1. Model     StepModel              the sizes of a GPT-2, and of a batch
//   2. Phase     Phase                  one entry of the list: which units of work, where its weights lie
//   3. Plan      StepPlan, plan_steps   how many blocks, what lies in shared memory; whether it fits
//   4. Launch    Steps, run_steps
//
// A layer is five phases, and behind the last layer comes the head:
//
//       phase         reads                         computes                            hands on
//   0   QKV           residual stream               layernorm, product, bias            queries, keys, values
//   1   ATTENTION     queries, new key and value    a part of the cache of one head     a state for each part
//   2   PROJECTION    states                        merged; product, bias               residual stream +=
//   3   EXPAND        residual stream               layernorm, product, bias, gelu      hidden
//   4   CONTRACT      hidden                        product, bias                       residual stream +=
//       ... of all layers
//   5   LOGITS        residual stream               layernorm, product                  each block's largest
//
// The next step's first phase finds the largest of all, which is the token, and begins with its embedding. Where tokens
// are drawn the blocks find it together (phase_draw.cuh), between LOGITS and the next step.
//
// A phase is divided into units: 8 rows of a weight matrix with all their columns, or, of ATTENTION, a part of the
// cache of one head of one sequence. Each block has a run of neighbouring units, one more in some blocks than in
// others. The next phase's longer runs begin with the block behind the last of these, so that all get equally much in
// the long run.
//
// Weights lie in memory as the warps take them (persistent_step.py packs them):
//
//   weights   [layers][QKV, PROJECTION, EXPAND, CONTRACT] and then LOGITS, each [units][groups][8][64 bytes]
//             a group is 64 bytes of each of the unit's 8 rows: 512 bytes, 16 per lane
//   vectors   float [layers][norm_1 weight, bias; QKV bias; PROJECTION bias; norm_2 weight, bias; EXPAND bias;
//             CONTRACT bias; scale, 0, 0, 0] and then norm weight, bias
//
// "T" is float32, float16 or bfloat16. What the phases hand on are tagged words (common/cuda/tagged_words.cuh):
// PER_WORD = 4 / sizeof(T) elements of type T in each, or one float.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "common/cuda/float_type.h"

namespace tagged {
struct Word;  // common/cuda/tagged_words.cuh
}

// ---------------------------------------------------------------------------------------------------- 1. Model

struct StepModel {
    FloatType type;
    int layers, width, heads, hidden, vocab;
    int rows;  // sequences of the batch, 1 .. MAX_STEP_ROWS
    int max_seq_len;
    bool sampled;  // tokens are drawn; else the likeliest is taken

    __host__ __device__ int head_dim() const { return width / heads; }
    __host__ __device__ int element_bytes() const { return type == FloatType::FLOAT32 ? 4 : 2; }
    __host__ __device__ int per_word() const { return 4 / element_bytes(); }
};

constexpr int UNIT_ROWS = 8, GROUP_BYTES = 512, GROUP_ROW_BYTES = GROUP_BYTES / UNIT_ROWS;
constexpr int DIGITS = 128, DRAW_TAGS = 32;     // values of a digit; tags that drawing takes (phase_draw.cuh)
constexpr int MOST_DRAWN_TOKENS = 1 << 18;      // of a vocabulary from which tokens are drawn

// ---------------------------------------------------------------------------------------------------- 2. Phase

enum class PhaseKind { QKV, ATTENTION, PROJECTION, EXPAND, CONTRACT, LOGITS };
constexpr int LAYER_PHASES = 5;

// Of the first layer; the other layers' lie StepPlan::layer_bytes and layer_vectors further on.
struct Phase {
    int units;
    int each, extra;  // units of every block, and how many blocks have one more
    int n, k;         // of the product: [n][k] weights
    int groups;       // of a unit
    int piece_units, piece_groups;  // as which units pass through the stream: whole ones, a power of 2, or one in parts
    size_t weights;            // bytes from the beginning of all weights
    int bias;                  // floats from the beginning of all vectors; -1: none
    int norm;                  // the same of weight [k] and bias [k] of the layernorm before it; -1: none

    __host__ __device__ size_t unit_bytes() const { return size_t{GROUP_BYTES} * groups; }
};

// ----------------------------------------------------------------------------------------------------- 3. Plan

// Tagged words of a step, by what they hand on; numbers of words from the beginning of all.
struct Exchange {
    int attended;   // residual stream behind PROJECTION   float [rows][width]
    int residual;   // residual stream behind CONTRACT     float [rows][width]
    int qkv;        // T [rows][3 width]
    int states;     // float [rows][heads][splits][head_dim + 2]: a sum of values, then m and l (attention_states.cuh)
    int activated;  // T [rows][hidden]
    int best;       // [rows][blocks][best_words]: value and token of the largest logit; sampled: the smallest logit, 0
    int best_words;   // 2, sampled 4
    int digit_parts;  // sampled: [rows][DIGITS][blocks][4]: count, sum of token numbers; weight, 64 bits
    int digit_sums;   // sampled: [rows][DIGITS][4]: the same of all blocks
    int words;      // of all
};

struct StepPlan {
    bool fits;
    int blocks;
    int splits;  // parts of a head's cache
    Phase phases[LAYER_PHASES + 1];
    int logits_begin;  // the block in which the first run of LOGITS is
    size_t layer_bytes, weight_bytes;
    int layer_vectors, vectors;
    int scale;  // of the attention's scores, floats from the beginning of a layer's vectors
    Exchange exchange;
    int slots;
    unsigned slot_bytes;
    int tokens_per_piece;  // of keys and values
    int draw_tokens;       // of the vocabulary, that a block has logits of; sampled
    int shared_bytes;

    __host__ __device__ int phase_count(int layers) const { return LAYER_PHASES * layers + 1; }
    // Of a step: one for each phase, and behind them those of drawing.
    __host__ __device__ int tag_count(const StepModel& model) const {
        return phase_count(model.layers) + (model.sampled ? DRAW_TAGS : 0);
    }
};

// most_blocks, splits: 0 for as many as suit the GPU. If it does not fit, `fits` is false and the rest of no meaning.
StepPlan plan_steps(const StepModel& model, int most_blocks, int splits);

// --------------------------------------------------------------------------------------------------- 4. Launch

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

// `count` steps, fewer if all sequences have come to their stop token or `cancel` is set. Token number steps[] - 1 of
// the history is the first one's input. Behind it positions, lengths and steps have moved on by the number of steps; a
// sequence that is finished goes on with the others, and what it makes is for nobody.
void run_steps(const Steps& steps);
