// phase_block.cuh - what the parts of the persistent kernel share: a block's shared memory, and which units are its own.
//
//   BLOCK_WARPS, UNIT_BATCH       sizes
//   BlockMemory                   shared memory by name; memory_of(plan) says how large it is
//   StepState                     what a block knows of the step: tokens, positions, whether it is the last one
//   first_unit                    the block's units of a phase are first_unit(), first_unit() + blocks, ...
//   CachePart, cache_part         which tokens of the cache a unit of ATTENTION passes through the stream
#pragma once
#include "common/cuda/check.h"
#include "common/cuda/tagged_words.cuh"
#include "common/kernels/gpt2/gpt2.h"
#include "common/kernels/gpt2/step_phases.h"

constexpr int BLOCK_WARPS = 8, BLOCK_THREADS = 32 * BLOCK_WARPS;
constexpr int ISSUER = BLOCK_THREADS - 32;  // the thread that asks for pieces; its warp has no outputs to finish
constexpr int UNIT_BATCH = 8;               // units whose sums meet at once: 64 numbers of a sequence, 2 for each lane
constexpr int NORM_ITEMS = 2;               // pieces of 4 columns of a row that a thread normalises, at most
static_assert(MAX_STEP_ROWS < BLOCK_WARPS, "a warp for each sequence's outputs, and the issuer's");

struct Moments {
    double sum, squares;
};

struct StepState {
    int token[MAX_STEP_ROWS];     // the step's inputs
    int position[MAX_STEP_ROWS];  // of the first step's; those of step t lie t further on
    bool finished[MAX_STEP_ROWS];
    bool cancelled;
};

// Dynamic shared memory, one part behind the other:
//
//   slots      [slots][slot_bytes]               pieces of weights and of the cache
//   high       T [rows][input_stride bytes]      a product's input, rounded to T
//   low        T [rows][input_stride bytes]      16 bits: what rounding took away, where the input is a layernorm's or
//                                                merged from states
//   residual   float [rows][width]               residual stream as the phase's layernorm found it
//   partial    float [2][BLOCK_WARPS][UNIT_BATCH][rows][8]       sums of warps, of two batches in turn
//   states     float [BLOCK_WARPS][head_dim] and [BLOCK_WARPS][2]     ATTENTION: the warps' o, and m and l
//   moments    Moments [rows][BLOCK_WARPS]       of a row's columns
//
// input_stride: 64 bytes more than a multiple of 128, so that two rows lie in different banks.
struct BlockMemory {
    unsigned char *slots, *high, *low;
    float *residual, *partial, *states;
    Moments* moments;
    int high_stride, low_stride;
    int partial_floats;  // of one batch
    int bytes;
};

__host__ __device__ inline BlockMemory memory_of(unsigned char* memory, const StepModel& model, int slots,
                                                 unsigned slot_bytes) {
    BlockMemory m = {};
    const auto take = [&](int bytes) {
        unsigned char* const begin = memory + m.bytes;
        m.bytes += (bytes + 15) / 16 * 16;
        return begin;
    };
    const auto stride = [&](int columns) { return (columns * model.element_bytes() + 127) / 128 * 128 + 64; };
    m.high_stride = stride(model.hidden > model.width ? model.hidden : model.width);
    m.low_stride = stride(model.width);
    m.partial_floats = BLOCK_WARPS * UNIT_BATCH * model.rows * UNIT_ROWS;
    m.slots = take(slots * static_cast<int>(slot_bytes));
    m.high = take(model.rows * m.high_stride);
    m.low = take(model.element_bytes() == 2 ? model.rows * m.low_stride : 0);
    m.residual = reinterpret_cast<float*>(take(4 * model.rows * model.width));
    m.partial = reinterpret_cast<float*>(take(4 * 2 * m.partial_floats));
    m.states = reinterpret_cast<float*>(take(4 * BLOCK_WARPS * (model.head_dim() + 2)));
    m.moments = reinterpret_cast<Moments*>(take(static_cast<int>(sizeof(Moments)) * model.rows * BLOCK_WARPS));
    return m;
}

__device__ __forceinline__ int first_unit(const StepPlan& plan, const Phase& phase, int layer) {
    const int begin = (layer * plan.layer_units + phase.units_before) % plan.blocks;
    const int unit = static_cast<int>(blockIdx.x) - begin;
    return unit < 0 ? unit + plan.blocks : unit;
}

// A unit of ATTENTION, and the tokens begin ... end - 1 of its sequence's cache. The parts of a head cover all tokens but
// the newest two. The newest is not there yet when pieces are asked for, and of the one before it nobody has heard who
// asks a step ahead; the last part reads these itself.
struct CachePart {
    int row, head, split;
    int begin, end;
};
__device__ __forceinline__ CachePart cache_part(const StepModel& model, const StepPlan& plan, int unit,
                                                const int (&position)[MAX_STEP_ROWS], int step) {
    CachePart part;
    part.split = unit % plan.splits;
    part.head = unit / plan.splits % model.heads;
    part.row = unit / (plan.splits * model.heads);
    const int newest = min(position[part.row] + step, model.max_seq_len), tokens = max(newest - 1, 0);
    const int each = ceil_div(tokens, plan.splits);
    part.begin = min(part.split * each, tokens);
    part.end = min(part.begin + each, tokens);
    return part;
}

// Row `token` of a head's keys (which = 0) or values (1).
template <typename T>
__device__ __forceinline__ T* cache_row(const Steps& a, int layer, int which, int row, int head, int token) {
    const int64_t index = ((int64_t{layer} * 2 + which) * a.batch + row) * a.model.heads + head;
    return static_cast<T*>(a.cache) + (index * a.model.max_seq_len + token) * a.model.head_dim();
}
