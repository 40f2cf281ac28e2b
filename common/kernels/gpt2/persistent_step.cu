// persistent_step.cu - any number of decode steps as one kernel: one block on each multiprocessor, all there at once.
//
//   1. Tokens       find_tokens, publish     between two steps
//   2. Phases       run_product, run_attention, run_step
//   3. Kernel       persistent_step_kernel
//   4. Plan         plan_steps               whether and how a model fits the GPU
//   5. Launcher     run_steps
//
//   step_phases.h         the list of phases, what they hand on, where the weights lie
//   phase_block.cuh       a block's shared memory and its units
//   piece_stream.cuh      weights and cache on their way through shared memory, ahead of the phases
//   phase_source.cuh      in which order
//   phase_input.cuh       prologues: embedding, layernorm, merging
//   phase_product.cuh     the product
//   phase_output.cuh      epilogues: bias, gelu, residual stream, the largest logit
//   phase_attention.cuh   attention over a part of the cache
//
// A step at batch 1 reads every weight once and computes next to nothing, so the memory should never rest. As 62 kernels
// each begins to read when its predecessor has ended. Here
//
//   - what is read depends on no token, so each block asks for it as far ahead as its shared memory reaches, a layer or
//     two, and the next step's first layers while this one's logits are computed. The cache's old tokens come the same
//     way;
//   - phases are not separated by a barrier: a block that has its inputs goes on. They come with their tags, in one trip
//     (common/cuda/tagged_words.cuh);
//   - nothing is launched: the largest logit is found, looked up and embedded by every block for itself, and the host
//     reads the tokens from its own memory while the kernel runs.
//
//     blocks    phase     QKV  |  ATTENTION  |  PROJECTION  |  EXPAND  |  CONTRACT  |  QKV  ...
//                       gather, multiply, hand on -> gather, multiply, hand on -> ...
//     copies            .. PROJECTION, EXPAND, CONTRACT of this layer, QKV, cache, ... of the next ..
//
// Tags. Phase i of step t hands on words with the tag first_tag + t * phases + i, and takes those with the tag before.
// No word is overwritten that somebody still wants to read: a block writes words of a kind once per layer, and it begins
// a layer behind the one in which they were read only with words from all units of QKV between; every block has such a
// unit (plan_steps sees to that), and has read what it wanted before.
//
// What is not tagged: keys and values in the cache. They are read again a step later at the earliest, behind the words
// with the largest logits, before which each writer has a fence.
#include "common/kernels/gpt2/step_phases.h"

#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
// Not built: there are no mbarriers and no copy engine before compute capability 9.0.
StepPlan plan_steps(const StepModel&, int, int) { return {}; }
void run_steps(const Steps&) {}
#else
#include <algorithm>
#include <stdexcept>

#include "common/cuda/alignment.h"
#include "common/cuda/float_conversion.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/kernels/gpt2/phase_attention.cuh"
#include "common/kernels/gpt2/phase_input.cuh"
#include "common/kernels/gpt2/phase_output.cuh"
#include "common/kernels/gpt2/phase_product.cuh"
#include "common/kernels/gpt2/phase_source.cuh"

// --------------------------------------------------------------------------------------------------- 1. Tokens

// The largest logit of all blocks -> state.token, by warp r for sequence r. tag: of the last step's LOGITS.
__device__ __forceinline__ void find_tokens(const Steps& a, StepState& state, unsigned tag) {
    const int row = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    if (row < a.model.rows) {
        const TaggedWord* const words = a.words + a.plan.exchange.best + 2 * row * a.plan.blocks;
        Best best = {-INFINITY, 0};
        bool cancelled = false;
        for (int block = lane; block < a.plan.blocks; block += 32) {
            const uint2 both = settle(peek(words + 2 * block), words + 2 * block, tag);
            const Best other = {__uint_as_float(both.x), static_cast<int>(both.y & ~CANCELLED)};
            cancelled |= (both.y & CANCELLED) != 0;
            if (is_better(other, best)) best = other;
        }
        best = best_of_lanes(best);
        cancelled = __any_sync(FULL_WARP, cancelled);
        __threadfence();  // what the writers knew of the cache, this block knows from here on
        if (lane == 0) {
            state.token[row] = best.token;
            state.finished[row] |= best.token == *a.stop;
            if (row == 0) state.cancelled = cancelled;
        }
    }
    __syncthreads();
}

// By the first block: the tokens that `step` made.
__device__ __forceinline__ void publish(const Steps& a, const StepState& state, int first_step, int step) {
    const int row = static_cast<int>(threadIdx.x), at = first_step + step;
    if (blockIdx.x > 0 || row >= a.model.rows || at < 0 || at >= a.history_steps) return;
    a.history[at * a.model.rows + row] = state.token[row];
    reinterpret_cast<volatile int*>(a.arrived)[at * a.model.rows + row] = state.token[row];
}

__device__ __forceinline__ bool all_finished(const Steps& a, const StepState& state) {
    bool all = true;
    for (int r = 0; r < a.model.rows; ++r) all &= state.finished[r];
    return all;
}

// --------------------------------------------------------------------------------------------------- 2. Phases

template <typename T>
struct Running {  // what every phase is given
    const Steps& a;
    const BlockMemory& m;
    const StepState& state;
    PieceStream& stream;
    StepSource<T>& source;
};

// Gathers the input, multiplies the block's units with it, hands on what comes out.
template <typename T, int ROWS>
__device__ __forceinline__ void run_product(const Running<T>& run, PhaseKind kind, int layer, int step, unsigned tag) {
    const Steps& a = run.a;
    const BlockMemory& m = run.m;
    const Phase& phase = a.plan.phases[static_cast<int>(kind)];
    const Exchange& exchange = a.plan.exchange;
    const int mine = first_unit(a.plan, phase, layer);
    if (phase.norm >= 0) {  // by every block: it keeps the residual stream
        const float* const norm = a.vectors + layer * a.plan.layer_vectors + phase.norm;
        if (kind == PhaseKind::QKV && layer == 0)
            embedded_input<T, ROWS>(a, m, run.state, step, norm);
        else
            normalized_input<T, ROWS>(
                a, m, a.words + (kind == PhaseKind::EXPAND ? exchange.attended : exchange.residual), tag - 1, norm);
    } else if (mine < phase.units) {
        if (kind == PhaseKind::PROJECTION)
            merged_input<T>(a, m, a.words + exchange.states, tag - 1);
        else
            copied_input<T>(a, m, a.words + exchange.activated, tag - 1, phase.k);
    }

    const bool last = kind == PhaseKind::LOGITS, has_low = kind != PhaseKind::CONTRACT && sizeof(T) == 2;
    bool cancel = false;
    if (last) {
        __threadfence();  // the step's keys and values, before the words with the logits
        if (blockIdx.x == 0 && threadIdx.x == 0) cancel = *reinterpret_cast<const volatile int*>(a.cancel) != 0;
    }
    Best best = {-INFINITY, 0};
    int batch = 0;
#pragma unroll 1
    for (int first = mine; first < phase.units; first += UNIT_BATCH * a.plan.blocks, batch ^= 1) {
        const int count = min(UNIT_BATCH, ceil_div(phase.units - first, a.plan.blocks));
        float* const partial = m.partial + batch * m.partial_floats;
        const UnitOutput<T> output(a, m, kind, phase, layer, first);
        multiply_units<T, ROWS>(a, m, phase, count, partial, has_low, run.stream, run.source);
        __syncthreads();
        if (threadIdx.x == ISSUER) run.stream.refill(run.source, 0);
        __syncwarp();
        if (!output.exists) continue;
        const int position = run.state.position[output.row] + step;
        output.store(a, kind, phase, layer, position, output.value(partial, a.model.rows), tag, best);
    }
    if (last) hand_on_best(a, best, cancel, tag);
}

template <typename T>
__device__ __forceinline__ void run_attention(const Running<T>& run, int layer, int step, unsigned tag) {
    const StepPlan& plan = run.a.plan;
    const Phase& phase = plan.phases[static_cast<int>(PhaseKind::ATTENTION)];
    const int mine = first_unit(plan, phase, layer);
#pragma unroll 1
    for (int unit = mine; unit < phase.units; unit += plan.blocks) {
        if (unit > mine) __syncthreads();  // the last one's states have been read
        attend<T>(run.a, run.m, run.state, layer, step, unit, tag, run.stream, run.source);
        if (threadIdx.x == ISSUER) run.stream.refill(run.source, 0);
    }
}

// All phases; tag: of the first.
template <typename T, int ROWS>
__device__ __forceinline__ void run_step(const Running<T>& run, int step, unsigned tag) {
#pragma unroll 1
    for (int layer = 0; layer <= run.a.model.layers; ++layer) {
        const bool head = layer == run.a.model.layers;
#pragma unroll 1
        for (int i = head ? LAYER_PHASES : 0; i < LAYER_PHASES + head; ++i, ++tag) {
            const PhaseKind kind = static_cast<PhaseKind>(i);
            if (kind == PhaseKind::ATTENTION)
                run_attention(run, layer, step, tag);
            else
                run_product<T, ROWS>(run, kind, layer, step, tag);
        }
    }
}

// --------------------------------------------------------------------------------------------------- 3. Kernel

// ROWS: of the batch, at most.
template <typename T, int ROWS>
__global__ void __launch_bounds__(BLOCK_THREADS, 1) persistent_step_kernel(const __grid_constant__ Steps a) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ SlotBarriers barriers;
    __shared__ StepState state;
    const BlockMemory m = memory_of(memory, a.model, a.plan.slots, a.plan.slot_bytes);
    PieceStream stream(barriers, m.slots, a.plan.slots, a.plan.slot_bytes, BLOCK_WARPS, false);
    const int first_step = a.steps[0];
    if (threadIdx.x < a.model.rows) {
        const int row = threadIdx.x, newest = first_step - 1;
        state.position[row] = a.positions[row];
        state.finished[row] = a.finished[row] != 0;
        state.token[row] = newest >= 0 && newest < a.history_steps ? a.history[newest * a.model.rows + row] : 0;
        if (row == 0) state.cancelled = false;
    }
    __syncthreads();
    StepSource<T> source(a, state);
    if (threadIdx.x == ISSUER) stream.refill(source, 0);

    const Running<T> run = {a, m, state, stream, source};
    const int phases = a.plan.phase_count(a.model.layers);
    int step = 0;
#pragma unroll 1
    for (bool more = true; more;) {
        run_step<T, ROWS>(run, step, a.first_tag + static_cast<unsigned>(step * phases));
        find_tokens(a, state, a.first_tag + static_cast<unsigned>((step + 1) * phases - 1));
        publish(a, state, first_step, step);
        ++step;
        more = step < a.count && !state.cancelled && !all_finished(a, state);
        if (threadIdx.x == ISSUER && more) {
            fence_global_for_copy_engine();  // of the cache's tokens that find_tokens() heard of
            source.begin(step);
            stream.refill(source, 0);
        }
    }
    if (threadIdx.x == ISSUER) stream.drain();
    if (blockIdx.x == 0 && threadIdx.x < a.model.rows) {
        const int row = threadIdx.x;
        a.positions[row] = state.position[row] + step;
        a.lengths[row] = state.position[row] + step + 1;
        a.steps[row] = first_step + step;
        a.finished[row] = state.finished[row];
    }
#endif
}

// ----------------------------------------------------------------------------------------------------- 4. Plan

static Phase phase_of(const StepModel& model, int n, int k) {
    Phase phase = {};
    phase.n = n, phase.k = k;
    phase.units = ceil_div(n, UNIT_ROWS);
    phase.groups = k * model.element_bytes() / GROUP_ROW_BYTES;
    phase.bias = phase.norm = -1;
    return phase;
}

// Sizes of all phases, where their weights and vectors lie, and what is handed on.
static void lay_out(StepPlan& plan, const StepModel& model) {
    const int width = model.width, hidden = model.hidden;
    const auto of = [&](PhaseKind kind) -> Phase& { return plan.phases[static_cast<int>(kind)]; };
    of(PhaseKind::QKV) = phase_of(model, 3 * width, width);
    of(PhaseKind::ATTENTION).units = model.rows * model.heads * plan.splits;
    of(PhaseKind::PROJECTION) = phase_of(model, width, width);
    of(PhaseKind::EXPAND) = phase_of(model, hidden, width);
    of(PhaseKind::CONTRACT) = phase_of(model, width, hidden);
    of(PhaseKind::LOGITS) = phase_of(model, model.vocab, width);

    // A piece is at most 32 groups, 16 KB: small enough to be many, large enough for the copy engine.
    const int row_groups = of(PhaseKind::QKV).groups, piece_groups = ceil_div(row_groups, ceil_div(row_groups, 32));
    plan.slot_bytes = static_cast<unsigned>(GROUP_BYTES * piece_groups);
    plan.tokens_per_piece = static_cast<int>(plan.slot_bytes) / (2 * model.head_dim() * model.element_bytes());
    int vectors = 0;
    const auto take = [&](int count) { return vectors += count, vectors - count; };
    for (int i = 0; i < LAYER_PHASES; ++i) {
        Phase& phase = plan.phases[i];
        phase.units_before = plan.layer_units;
        plan.layer_units += phase.units;
        phase.weights = plan.layer_bytes;
        plan.layer_bytes += phase.units * phase.unit_bytes();
        if (phase.n == 0) continue;
        const PhaseKind kind = static_cast<PhaseKind>(i);
        if (kind == PhaseKind::QKV || kind == PhaseKind::EXPAND) phase.norm = take(2 * width);
        phase.bias = take(phase.n);
    }
    plan.scale = take(4);
    plan.layer_vectors = vectors;
    Phase& head = of(PhaseKind::LOGITS);
    head.norm = head.weights = 0;  // behind the last layer's
    plan.vectors = model.layers * plan.layer_vectors + 2 * width;
    plan.weight_bytes = model.layers * plan.layer_bytes + head.units * head.unit_bytes();
    for (Phase& phase : plan.phases) {
        phase.piece_groups = piece_groups;
        phase.pieces = ceil_div(phase.groups, piece_groups);
    }

    Exchange& words = plan.exchange;
    const auto give = [&](int count) { return words.words += (count + 1) / 2 * 2, words.words - (count + 1) / 2 * 2; };
    words.attended = give(model.rows * width);
    words.residual = give(model.rows * width);
    words.qkv = give(model.rows * 3 * width / model.per_word());
    words.states = give(of(PhaseKind::ATTENTION).units * (model.head_dim() + 2));
    words.activated = give(model.rows * hidden / model.per_word());
    words.best = give(model.rows * plan.blocks * 2);
}

// What the kernel takes for granted.
static bool sizes_fit(const StepModel& model) {
    const int vector = 16 / model.element_bytes(), row = GROUP_ROW_BYTES / model.element_bytes();
    const int lanes = model.head_dim() / vector;
    return model.rows >= 1 && model.rows <= MAX_STEP_ROWS && model.width % model.heads == 0 &&
           model.head_dim() % vector == 0 && lanes >= 1 && lanes <= 32 && (lanes & (lanes - 1)) == 0 &&
           model.width % row == 0 && model.hidden % row == 0 && model.width <= 4 * NORM_ITEMS * BLOCK_THREADS;
}

template <typename T>
static auto kernel_for([[maybe_unused]] const StepModel& model) {
#ifndef CUDA_SIMULATOR  // where a second one would only take the compiler's time
    if (model.rows == 1) return persistent_step_kernel<T, 1>;
#endif
    return persistent_step_kernel<T, MAX_STEP_ROWS>;
}

template <typename T>
static void plan_for(StepPlan& plan, const StepModel& model, int most_blocks, int splits) {
    constexpr int MAX_SPLITS = 4, FEWEST_SLOTS = 4;
    const auto kernel = kernel_for<T>(model);
    if (device_attribute(cudaDevAttrComputeCapabilityMajor) < 9 || !sizes_fit(model) || !hopper::is_built(kernel)) return;
    const int processors = device_attribute(cudaDevAttrMultiProcessorCount);
    // Every block has a unit of QKV
    plan.blocks = std::min({most_blocks ? most_blocks : processors, processors, 3 * model.width / UNIT_ROWS});
    plan.splits = splits ? splits : std::clamp(plan.blocks / (model.rows * model.heads), 1, MAX_SPLITS);
    lay_out(plan, model);
    cudaFuncAttributes attributes;
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
    const int shared = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - static_cast<int>(attributes.sharedSizeBytes);
    const int other = memory_of(nullptr, model, 0, plan.slot_bytes).bytes;
    plan.slots = std::min(MAX_SLOTS, (shared - other) / static_cast<int>(plan.slot_bytes));
    if (plan.slots < FEWEST_SLOTS || plan.tokens_per_piece < 1) return;
    plan.shared_bytes = memory_of(nullptr, model, plan.slots, plan.slot_bytes).bytes;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes));
    int together = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&together, kernel, BLOCK_THREADS, plan.shared_bytes));
    plan.fits = together * processors >= plan.blocks;
}

StepPlan plan_steps(const StepModel& model, int most_blocks, int splits) {
    StepPlan plan = {};
    for_float_type(model.type, [&]<typename T>() { plan_for<T>(plan, model, most_blocks, splits); });
    return plan;
}

// ------------------------------------------------------------------------------------------------- 5. Launcher

// The device's address of memory of the host's.
template <typename T>
static T* on_device(T* host) {
    void* device = nullptr;
    CUDA_CHECK(cudaHostGetDevicePointer(&device, const_cast<int*>(host), 0));
    return static_cast<T*>(device);
}

template <typename T>
static void launch(Steps a) {
    a.arrived = on_device(a.arrived);
    a.cancel = on_device(a.cancel);
    void* arguments[] = {&a};
    CUDA_CHECK(cudaLaunchCooperativeKernel(kernel_for<T>(a.model), dim3(a.plan.blocks), dim3(BLOCK_THREADS), arguments,
                                           a.plan.shared_bytes, a.stream));
}

void run_steps(const Steps& a) {
    for_float_type(a.model.type, [&]<typename T>() { launch<T>(a); });
}
#endif
