// persistent_step.cu - any number of decode steps as one kernel: one block on each multiprocessor, all there at once.
//
//   1. Tokens       find_tokens, draw_tokens, publish     between two steps
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
//   phase_draw.cuh        temperature, top-k, top-p, and the draw
//
// A step at batch 1 reads every weight once and computes next to nothing, so the memory should never rest. As 62
// kernels each begins to read when its predecessor has ended. Here
//
//   - what is read depends on no token, so each block asks for it as far ahead as its shared memory reaches, a layer or
//     two, and the next step's first layers while this one's logits are computed. The cache's old tokens come the same
//     way;
//   - phases are not separated by a barrier: a block that has its inputs goes on. They come with their tags, in one
//     trip (common/cuda/tagged_words.cuh);
//   - nothing is launched: the largest logit is found, looked up and embedded by every block for itself (a token that
//     is drawn by all together), and the host reads the tokens from its own memory while the kernel runs.
//
//     blocks    phase     QKV  |  ATTENTION  |  PROJECTION  |  EXPAND  |  CONTRACT  |  QKV  ...
//                       gather, multiply, hand on -> gather, multiply, hand on -> ...
//     copies            .. PROJECTION, EXPAND, CONTRACT of this layer, QKV, cache, ... of the next ..
//
// Tags. Phase i of step t hands on words with the tag first_tag + t * tags + i, and takes those with the tag before.
// Tags behind those of the phases are for drawing, which has words of its own.
// No word is overwritten that somebody still wants to read: a block writes words of a kind once per layer, and it
// begins a layer behind the one in which they were read only with words from all units of QKV between; every block has
// such a unit (plan_steps sees to that), and has read what it wanted before. In drawing a block hands on its numbers of
// a digit when it has all sums of the digit before, for which each reader of its last numbers has read them.
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
#include "common/cuda/unroll.cuh"
#include "common/cuda/wgmma.cuh"
#include "common/kernels/gpt2/phase_attention.cuh"
#include "common/kernels/gpt2/phase_draw.cuh"
#include "common/kernels/gpt2/phase_input.cuh"
#include "common/kernels/gpt2/phase_output.cuh"
#include "common/kernels/gpt2/phase_product.cuh"
#include "common/kernels/gpt2/phase_source.cuh"

// --------------------------------------------------------------------------------------------------- 1. Tokens

// By all threads, warp r for sequence r, whose largest and smallest logits are in `state`. memory: BlockMemory::high.
__device__ __forceinline__ int draw_tokens(const Steps& a, unsigned char* memory, const StepState& state, int step,
                                           int likeliest, unsigned tag) {
    const int row = static_cast<int>(threadIdx.x) / 32;
    const DrawMemory m = draw_memory_of(memory, a.model.rows, a.plan.draw_tokens);
    block_sync();
    weigh_logits(a, m, state);
    block_sync();
    if (row >= a.model.rows) return likeliest;
    const double uniform = step >= 0 && step < a.history_steps ? a.uniforms[step * a.model.rows + row] : 0.0;
    return draw_token(a, m, row, likeliest, uniform, tag);
}

// Every block's largest logits -> state.token, by warp r for sequence r: the likeliest, or a drawn one. step: of the
// text; tag: of the step's LOGITS.
template <bool DRAWS>
__device__ __forceinline__ void find_tokens(const Steps& a, const BlockMemory& m, StepState& state, int step,
                                            unsigned tag) {
    const int row = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const bool sampled = DRAWS && a.model.sampled;
    int token = 0;
    if (row < a.model.rows) {
        const int each = a.plan.exchange.best_words;
        const tagged::Word* const words = a.words + a.plan.exchange.best + each * row * a.plan.blocks;
        FoundLogits<DRAWS> found;
        bool cancelled = false;
        for (int block = lane; block < a.plan.blocks; block += 32) {
            const tagged::Word* const one = words + each * block;
            const uint2 both = tagged::settle(tagged::peek(one), one, tag);
            found.add({__uint_as_float(both.x), static_cast<int>(both.y & ~CANCELLED)});
            cancelled |= (both.y & CANCELLED) != 0;
            if (sampled) {
                const uint2 smallest = tagged::settle(tagged::peek(one + 2), one + 2, tag);
                found.smallest = fminf(found.smallest, __uint_as_float(smallest.x));
            }
        }
        const Best best = best_of_lanes(found.best);
        cancelled = __any_sync(FULL_WARP, cancelled);
        __threadfence();  // what the writers knew of the cache, this block knows from here on
        token = best.token;
        if (sampled) {
            const float smallest = -warp_max(-found.smallest);
            if (lane == 0) state.largest[row] = best.value, state.smallest[row] = smallest;
        }
        if (lane == 0 && row == 0) state.cancelled = cancelled;
    }
    if (sampled) token = draw_tokens(a, m.high, state, step, token, tag + 1);
    if (row < a.model.rows && lane == 0) {
        state.token[row] = token;
        state.finished[row] |= token == *a.stop;
    }
    block_sync();
}

// By the first block: the tokens that step `step` of the text made.
__device__ __forceinline__ void publish(const Steps& a, const StepState& state, int step) {
    const int row = static_cast<int>(threadIdx.x), at = step * a.model.rows + row;
    if (blockIdx.x > 0 || row >= a.model.rows || step < 0 || step >= a.history_steps) return;
    a.history[at] = state.token[row];
    reinterpret_cast<volatile int*>(a.arrived)[at] = state.token[row];
}

__device__ __forceinline__ bool all_finished(const Steps& a, const StepState& state) {
    bool all = true;
    for (int r = 0; r < a.model.rows; ++r) all &= state.finished[r];
    return all;
}

// --------------------------------------------------------------------------------------------------- 2. Phases

struct Running {  // what every phase is given
    const Steps& a;
    const BlockMemory& m;
    const StepState& state;
    PieceReader& reader;
};

// Gathers the input, multiplies the block's units with it, hands on what comes out.
template <typename T, int ROWS, bool DRAWS>
__device__ __forceinline__ void run_product(const Running& run, PhaseKind kind, const UnitRun& mine, int layer,
                                            int step, unsigned tag) {
    const Steps& a = run.a;
    const BlockMemory& m = run.m;
    const Phase& phase = a.plan.phases[static_cast<int>(kind)];
    const Exchange& exchange = a.plan.exchange;
    if (phase.norm >= 0) {  // by every block: it keeps the residual stream
        const float* const norm = a.vectors + layer * a.plan.layer_vectors + phase.norm;
        if (kind == PhaseKind::QKV && layer == 0)
            embedded_input<T, ROWS>(a, m, run.state, step, norm);
        else
            normalized_input<T, ROWS>(
                a, m, a.words + (kind == PhaseKind::EXPAND ? exchange.attended : exchange.residual), tag - 1, norm);
    } else if (mine.count > 0) {
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
    FoundLogits<DRAWS> found;
    int batch = 0;
    NO_UNROLL
    for (int done = 0; done < mine.count; done += UNIT_BATCH, batch ^= 1) {
        const int count = min(UNIT_BATCH, mine.count - done);
        float* const partial = m.partial + batch * m.partial_floats;
        const UnitOutput<T> output(a, m, kind, phase, layer, mine.first + done, count);
        multiply_units<T, ROWS>(a, m, phase, count, partial, has_low, run.reader);
        block_sync();
        if (!output.exists) continue;
        const int position = run.state.position[output.row] + step;
        output.store(a, kind, phase, layer, position, output.value(partial, a.model.rows), tag, found);
    }
    if (last) {
        __syncwarp();
        hand_on_best(a, found, cancel, tag);
    }
}

template <typename T>
__device__ __forceinline__ void run_attention(const Running& run, const UnitRun& mine, int layer, int step,
                                              unsigned tag) {
    NO_UNROLL
    for (int i = 0; i < mine.count; ++i) {
        if (i > 0) block_sync();  // the last one's states have been read
        attend<T>(run.a, run.m, run.state, layer, step, mine.first + i, tag, run.reader);
    }
}

// All phases; tag: of the first.
template <typename T, int ROWS, bool DRAWS>
__device__ __forceinline__ void run_step(const Running& run, int step, unsigned tag) {
    const StepPlan& plan = run.a.plan;
    int begin = 0;
    NO_UNROLL
    for (int layer = 0; layer <= run.a.model.layers; ++layer) {
        const bool head = layer == run.a.model.layers;
        NO_UNROLL
        for (int i = head ? LAYER_PHASES : 0; i < LAYER_PHASES + head; ++i, ++tag) {
            const PhaseKind kind = static_cast<PhaseKind>(i);
            const UnitRun mine = next_run(plan, plan.phases[i], begin);
            if (kind == PhaseKind::ATTENTION)
                run_attention<T>(run, mine, layer, step, tag);
            else
                run_product<T, ROWS, DRAWS>(run, kind, mine, layer, step, tag);
        }
    }
}

// --------------------------------------------------------------------------------------------------- 3. Kernel

// ROWS: of the batch, at most. DRAWS: tokens may be drawn; apart from those kernels that never do, which need fewer
// registers.
template <typename T, int ROWS, bool DRAWS>
__global__ void __launch_bounds__(KERNEL_THREADS, 1) persistent_step_kernel(const __grid_constant__ Steps a) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ StreamBarriers barriers;
    __shared__ StepState state;
    const BlockMemory m = memory_of(memory, a.model, a.plan);
    const int first_step = a.steps[0];
    if (threadIdx.x == 0) stream_init(barriers, a.plan.slots, BLOCK_WARPS);
    if (threadIdx.x < a.model.rows) {
        const int row = threadIdx.x, newest = first_step - 1;
        state.position[row] = a.positions[row];
        state.finished[row] = a.finished[row] != 0;
        state.token[row] = newest >= 0 && newest < a.history_steps ? a.history[newest * a.model.rows + row] : 0;
        if (row == 0) state.cancelled = false;
    }
    __syncthreads();
    if (threadIdx.x >= BLOCK_THREADS) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        hopper::fewer_registers<FEED_REGISTERS>();
#endif
        if (threadIdx.x > BLOCK_THREADS) return;
        PieceFeeder feeder(barriers, m.slots, a.plan.slots, a.plan.slot_bytes, false);
        feed_steps<T>(a, state, feeder);
        feeder.drain();
        return;
    }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    hopper::more_registers<BLOCK_REGISTERS>();
#endif
    PieceReader reader(barriers, m.slots, a.plan.slots, a.plan.slot_bytes);
    const Running run = {a, m, state, reader};
    const unsigned logits_tag = static_cast<unsigned>(a.plan.phase_count(a.model.layers) - 1);
    unsigned tag = a.first_tag;
    int step = 0;
    NO_UNROLL
    for (bool more = true; more; tag += static_cast<unsigned>(a.plan.tag_count(a.model))) {
        run_step<T, ROWS, DRAWS>(run, step, tag);
        find_tokens<DRAWS>(a, m, state, first_step + step, tag + logits_tag);
        publish(a, state, first_step + step);
        more = step + 1 < a.count && !state.cancelled && !all_finished(a, state);
        if (threadIdx.x == 0) reader.tell(step, more);
        ++step;
    }
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

    // Pieces of up to 26 KB: small enough to be many, large enough for what it takes to feed one
    constexpr int MOST_GROUPS = 52;
    for (Phase& phase : plan.phases) {
        phase.each = phase.units / plan.blocks, phase.extra = phase.units % plan.blocks;
        if (phase.groups == 0) continue;
        phase.piece_units = 1;
        while (phase.piece_units < UNIT_BATCH && 2 * phase.piece_units * phase.groups <= MOST_GROUPS)
            phase.piece_units *= 2;
        phase.piece_groups = ceil_div(phase.groups, ceil_div(phase.groups, MOST_GROUPS));
        plan.slot_bytes =
            std::max(plan.slot_bytes, static_cast<unsigned>(GROUP_BYTES * phase.piece_units * phase.piece_groups));
    }
    plan.tokens_per_piece = static_cast<int>(plan.slot_bytes) / (2 * model.head_dim() * model.element_bytes());
    int vectors = 0;
    const auto take = [&](int count) { return vectors += count, vectors - count; };
    for (int i = 0; i < LAYER_PHASES; ++i) {
        Phase& phase = plan.phases[i];
        plan.logits_begin += phase.extra;
        phase.weights = plan.layer_bytes;
        plan.layer_bytes += phase.units * phase.unit_bytes();
        if (phase.n == 0) continue;
        const PhaseKind kind = static_cast<PhaseKind>(i);
        if (kind == PhaseKind::QKV || kind == PhaseKind::EXPAND) phase.norm = take(2 * width);
        phase.bias = take(phase.n);
    }
    plan.logits_begin = static_cast<int>(int64_t{plan.logits_begin} * model.layers % plan.blocks);
    plan.scale = take(4);
    plan.layer_vectors = vectors;
    Phase& head = of(PhaseKind::LOGITS);
    head.norm = head.weights = 0;  // behind the last layer's
    plan.vectors = model.layers * plan.layer_vectors + 2 * width;
    plan.weight_bytes = model.layers * plan.layer_bytes + head.units * head.unit_bytes();

    Exchange& words = plan.exchange;
    const auto give = [&](int count) { return words.words += (count + 1) / 2 * 2, words.words - (count + 1) / 2 * 2; };
    words.attended = give(model.rows * width);
    words.residual = give(model.rows * width);
    words.qkv = give(model.rows * 3 * width / model.per_word());
    words.states = give(of(PhaseKind::ATTENTION).units * (model.head_dim() + 2));
    words.activated = give(model.rows * hidden / model.per_word());
    words.best_words = model.sampled ? 4 : 2;
    words.best = give(model.rows * plan.blocks * words.best_words);
    if (!model.sampled) return;
    plan.draw_tokens = UNIT_ROWS * ceil_div(head.units, plan.blocks);
    words.digit_parts = give(model.rows * DIGITS * plan.blocks * 4);
    words.digit_sums = give(model.rows * DIGITS * 4);
}

// What the kernel takes for granted.
static bool sizes_fit(const StepModel& model) {
    const int vector = 16 / model.element_bytes(), row = GROUP_ROW_BYTES / model.element_bytes();
    const int lanes = model.head_dim() / vector;
    return model.rows >= 1 && model.rows <= MAX_STEP_ROWS && model.width % model.heads == 0 &&
           model.head_dim() % vector == 0 && lanes >= 1 && lanes <= 32 && (lanes & (lanes - 1)) == 0 &&
           model.width % row == 0 && model.hidden % row == 0 && model.width <= 4 * NORM_ITEMS * BLOCK_THREADS &&
           !(model.sampled && model.vocab > MOST_DRAWN_TOKENS);
}

template <typename T>
static auto kernel_for([[maybe_unused]] const StepModel& model) {
#ifndef CUDA_SIMULATOR  // where more of them would only take the compiler's time
    if (model.rows == 1)
        return model.sampled ? persistent_step_kernel<T, 1, true> : persistent_step_kernel<T, 1, false>;
    if (!model.sampled) return persistent_step_kernel<T, MAX_STEP_ROWS, false>;
#endif
    return persistent_step_kernel<T, MAX_STEP_ROWS, true>;
}

template <typename T>
static void plan_for(StepPlan& plan, const StepModel& model, int most_blocks, int splits) {
    constexpr int MAX_SPLITS = 4, FEWEST_SLOTS = 4;
    const auto kernel = kernel_for<T>(model);
    if (device_attribute(cudaDevAttrComputeCapabilityMajor) < 9) return;
    if (!sizes_fit(model) || !hopper::is_built(kernel)) return;
    const int processors = device_attribute(cudaDevAttrMultiProcessorCount);
    // Every block has a unit of QKV
    plan.blocks = std::min({most_blocks ? most_blocks : processors, processors, 3 * model.width / UNIT_ROWS});
    plan.splits = splits ? splits : std::clamp(plan.blocks / (model.rows * model.heads), 1, MAX_SPLITS);
    lay_out(plan, model);
    cudaFuncAttributes attributes;
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
    const int shared =
        device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - static_cast<int>(attributes.sharedSizeBytes);
    const int other = memory_of(nullptr, model, plan).bytes;  // without slots
    plan.slots = std::min(MAX_SLOTS, (shared - other) / static_cast<int>(plan.slot_bytes));
    if (plan.slots < FEWEST_SLOTS || plan.tokens_per_piece < 1) return;
    plan.shared_bytes = memory_of(nullptr, model, plan).bytes;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes));
    int together = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&together, kernel, KERNEL_THREADS, plan.shared_bytes));
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
    CUDA_CHECK(cudaLaunchCooperativeKernel(kernel_for<T>(a.model), dim3(a.plan.blocks), dim3(KERNEL_THREADS), arguments,
                                           a.plan.shared_bytes, a.stream));
}

void run_steps(const Steps& a) {
    for_float_type(a.model.type, [&]<typename T>() { launch<T>(a); });
}
#endif
