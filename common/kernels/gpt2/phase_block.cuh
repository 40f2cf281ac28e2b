// phase_block.cuh - what the parts of the persistent kernel share: a block's shared memory.
//
//   BLOCK_WARPS, UNIT_BATCH       sizes
//   StepState                     what a block knows of the step: tokens, positions, whether it is the last one
//   BlockMemory                   shared memory by name; lay_out_memory() says how large it is
//   Boxes, boxes_init             what comes from the other blocks of the cluster
//   rows_of, Known                sequences, and what else the compiler may know
//   block_sync                    the warps that compute meet
//   cache_part, cache_row         which tokens of the cache the block passes through the stream
#pragma once
#include "common/cuda/check.h"
#include "common/cuda/tagged_words.cuh"
#include "common/kernels/gpt2/cluster_mail.cuh"
#include "common/kernels/gpt2/gpt2.h"
#include "common/kernels/gpt2/step_phases.h"

constexpr int BLOCK_WARPS = 8, BLOCK_THREADS = 32 * BLOCK_WARPS;  // that compute
constexpr int KERNEL_THREADS = BLOCK_THREADS + 128;  // and a warpgroup; one thread of it feeds them (phase_source.cuh)
constexpr int BLOCK_REGISTERS = 224, FEED_REGISTERS = 56;  // of 3 warpgroups that begin with 168 each
constexpr int UNIT_BATCH = 8;   // units whose sums meet at once: 64 numbers of a sequence, 2 for each lane
constexpr int NORM_ITEMS = 2;   // pieces of 4 columns of a row that a thread normalises, at most
constexpr int UNITS_AT_ONCE = 4, PIECES_AT_ONCE = 2;  // that a warp multiplies together: whole rows; of slices
constexpr int PIECE_GROUPS = 2;  // of a piece of a slice, at most
constexpr int WARP_GROUPS = 4;  // of a piece of whole rows, at most; a piece has BLOCK_WARPS times as many
constexpr int WARP_UNITS = 4;   // of a slice, at most; a slice has BLOCK_WARPS times as many
constexpr int STATE_PAD = 4;    // floats behind a state's head_dim: m, l, 0, 0
static_assert(MAX_STEP_ROWS <= BLOCK_WARPS, "a warp for each sequence's outputs");

// __syncthreads() of the warps that compute.
__device__ __forceinline__ void block_sync() { asm volatile("bar.sync 1, %0;" ::"n"(BLOCK_THREADS) : "memory"); }

// Sequences of the batch, ROWS at most.
template <int ROWS>
__device__ __forceinline__ int rows_of(const StepModel& model) {
    return ROWS == 1 ? 1 : model.rows;
}

// What the compiler knows of a model and its plan. 0: it is in the plan.
template <int ROWS_, int HEAD_DIM = 0, int CLUSTER = 0>
struct Known {
    static constexpr int ROWS = ROWS_;  // of the batch, at most
    static bool holds(const StepModel& model, int cluster) {
        return model.rows <= ROWS && (!HEAD_DIM || HEAD_DIM == model.head_dim()) && (!CLUSTER || CLUSTER == cluster);
    }
    static __device__ __forceinline__ int rows(const Steps& a) { return rows_of<ROWS>(a.model); }
    static __device__ __forceinline__ int cluster(const Steps& a) { return CLUSTER ? CLUSTER : a.plan.cluster; }
    static __device__ __forceinline__ int head_dim(const Steps& a) { return HEAD_DIM ? HEAD_DIM : a.plan.head_dim; }
    template <typename T>
    static __device__ __forceinline__ int head_lanes(const Steps& a) {
        return HEAD_DIM ? HEAD_DIM * static_cast<int>(sizeof(T)) / 16 : a.plan.head_lanes;
    }
};

// ---------------------------------------------------------------------------------------------------- 1. State

struct StepState {
    int token[MAX_STEP_ROWS];     // the step's inputs
    int position[MAX_STEP_ROWS];  // of the first step's; those of step t lie t further on
    bool finished[MAX_STEP_ROWS];
    bool cancelled;
    float largest[MAX_STEP_ROWS], smallest[MAX_STEP_ROWS];  // of the step's logits; sampled
};

// --------------------------------------------------------------------------------------------------- 2. Memory

struct Moments {  // of a row's columns, as each warp has them
    double sum[BLOCK_WARPS], squares[BLOCK_WARPS];
};

// Dynamic shared memory, one part behind the other. "heads", "inner" and "slice": plan.most_heads, ...
//
//   slots      [slots][slot_bytes]                         pieces of weights and of the cache
//   stream     float [2][rows][width]                      letters in turn: the residual stream
//   qkv        T [rows][heads][3][head_dim]                letter: queries, keys, values of the cluster's heads
//   states     float [cluster][rows][heads][head_dim + 4]  letter: o, then m and l (attention_states.cuh)
//   inner      [rows][inner_stride bytes]                  letter: CONTRACT's input, see below
//   sums       int64 [1 + SUM_SETS][rows][slice]           the slice of the residual stream, and the words as last seen
//   input      [rows][input_stride bytes]                  a product's input: 4 bytes for each column. 16 bits: of 4
//                                                          columns 2 rounded to T, what that took away, 2, and that
//   zeros      [one group of the input]
//   partial    float [2][BLOCK_WARPS][UNIT_BATCH][rows][8]   sums of warps, of two batches in turn
//   own_states float [BLOCK_WARPS][head_dim], [BLOCK_WARPS][2]     ATTENTION: the warps' o, and m and l
//   moments    Moments [rows]
//
// DrawMemory begins where `input` does: it is used between two steps, when of all this the slots and letters may come.
//
// Strides: 64 bytes more than a multiple of 128, so that two rows lie in different banks.
struct DrawMemory {
    unsigned long long *places, *weights;         // [rows][draw_tokens], of the block's logits
    unsigned long long* digit_weight;             // [rows][DIGITS]
    unsigned *digit_count, *digit_token;          // [rows][DIGITS]
    int bytes;
};
struct BlockMemory {
    unsigned char *slots, *qkv, *inner, *zeros, *input;
    float *stream, *states, *partial, *own_states;
    long long* sums;
    Moments* moments;
    int inner_stride, input_stride;
    int partial_floats;  // of one batch
    int bytes;
};

// begin: of `input`.
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

__host__ __device__ inline void lay_out_memory(BlockMemory& m, unsigned char* memory, const StepModel& model,
                                               const StepPlan& plan) {
    m.bytes = 0;
    const auto take = [&](int bytes) {
        unsigned char* const begin = memory + m.bytes;
        m.bytes += (bytes + 15) / 16 * 16;
        return begin;
    };
    const auto stride = [](int bytes) { return (bytes + 127) / 128 * 128 + 64; };
    const int rows = model.rows, head_dim = model.head_dim(), size = model.element_bytes();
    const int group = input_group_bytes(size), attended = plan.most_heads * model.head_groups() * group;
    const int width = model.width * INPUT_BYTES;
    m.inner_stride = stride(plan.most_inner * group);
    m.input_stride = stride(attended > width ? attended : width);
    m.partial_floats = BLOCK_WARPS * UNIT_BATCH * rows * UNIT_ROWS;
    m.slots = take(plan.slots * static_cast<int>(plan.slot_bytes));
    m.stream = reinterpret_cast<float*>(take(4 * 2 * rows * model.width));
    m.qkv = take(rows * plan.most_heads * 3 * head_dim * size);
    m.states = reinterpret_cast<float*>(take(4 * plan.cluster * rows * plan.most_heads * (head_dim + STATE_PAD)));
    m.inner = take(rows * m.inner_stride);
    m.sums = reinterpret_cast<long long*>(take(8 * (1 + SUM_SETS) * rows * plan.most_slice));
    m.zeros = take(group);
    const int before_input = m.bytes;
    m.input = take(rows * m.input_stride);
    m.partial = reinterpret_cast<float*>(take(4 * 2 * m.partial_floats));
    m.own_states = reinterpret_cast<float*>(take(4 * BLOCK_WARPS * (head_dim + 2)));
    m.moments = reinterpret_cast<Moments*>(take(static_cast<int>(sizeof(Moments)) * rows));
    const int with_draw = before_input + draw_memory_of(nullptr, rows, plan.draw_tokens).bytes;
    if (model.sampled && with_draw > m.bytes) m.bytes = with_draw;
}

// -------------------------------------------------------------------------------------------------- 3. Letters

// Of the four kinds only `stream` has memory for two: the others' next letter is sent by who has had two exchanges'
// letters from all blocks of the cluster in between, which each sends when it has read this one.
struct Boxes {
    MailBox stream, qkv, states, inner;
};

struct LetterBytes {
    unsigned stream, qkv, states, inner;  // 0: there is no such letter
};
__device__ __forceinline__ LetterBytes letter_bytes(const StepModel& model, const StepPlan& plan,
                                                    const BlockShare& share) {
    const unsigned rows = model.rows, heads = share.heads.count(), head_dim = model.head_dim();
    return {4 * rows * model.width, rows * heads * 3 * head_dim * model.element_bytes(),
            4 * plan.cluster * rows * heads * (head_dim + STATE_PAD),
            rows * share.inner.count() * input_group_bytes(model.element_bytes())};
}

// By one thread; a cluster_meet() must follow.
__device__ __forceinline__ void boxes_init(Boxes& boxes) {
    mail_init(boxes.stream), mail_init(boxes.qkv), mail_init(boxes.states), mail_init(boxes.inner);
}

// By all threads that compute.
__device__ __forceinline__ void receive(MailBox& box, unsigned letter, unsigned bytes) {
    if (threadIdx.x == 0) mail_expect(box, letter, bytes);
    mail_wait(box, letter);
}

// ---------------------------------------------------------------------------------------------------- 4. Cache

// The block's part, by its rank, of the cache of a sequence's head: the parts cover all tokens but the newest two. The
// newest is not there yet when pieces are asked for, and of the one before it nobody has heard who asks a step ahead;
// the last block of the cluster reads these itself.
__device__ __forceinline__ Range cache_part(const StepModel& model, const StepPlan& plan, int rank, int position) {
    const int newest = min(position, model.max_seq_len), tokens = max(newest - 1, 0);
    const int each = (tokens + plan.cluster - 1) >> (31 - __clz(plan.cluster));  // a power of 2
    const int begin = min(rank * each, tokens);
    return {begin, min(begin + each, tokens)};
}

// Row `token` of a head's keys (which = 0) or values (1).
template <typename T>
__device__ __forceinline__ T* cache_row(const Steps& a, int layer, int which, int row, int head, int token) {
    const int64_t index = ((int64_t{layer} * 2 + which) * a.batch + row) * a.model.heads + head;
    return static_cast<T*>(a.cache) + (index * a.model.max_seq_len + token) * a.plan.head_dim;
}
