// phase_block.cuh - what the parts of the persistent kernel share: a block's shared memory, and its units.
//
//   BLOCK_WARPS, UNIT_BATCH       sizes
//   BlockMemory                   shared memory by name; memory_of(plan) says how large it is
//   StepState                     what a block knows of the step: tokens, positions, whether it is the last one
//   block_sync                    the warps that compute meet
//   UnitRun, next_run             the block's units of a phase
//   CachePart, cache_part         which tokens of the cache a unit of ATTENTION passes through the stream
#pragma once
#include "common/cuda/check.h"
#include "common/cuda/tagged_words.cuh"
#include "common/kernels/gpt2/gpt2.h"
#include "common/kernels/gpt2/step_phases.h"

constexpr int BLOCK_WARPS = 8, BLOCK_THREADS = 32 * BLOCK_WARPS;  // that compute
constexpr int KERNEL_THREADS = BLOCK_THREADS + 128;  // and a warpgroup; one thread of it feeds them (phase_source.cuh)
constexpr int BLOCK_REGISTERS = 232, FEED_REGISTERS = 40;  // of 3 warpgroups that begin with 168 each
constexpr int UNIT_BATCH = 8;               // units whose sums meet at once: 64 numbers of a sequence, 2 for each lane
constexpr int NORM_ITEMS = 2;               // pieces of 4 columns of a row that a thread normalises, at most
static_assert(MAX_STEP_ROWS <= BLOCK_WARPS, "a warp for each sequence's outputs");

// __syncthreads() of the warps that compute.
__device__ __forceinline__ void block_sync() { asm volatile("bar.sync 1, %0;" ::"n"(BLOCK_THREADS) : "memory"); }

struct Moments {
    double sum, squares;
};

struct StepState {
    int token[MAX_STEP_ROWS];     // the step's inputs
    int position[MAX_STEP_ROWS];  // of the first step's; those of step t lie t further on
    bool finished[MAX_STEP_ROWS];
    bool cancelled;
    float largest[MAX_STEP_ROWS], smallest[MAX_STEP_ROWS];  // of the step's logits; sampled
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
// DrawMemory begins where `high` does: it is used between two steps, when nothing else but the slots is.
//
// input_stride: 64 bytes more than a multiple of 128, so that two rows lie in different banks.
struct DrawMemory {
    unsigned long long *places, *weights;         // [rows][draw_tokens], of the block's logits
    unsigned long long* digit_weight;             // [rows][DIGITS]
    unsigned *digit_count, *digit_token;          // [rows][DIGITS]
    int bytes;
};
struct BlockMemory {
    unsigned char *slots, *high, *low;
    float *residual, *partial, *states;
    Moments* moments;
    int high_stride, low_stride;
    int partial_floats;  // of one batch
    int bytes;
};

// begin: of `high`.
__host__ __device__ inline DrawMemory draw_memory_of(unsigned char* begin, int rows, int draw_tokens) {
    DrawMemory m = {};
    m.places = reinterpret_cast<unsigned long long*>(begin);
    m.weights = m.places + rows * draw_tokens;
    m.digit_weight = m.weights + rows * draw_tokens;
    m.digit_count = reinterpret_cast<unsigned*>(m.digit_weight + rows * DIGITS);
    m.digit_token = m.digit_count + rows * DIGITS;
    m.bytes = 16 * rows * (draw_tokens + DIGITS);
    return m;
}

__host__ __device__ inline BlockMemory memory_of(unsigned char* memory, const StepModel& model, const StepPlan& plan) {
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
    m.slots = take(plan.slots * static_cast<int>(plan.slot_bytes));
    const int behind_slots = m.bytes;
    m.high = take(model.rows * m.high_stride);
    m.low = take(model.element_bytes() == 2 ? model.rows * m.low_stride : 0);
    m.residual = reinterpret_cast<float*>(take(4 * model.rows * model.width));
    m.partial = reinterpret_cast<float*>(take(4 * 2 * m.partial_floats));
    m.states = reinterpret_cast<float*>(take(4 * BLOCK_WARPS * (model.head_dim() + 2)));
    m.moments = reinterpret_cast<Moments*>(take(static_cast<int>(sizeof(Moments)) * model.rows * BLOCK_WARPS));
    const int with_draw = behind_slots + draw_memory_of(nullptr, model.rows, plan.draw_tokens).bytes;
    if (model.sampled && with_draw > m.bytes) m.bytes = with_draw;
    return m;
}

struct UnitRun {
    int first, count;
};
// begin: the block in which the phase's first run is, 0 for a step's first phase; becomes that of the next phase.
__device__ __forceinline__ UnitRun next_run(const StepPlan& plan, const Phase& phase, int& begin) {
    int number = static_cast<int>(blockIdx.x) - begin;
    if (number < 0) number += plan.blocks;
    begin += phase.extra;
    if (begin >= plan.blocks) begin -= plan.blocks;
    return {number * phase.each + min(number, phase.extra), phase.each + (number < phase.extra)};
}

// A unit of ATTENTION, and the tokens begin ... end - 1 of its sequence's cache. The parts of a head cover all tokens
// but the newest two. The newest is not there yet when pieces are asked for, and of the one before it nobody has heard
// who asks a step ahead; the last part reads these itself.
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
