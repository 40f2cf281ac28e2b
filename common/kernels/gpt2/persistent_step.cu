// persistent_step.cu - any number of decode steps as one kernel: clusters of blocks, all there at once.
//
//   1. Tokens       find_tokens, draw_tokens, publish     between two steps
//   2. Phases       Running: a phase each, and run_step
//   3. Kernel       persistent_step_kernel
//   4. Plan         plan_steps               whether and how a model fits the GPU
//   5. Launcher     run_steps
//
//   step_phases.h         the phases, who has what of them, where the weights lie
//   step_plan.h           how a model is laid out
//   phase_block.cuh       a block's shared memory
//   piece_stream.cuh      weights and cache on their way through shared memory, ahead of the phases
//   phase_source.cuh      in which order
//   phase_residual.cuh    the residual stream: sums over all blocks
//   phase_input.cuh       prologues: embedding, layernorm, merging
//   phase_product.cuh     the products
//   phase_output.cuh      epilogues: bias, gelu, the largest logit; letters and sums
//   phase_attention.cuh   attention over a part of the cache
//   phase_draw.cuh        temperature, top-k, top-p, and the draw
//   step_clock.cuh        where the time goes; off
//
// A step at batch 1 reads every weight once and computes next to nothing, so the memory should never rest. As 62
// kernels each begins to read when its predecessor has ended. Here
//
//   - what is read depends on no token, so each block asks for it as far ahead as its shared memory reaches, a layer or
//     two, and the next step's first layers while this one's logits are computed. The cache's old tokens come the same
//     way;
//   - what only a head needs stays in a cluster: queries, keys and values, the states of attention; so do the columns of
//     the MLP's inside. It goes straight into the other blocks' shared memory (cluster_mail.cuh);
//   - twice in a layer all blocks tell all something: numbers that are added to the residual stream. Those are sums that
//     count their own addends, in fixed point: the same in any order (phase_residual.cuh);
//   - nothing is launched: the largest logit is found, looked up and embedded by every block for itself (a token that
//     is drawn by all together), and the host reads the tokens from its own memory while the kernel runs.
//
//     block     phase   QKV   ATTENTION   PROJECTION    EXPAND   CONTRACT    QKV  ...
//                          hop         hop     exchange      hop     exchange
//     copies            .. PROJECTION, EXPAND, CONTRACT of this layer, QKV, cache, ... of the next ..
//
// Nobody waits for ever. All blocks are there at once: the launch is cooperative, or refused. All go through the same
// phases in the same order, and whatever one waits for was sent, in that order, before anything that its sender waits
// for behind it; so of all that are waited for the earliest always comes:
//
//   - a letter has as many bytes as its senders' shares make, a sum as many addends as there are clusters (PROJECTION:
//     with a head), and nothing that a product computes can change either, large or no number as it may be;
//   - a slot of the stream becomes free when the warps have used it, for which they need the pieces before it only;
//   - each step ends for all blocks at once: what they decide by (tokens, the cancel flag as the first block saw it) has
//     come to all of them with the words of LOGITS.
//
// Nothing is overwritten that somebody still wants to read: letters and sums see phase_block.cuh and phase_residual.cuh.
// Words of LOGITS are tagged (common/cuda/tagged_words.cuh), step t with first_tag + t * tags, the tags behind it are
// for drawing. A block writes them when it has the last CONTRACT's sum, to which all blocks have added in this step, which
// they began with the last step's words. In drawing a block hands on its numbers of a digit when it has all sums of the
// digit before, for which each reader of its last numbers has read them.
//
// Neither tagged nor counted: keys and values in the cache. They are read again a step later at the earliest, behind the
// words with the largest logits, before which each writer has a fence, and each reader has one behind them.
//
// A block may end when it has had the last step's words: all letters to it have come before, since it has waited for them.
#include "common/kernels/gpt2/step_phases.h"

#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
// Not built: there are no mbarriers, no copy engine and no clusters before compute capability 9.0.
StepPlan plan_steps(const StepModel&, int) { return {}; }
void run_steps(const Steps&) {}
#else
#include <algorithm>

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
#include "common/kernels/gpt2/step_clock.cuh"
#include "common/kernels/gpt2/step_plan.h"

// --------------------------------------------------------------------------------------------------- 1. Tokens

// By all threads, warp r for sequence r, whose largest and smallest logits are in `state`. memory: BlockMemory::input.
__device__ __forceinline__ int draw_tokens(const Steps& a, const Range& units, unsigned char* memory,
                                           const StepState& state, int step, int likeliest, unsigned tag) {
    const int row = static_cast<int>(threadIdx.x) / 32;
    const DrawMemory m = draw_memory_of(memory, a.model.rows, a.plan.draw_tokens);
    block_sync();
    weigh_logits(a, m, state, units);
    block_sync();
    if (row >= a.model.rows) return likeliest;
    const double uniform = step >= 0 && step < a.history_steps ? a.uniforms[step * a.model.rows + row] : 0.0;
    return draw_token(a, m, row, likeliest, uniform, tag);
}

// Every block's largest logits -> state.token, by warp r for sequence r: the likeliest, or a drawn one. step: of the
// text; tag: of the step's LOGITS.
template <bool DRAWS>
__device__ __forceinline__ void find_tokens(const Steps& a, const BlockMemory& m, const Range& units, StepState& state,
                                            int step, unsigned tag) {
    constexpr int AT_ONCE = 4;  // words of so many blocks
    const int row = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const bool sampled = DRAWS && a.model.sampled;
    int token = 0;
    if (row < a.model.rows) {
        const int each = a.plan.exchange.best_words;
        const tagged::Word* const words = a.words + a.plan.exchange.best + each * row * a.plan.blocks;
        FoundLogits<DRAWS> found;
        bool cancelled = false;
        NO_UNROLL
        for (int first = lane; first < a.plan.blocks; first += 32 * AT_ONCE) {
            tagged::Pair pairs[(1 + DRAWS) * AT_ONCE];  // of a block: the largest; sampled: and the smallest
            const auto place = [&](int i) -> const tagged::Word* {
                const int block = first + i % AT_ONCE * 32;
                return block < a.plan.blocks && (i < AT_ONCE || sampled) ? words + each * block + i / AT_ONCE * 2
                                                                         : nullptr;
            };
            tagged::get_all(pairs, place, tag);
            UNROLL
            for (int i = 0; i < AT_ONCE; ++i) {
                if (first + 32 * i >= a.plan.blocks) break;
                found.add({__uint_as_float(pairs[i].x), static_cast<int>(pairs[i].z & ~CANCELLED)});
                cancelled |= (pairs[i].z & CANCELLED) != 0;
                if constexpr (DRAWS)
                    if (sampled) found.smallest = fminf(found.smallest, __uint_as_float(pairs[AT_ONCE + i].x));
            }
        }
        const Best best = best_of_lanes(found.best);
        cancelled = __any_sync(FULL_WARP, cancelled);
        __threadfence();  // what the writers knew of the cache, this block knows from here on
        token = best.value > -INFINITY ? best.token : NO_TOKEN;
        if (sampled) {
            const float smallest = -warp_max(-found.smallest);
            if (lane == 0) state.largest[row] = best.value, state.smallest[row] = smallest;
        }
        if (lane == 0 && row == 0) state.cancelled = cancelled;
    }
    if (sampled) token = draw_tokens(a, units, m.input, state, step, token, tag + 1);
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

// Whether there is something to be done in a next step.
__device__ __forceinline__ bool goes_on(const Steps& a, const StepState& state) {
    bool all_finished = true, all_numbers = true;
    for (int r = 0; r < a.model.rows; ++r)
        all_finished &= state.finished[r], all_numbers &= state.token[r] != NO_TOKEN;
    return !state.cancelled && !all_finished && all_numbers;
}

// --------------------------------------------------------------------------------------------------- 2. Phases

template <typename T, class K, bool DRAWS>
struct Running {  // what every phase is given
    static constexpr int ROWS = K::ROWS;
    const Steps& a;
    const BlockMemory& m;
    const BlockShare& share;
    const StepState& state;
    Boxes& boxes;
    const LetterBytes bytes;
    PieceReader& reader;
    ResidualStream<K>& residual;
    StepClock& clock;
    unsigned letter = 0;  // counts the layers of all steps

    __device__ __forceinline__ const float* vectors(int layer, int at) const {
        return a.vectors + layer * a.plan.layer_vectors + at;
    }
    __device__ __forceinline__ const Matrix& matrix(Phase phase) const { return a.plan.matrices[phase]; }
    __device__ __forceinline__ Input own_input() const {
        return {m.input, m.input_stride};
    }

    // Sets and addends of the exchange behind PROJECTION or CONTRACT.
    __device__ __forceinline__ Gathering behind(Phase phase, unsigned of_letter) const {
        const bool heads = phase == PROJECTION;
        return {heads ? 0 : 1 + static_cast<int>(of_letter & 1),
                static_cast<unsigned>(heads ? min(a.model.heads, a.plan.clusters) : a.plan.clusters)};
    }

    // Of a batch of units of QKV, EXPAND or LOGITS.
    __device__ __forceinline__ UnitOutput output_of(Phase phase, int layer, int first) const {
        return UnitOutput(a, matrix(phase), layer, share.units[phase], first, rows_of<ROWS>(a.model));
    }
    // The block's units; use(output, value) by all threads of the warps that finish. output: of the first batch, made
    // before the input is there.
    template <class Use>
    __device__ __forceinline__ void by_rows(Phase phase, int layer, UnitOutput output, Use use) {
        const Range units = share.units[phase];
        const int rows = rows_of<ROWS>(a.model);
        int batch = 0;
        NO_UNROLL
        for (int first = units.begin; first < units.end; first += UNIT_BATCH, batch ^= 1) {
            if (first > units.begin) output = output_of(phase, layer, first);
            float* const partial = m.partial + batch * m.partial_floats;
            multiply_units<T, ROWS>(rows, own_input(), matrix(phase), min(UNIT_BATCH, units.end - first), partial,
                                    reader);
            block_sync();
            if (output.row < rows) use(output, output.value(partial, rows));
        }
    }
    // The block's slices of PROJECTION or CONTRACT. come() waits for the input.
    template <class Come>
    __device__ __forceinline__ void by_columns(Phase phase, int layer, const Input& input, int groups, Come come) {
        const Matrix& of = matrix(phase);
        const int set = behind(phase, letter).set, warp = static_cast<int>(threadIdx.x) / 32;
        // One of those who add to a number begins with the bias
        const bool adds_bias = phase == PROJECTION ? share.heads.begin == 0 : share.cluster == 0;
        NO_UNROLL
        for (int slice = share.slices.begin; slice < share.slices.end; ++slice) {
            const int first = of.slice_begin(slice), units = of.slice_begin(slice + 1) - first;
            UnitSums<T, ROWS> sums[WARP_UNITS];
            UNROLL
            for (int i = 0; i < WARP_UNITS; ++i) {
                const int unit = warp + i * BLOCK_WARPS;
                if (adds_bias && unit < units) sums[i].begin(vectors(layer, of.bias) + (first + unit) * UNIT_ROWS);
            }
            if (slice == share.slices.begin) come();
            if (units == 0) continue;
            const int rows = rows_of<ROWS>(a.model);
            if (phase == PROJECTION)  // a head has one piece, as a rule, and what is not there takes time, too
                multiply_slice<T, ROWS, 1>(rows, input, m.zeros, of, units, groups, sums, reader);
            else
                multiply_slice<T, ROWS, PIECES_AT_ONCE>(rows, input, m.zeros, of, units, groups, sums, reader);
            add_slice<T, K>(residual, set, rows_of<ROWS>(a.model), first, units, sums);
        }
    }

    __device__ __forceinline__ void attention(int layer, int step) {
        const int rows = rows_of<ROWS>(a.model), heads = share.heads.count();
        const auto part_of = [&](int row, int head) {
            return AttentionPart<T, K>(a, share, layer, row, head, state.position[row] + step);
        };
        AttentionPart<T, K> part = part_of(0, 0);
        receive(boxes.qkv, letter, bytes.qkv);
        clock.stamp(StepClock::QKV_HOP);
        NO_UNROLL
        for (bool more = true; more;) {
            attend<T, K>(a, m, share, boxes, letter, part, reader);
            const bool last_head = part.head + 1 == heads;
            more = !last_head || part.row + 1 < rows;
            if (!more) break;
            part = last_head ? part_of(part.row + 1, 0) : part_of(part.row, part.head + 1);
            block_sync();  // the last one's states have been read
        }
        clock.stamp(StepClock::ATTENTION);
    }

    __device__ __forceinline__ void layer_phases(int layer, int step) {
        const bool has_heads = share.heads.count() > 0;
        const float* const norm = vectors(layer, matrix(QKV).norm);
        const UnitOutput of_qkv = output_of(QKV, layer, share.units[QKV].begin);
        if (layer == 0)
            embedded_input<T, K>(a, m, state, step, residual, norm);
        else
            normalized_input<T, K>(a, m, residual, behind(CONTRACT, letter - 1), norm,
                                      share.units[QKV].count() > 0);
        clock.stamp(StepClock::STREAM);
        by_rows(QKV, layer, of_qkv, [&](const UnitOutput& output, const float2& value) {
            output.template store_qkv<T, K>(a, m, share, boxes, letter, layer, state.position[output.row] + step, value);
        });
        clock.stamp(StepClock::QKV);
        const Gathering heads = behind(PROJECTION, letter);
        if (has_heads) {
            attention(layer, step);
            by_columns(PROJECTION, layer, own_input(), share.heads.count() * a.plan.head_groups, [&] {
                receive(boxes.states, letter, bytes.states);
                clock.stamp(StepClock::STATES_HOP);
                merged_input<T, K>(a, m, share.heads.count());
            });
        }
        clock.stamp(StepClock::PROJECTION);

        const UnitOutput of_expand = output_of(EXPAND, layer, share.units[EXPAND].begin);
        normalized_input<T, K>(a, m, residual, heads, vectors(layer, matrix(EXPAND).norm),
                                  share.units[EXPAND].count() > 0);
        clock.stamp(StepClock::STREAM);
        by_rows(EXPAND, layer, of_expand, [&](const UnitOutput& output, const float2& value) {
            output.template store_inner<T, K>(a, m, share, boxes, letter, value);
        });
        clock.stamp(StepClock::EXPAND);
        by_columns(CONTRACT, layer, {m.inner, m.inner_stride}, share.inner.count(), [&] {
            if (bytes.inner > 0) receive(boxes.inner, letter, bytes.inner);
            clock.stamp(StepClock::INNER_HOP);
        });
        clock.stamp(StepClock::CONTRACT);
        ++letter;
    }

    // tag: of the step.
    __device__ __forceinline__ void logits(unsigned tag) {
        const int layers = a.model.layers;
        const UnitOutput of_logits = output_of(LOGITS, layers, share.units[LOGITS].begin);
        normalized_input<T, K>(a, m, residual, behind(CONTRACT, letter - 1),
                                  vectors(layers, matrix(LOGITS).norm), true);
        clock.stamp(StepClock::STREAM);
        __threadfence();  // the step's keys and values, before the words with the logits
        // Asked for now: it comes from the host's memory
        const bool cancel =
            blockIdx.x == 0 && threadIdx.x == 0 && *reinterpret_cast<const volatile int*>(a.cancel) != 0;
        FoundLogits<DRAWS> found;
        by_rows(LOGITS, layers, of_logits, [&](const UnitOutput& output, const float2& value) {
            output.template store_logits<DRAWS>(a, value, found);
        });
        __syncwarp();
        hand_on_best(a, found, cancel, tag);
        clock.stamp(StepClock::LOGITS);
    }
    __device__ __forceinline__ void run_step(int step, unsigned tag) {
        NO_UNROLL
        for (int layer = 0; layer < a.model.layers; ++layer) layer_phases(layer, step);
        logits(tag);
    }
};

// --------------------------------------------------------------------------------------------------- 3. Kernel

// K: a Known. DRAWS: tokens may be drawn; apart from those kernels that never do, which need fewer registers.
template <typename T, class K, bool DRAWS>
__global__ void __launch_bounds__(KERNEL_THREADS, 1) persistent_step_kernel(const __grid_constant__ Steps a) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ StreamBarriers barriers;
    __shared__ Boxes boxes;
    BlockShare share;
    take_share(share, a.model, a.plan, static_cast<int>(blockIdx.x));
    __shared__ StepState state;
    BlockMemory m;  // not in shared memory: pointers that come from there may lead anywhere, for all the compiler knows
    lay_out_memory(m, memory, a.model, a.plan);
    const int first_step = a.steps[0];
    if (threadIdx.x == 0) {
        stream_init(barriers, a.plan.slots, BLOCK_WARPS);
        boxes_init(boxes);
    }
    if (threadIdx.x < a.model.rows) {
        const int row = threadIdx.x, newest = first_step - 1;
        state.position[row] = a.positions[row];
        state.finished[row] = a.finished[row] != 0;
        state.token[row] = newest >= 0 && newest < a.history_steps ? a.history[newest * a.model.rows + row] : 0;
        if (row == 0) state.cancelled = false;
    }
    __syncthreads();
    cluster_meet();  // all boxes are ready for letters
    if (threadIdx.x >= BLOCK_THREADS) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        hopper::fewer_registers<FEED_REGISTERS>();
#endif
        if (threadIdx.x > BLOCK_THREADS) return;
        PieceFeeder feeder(barriers, m.slots, a.plan.slots, a.plan.slot_bytes, false);
        feed_steps<T>(a, state, share, feeder);
        feeder.drain();
        return;
    }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    hopper::more_registers<BLOCK_REGISTERS>();
#endif
    PieceReader reader(barriers, m.slots, a.plan.slots, a.plan.slot_bytes);
    ResidualStream<K> residual(a, m, share, boxes);
    if (threadIdx.x < input_group_bytes<T>()) m.zeros[threadIdx.x] = 0;
    block_sync();
    StepClock clock;
    Running<T, K, DRAWS> run = {a,      m,        share, state, boxes, letter_bytes(a.model, a.plan, share),
                                   reader, residual, clock};
    unsigned tag = a.first_tag;
    int step = 0;
    NO_UNROLL
    for (bool more = true; more; tag += static_cast<unsigned>(a.plan.tag_count(a.model))) {
        clock.begin();
        run.run_step(step, tag);
        find_tokens<DRAWS>(a, m, share.units[LOGITS], state, first_step + step, tag);
        clock.stamp(StepClock::TOKENS);
        publish(a, state, first_step + step);
        more = step + 1 < a.count && goes_on(a, state);
        if (threadIdx.x == 0) reader.tell(step, more);
        ++step;
    }
    clock.store();
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

using OneText = Known<1, 64, SLICES>;  // of any GPT-2: all sizes have heads of 64 columns
using AnyTexts = Known<MAX_STEP_ROWS>;

template <typename T>
static auto kernel_for(const StepModel& model, int cluster) {
    if (OneText::holds(model, cluster))
        return model.sampled ? persistent_step_kernel<T, OneText, true> : persistent_step_kernel<T, OneText, false>;
#ifndef CUDA_SIMULATOR  // where more of them would only take the compiler's time
    if (!model.sampled) return persistent_step_kernel<T, AnyTexts, false>;
#endif
    return persistent_step_kernel<T, AnyTexts, true>;
}

// A cooperative launch in clusters.
struct LaunchShape {
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    LaunchShape(int blocks, int cluster, int shared_bytes, cudaStream_t stream) {
        attributes[0].id = cudaLaunchAttributeCooperative;
        attributes[0].val.cooperative = 1;
        attributes[1].id = cudaLaunchAttributeClusterDimension;
        attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
        attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
        config.gridDim = dim3(static_cast<unsigned>(blocks)), config.blockDim = dim3(KERNEL_THREADS);
        config.dynamicSmemBytes = static_cast<size_t>(shared_bytes), config.stream = stream;
        config.attrs = attributes, config.numAttrs = 2;
    }
};

// Clusters that run at once.
template <class Kernel>
static int clusters_at_once(Kernel* kernel, int cluster, int shared_bytes) {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    LaunchShape shape(cluster, cluster, shared_bytes, nullptr);
    shape.attributes[0].val.cooperative = 0;
    int clusters = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &shape.config));
    return clusters;
}

template <typename T>
static void plan_for(StepPlan& plan, const StepModel& model, int most_blocks) {
    constexpr int FEWEST_SLOTS = 4;
    const int cluster = cluster_of(model, most_blocks), wanted = most_blocks ? most_blocks / cluster : MAX_CLUSTERS;
    const auto kernel = kernel_for<T>(model, cluster);
    if (device_attribute(cudaDevAttrComputeCapabilityMajor) < 9) return;
    if (!sizes_fit(model) || !hopper::is_built(kernel)) return;
    cudaFuncAttributes attributes;
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
    // The simulator knows the kernel's own only when it has run
    constexpr int OWN_BYTES = static_cast<int>(sizeof(StreamBarriers) + sizeof(Boxes) + sizeof(StepState)) + 64;
    const int own = std::max(static_cast<int>(attributes.sharedSizeBytes), OWN_BYTES);
    const int shared = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - own;
    const int clusters = std::min({wanted, MAX_CLUSTERS, clusters_at_once(kernel, cluster, shared)});
    if (clusters == 0) return;
    lay_out(plan, model, cluster, clusters);
    BlockMemory memory;
    lay_out_memory(memory, nullptr, model, plan);  // without slots
    plan.slots = std::min(MAX_SLOTS, (shared - memory.bytes) / static_cast<int>(plan.slot_bytes));
    if (plan.slots < FEWEST_SLOTS || plan.tokens_per_piece < 1) return;
    lay_out_memory(memory, nullptr, model, plan);
    plan.shared_bytes = memory.bytes;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes));
    plan.fits = true;
}

StepPlan plan_steps(const StepModel& model, int most_blocks) {
    StepPlan plan = {};
    for_float_type(model.type, [&]<typename T>() { plan_for<T>(plan, model, most_blocks); });
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
    const size_t sums = sizeof(counted::Sum) * SUM_SETS * a.model.rows * a.model.width;
    CUDA_CHECK(cudaMemsetAsync(a.words + a.plan.exchange.sums, 0, sums, a.stream));
    const LaunchShape shape(a.plan.blocks, a.plan.cluster, a.plan.shared_bytes, a.stream);
    CUDA_CHECK(cudaLaunchKernelEx(&shape.config, kernel_for<T>(a.model, a.plan.cluster), a));
}

void run_steps(const Steps& a) {
    for_float_type(a.model.type, [&]<typename T>() { launch<T>(a); });
}
#endif
