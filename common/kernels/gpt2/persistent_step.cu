// persistent_step.cu - decode steps of GPT-2 as one persistent cooperative kernel (a megakernel): clusters of 8 CTAs,
// one CTA per SM. Start reading at the end: 5. Kernel loops over steps, 4. Phases is a step from top to bottom.
//
//   1. Weight pipeline  produce                           what the producer thread loads, in which order
//   2. GEMVs            column_parallel, row_parallel     a CTA's part of a weight matrix, and its epilogue
//   3. All-reduce       all_reduce                        the residual stream: sums over all CTAs
//   4. Phases           layer, lm_head                    a decode step; next_token (step_sampling.cuh) ends it
//   5. Kernel           persistent_step_kernel
//
//   step_plan.h         who computes what                 weight_pipeline.cuh   multi-stage TMA pipeline
//   step_gemv.cuh       GEMV on tensor cores              cluster_gather.cuh    intra-cluster all-gather, LL protocol
//   step_layernorm.cuh  embedding, layernorm              fixed_point.cuh       atomics that count their arrivals
//   step_attention.cuh  split-KV attention                step_sampling.cuh     top-k and top-p without a sort
//   step_launch.cuh     host code                         step_trace.cuh        timestamps of a debug build
//
// At batch 1 a step reads every weight once and computes almost nothing, so HBM should never idle. A graph of 62
// kernels drains the memory pipeline at every boundary. Here weights don't wait for activations: a producer warp keeps
// the stages in shared memory full (200 KB per SM), a layer or two ahead, across phases, layers and steps.
//
//   phase      a CTA computes                             as in Megatron    its result goes
//   QKV        1/8 of its cluster's heads' rows           column-parallel   to its cluster: all-gather
//   ATTENTION  1/8 of these heads' tokens                 split-KV          to its cluster: all-gather, softmax states
//   PROJ       1/8 of the outputs, its heads' columns     row-parallel      to all: all-reduce, residual stream
//   FC1        1/8 of its cluster's rows, gelu            column-parallel   to its cluster: all-gather
//   FC2        1/8 of the outputs, its cluster's columns  row-parallel      to all: all-reduce, residual stream
//   LM_HEAD    its rows of the vocabulary                 column-parallel   to all: its largest logit, by LL lines
//
// Nothing else synchronizes: a layer has three all-gathers (DSMEM) and two grid-wide all-reduces (L2 cache).
// Deadlock freedom: the launch is cooperative, so all CTAs are co-resident. All run the same phases in the same order,
// and whatever one waits for was sent before anything its sender waits for later. Byte counts of an all-gather and
// arrival counts of a sum follow from the plan; no value, NaN included, changes them. Whether a step is the last is
// decided from data that all CTAs have: the tokens, and the cancel flag as CTA 0 read it, sent with its LL line.
//
// Reuse of buffers: see all_reduce() and cluster_gather.cuh. Queries, states and FC2's input have one buffer each:
// between two of their all-gathers there are two all-reduces, in which every CTA of the cluster takes part. LL lines
// are written by CTAs that have completed the step's last all-reduce, to which all CTAs added after reading the
// previous step's lines. Keys and values in the cache are read one step later: every writer fences before its LL line,
// every reader after it.
#include "common/kernels/gpt2/step_plan.h"

#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
// mbarriers, TMA and clusters need compute capability 9.0.
StepPlan plan_steps(const StepModel&, int) { return {}; }
void run_steps(const Steps&) {}
#else
#include "common/cuda/wgmma.cuh"
#include "common/kernels/gpt2/best.cuh"
#include "common/kernels/gpt2/gelu.cuh"
#include "common/kernels/gpt2/step_attention.cuh"
#include "common/kernels/gpt2/step_gemv.cuh"
#include "common/kernels/gpt2/step_layernorm.cuh"
#include "common/kernels/gpt2/step_sampling.cuh"
#include "common/kernels/gpt2/step_trace.cuh"

[[maybe_unused]] constexpr int CONSUMER_REGISTERS = 224, PRODUCER_REGISTERS = 56;

struct StepState {
    int token[MAX_STEP_ROWS];     // the step's input
    int position[MAX_STEP_ROWS];  // at the launch's first step
    bool finished[MAX_STEP_ROWS], cancelled;
    Sampler::Scratch sampling;
};
struct Gathers {
    Gather stream, qkv, states, inner, histograms;
};
// ONE: one sequence, heads of 64 columns, clusters of 8: constants. SAMPLED: tokens may be drawn.
template <typename T, bool ONE_, bool SAMPLED_>
struct Step {
    using Type = T;
    static constexpr bool ONE = ONE_, SAMPLED = SAMPLED_;
    static constexpr int ROWS = ONE ? 1 : MAX_STEP_ROWS;
    const Steps& a;
    const Smem& m;
    const Share& share;
    StepState& state;
    Gathers& gathers;
    Consumer& weights;
    Trace& trace;
    float means[ROWS];  // from the last layernorm
    unsigned layers_done = 0, reductions = 0, histograms = 0;  // counts within the launch; index the all-gathers

    __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
    __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
    __device__ __forceinline__ int rows() const { return ONE ? 1 : a.model.rows; }
    __device__ __forceinline__ int cluster() const { return ONE ? SLICES : a.plan.cluster; }
    __device__ __forceinline__ int cluster_bits() const { return 31 - __clz(cluster()); }
    __device__ __forceinline__ int head_dim() const { return ONE ? 64 : a.plan.head_dim; }
    __device__ __forceinline__ int head_lanes() const {
        return ONE ? 64 * static_cast<int>(sizeof(T)) / 16 : a.plan.head_lanes;
    }
    __device__ __forceinline__ const Matrix& matrix(Phase phase) const { return a.plan.matrices[phase]; }
    __device__ __forceinline__ const float* vectors(int layer, int at) const {
        return a.vectors + layer * a.plan.layer_vectors + at;
    }
    // Row `token` of a head's keys (which = 0) or values (1).
    __device__ __forceinline__ static T* cache_row(const Steps& a, int layer, int which, int row, int head, int token) {
        const int64_t index = ((int64_t{layer} * 2 + which) * a.batch + row) * a.model.heads + head;
        return static_cast<T*>(a.cache) + (index * a.model.max_seq_len + token) * a.plan.head_dim;
    }
    // The CTA's part of a sequence's tokens, by its rank: all but the newest two. The newest does not exist when the
    // producer loads, and the one before it may not either; the cluster's last CTA reads these two itself.
    __device__ __forceinline__ static Range cached_tokens(const Steps& a, int rank, int position) {
        const int tokens = max(min(position, a.model.max_seq_len) - 1, 0);
        const int each = (tokens + a.plan.cluster - 1) >> (31 - __clz(a.plan.cluster));  // the cluster is a power of 2
        const int begin = min(rank * each, tokens);
        return {begin, min(begin + each, tokens)};
    }

    // ------------------------------------------------------------------------------------------ 1. Weight pipeline

    // Called by the producer thread. The phases iterate over the same tiles and chunks; nothing else says what a stage
    // holds.
    __device__ __forceinline__ static void produce(const Steps& a, const Share& share, const StepState& state,
                                                   Producer& producer) {
        // Whole rows, one batch of tiles after another. All three return false when the consumers have ended.
        const auto tiles = [&](Phase phase, const unsigned char* layer) {
            const Matrix& of = a.plan.matrices[phase];
            const unsigned tile_bytes = static_cast<unsigned>(of.tile_bytes());
            const Range range = share.tiles[phase];
            const unsigned char* batch = layer + of.weights + size_t{tile_bytes} * range.begin;
            for (int first = range.begin; first < range.end; first += TILE_BATCH, batch += TILE_BATCH * tile_bytes) {
                const unsigned char* part = batch;
                for (int chunk = 0; chunk < of.chunks; chunk += of.stage_chunks) {
                    const unsigned bytes = CHUNK_BYTES * min(of.stage_chunks, of.chunks - chunk);
                    const unsigned char* from = part;
                    for (int tile = first; tile < min(first + TILE_BATCH, range.end); ++tile, from += tile_bytes)
                        if (!producer.load(from, bytes, phase == LM_HEAD && (tile & 7) < KEPT_TILES)) return false;
                    part += bytes;
                }
            }
            return true;
        };
        // Columns `chunks` of the CTA's slices.
        const auto slices = [&](Phase phase, Range chunks, const unsigned char* layer) {
            const Matrix& of = a.plan.matrices[phase];
            for (int slice = share.slices.begin; slice < share.slices.end; ++slice) {
                const int begin = of.slice_begin(slice);
                const unsigned chunk_bytes = CHUNK_BYTES * (of.slice_begin(slice + 1) - begin);
                const unsigned char* from = layer + of.weights + begin * of.tile_bytes();
                from += size_t{chunk_bytes} * chunks.begin;
                for (int chunk = chunks.begin; chunk < chunks.end && chunk_bytes; chunk += of.stage_chunks) {
                    const unsigned bytes = chunk_bytes * min(of.stage_chunks, chunks.end - chunk);
                    if (!producer.load(from, bytes)) return false;
                    from += bytes;
                }
            }
            return true;
        };
        // Keys and values.
        const auto tokens = [&](int layer, int step) {
            const int each = a.plan.stage_tokens;
            const unsigned row_bytes = static_cast<unsigned>(sizeof(T)) * a.plan.head_dim;
            for (int row = 0; row < a.model.rows; ++row) {
                const Range range = cached_tokens(a, share.rank, state.position[row] + step);
                for (int head = share.heads.begin; head < share.heads.end; ++head) {
                    const T* keys = cache_row(a, layer, 0, row, head, range.begin);
                    const T* values = cache_row(a, layer, 1, row, head, range.begin);
                    for (int token = range.begin; token < range.end; token += each) {
                        if (!producer.load(keys, row_bytes * min(each, range.end - token), false, values,
                                           row_bytes * each))
                            return false;
                        keys += each * a.plan.head_dim, values += each * a.plan.head_dim;
                    }
                }
            }
            return true;
        };
        const Range attended = {share.heads.begin * a.plan.head_chunks, share.heads.end * a.plan.head_chunks};
        NO_UNROLL
        for (int step = 0; step < a.count; ++step) {
            if (step >= 2) {  // the cache holds the tokens of two steps ago
                if (!producer.wait_step(step - 2)) return;
                hopper::fence_proxy_async_global();
            }
            const unsigned char* layer_weights = a.weights;
            NO_UNROLL
            for (int layer = 0; layer < a.model.layers; ++layer, layer_weights += a.plan.layer_bytes) {
                if (!tiles(QKV, layer_weights) || !tokens(layer, step) || !slices(PROJ, attended, layer_weights) ||
                    !tiles(FC1, layer_weights) || !slices(FC2, share.inner, layer_weights))
                    return;
            }
            if (!tiles(LM_HEAD, layer_weights)) return;
        }
    }

    // ---------------------------------------------------------------------------------------------------- 2. GEMVs

    // A thread's two adjacent outputs of a batch of tiles, four lanes per tile, prepared before the input arrives: warp
    // r finishes sequence r; a single sequence is finished by every warp, by warp r for CTA r.
    struct Outputs {
        int row, tile, col;
        bool exists;
        float2 bias;
    };
    __device__ __forceinline__ Outputs outputs_of(Phase phase, int layer, int first) const {
        const int tile = first + lane() / 4, col = tile * TILE_ROWS + lane() % 4 * 2, bias = matrix(phase).bias;
        const bool exists = (ONE || warp() < rows()) && tile < share.tiles[phase].end && col < matrix(phase).n;
        return {ONE ? 0 : warp(), tile, col, exists,
                exists && bias >= 0 ? __ldg(reinterpret_cast<const float2*>(vectors(layer, bias) + col)) : float2{}};
    }
    // Multiplies the CTA's tiles by m.input. epilogue(outputs, value) is called by all threads of the warps that
    // finish.
    template <class Epilogue>
    __device__ __forceinline__ void column_parallel(Phase phase, int layer, Outputs outputs, Epilogue epilogue) {
        const Range tiles = share.tiles[phase];
        float* partial = m.partial;
        NO_UNROLL
        for (int first = tiles.begin; first < tiles.end; first += TILE_BATCH) {
            if (first > tiles.begin) outputs = outputs_of(phase, layer, first);
            const int count = min(TILE_BATCH, tiles.end - first);
            multiply_tiles<T, ROWS>(rows(), {m.input, m.input_stride}, matrix(phase), count, partial, weights);
            cta_sync();
            if (outputs.row < rows()) {
                float2 value = outputs.bias;
                UNROLL
                for (int w = 0; w < CTA_WARPS && outputs.exists; ++w) {
                    const int at = ((w * TILE_BATCH + lane() / 4) * rows() + outputs.row) * TILE_ROWS + lane() % 4 * 2;
                    const float2 one = *reinterpret_cast<const float2*>(partial + at);
                    value.x += one.x, value.y += one.y;
                }
                epilogue(outputs, value);
            }
            partial = m.partial + (partial == m.partial ? m.partial_floats : 0);
        }
    }
    // Multiplies the CTA's slices by `chunks` chunks of the input and adds to sums `set`. wait() waits for the input.
    template <Phase PHASE, class Wait>
    __device__ __forceinline__ void row_parallel(int layer, const Input& input, int chunks, int set, Wait wait) {
        const Matrix& of = matrix(PHASE);
        const bool adds_bias = PHASE == PROJ ? share.heads.begin == 0 : share.cluster == 0;
        NO_UNROLL
        for (int slice = share.slices.begin; slice < share.slices.end; ++slice) {
            const int first = of.slice_begin(slice), tiles = of.slice_begin(slice + 1) - first;
            TileSums<T, ROWS> sums[WARP_TILES];
            UNROLL
            for (int i = 0; i < WARP_TILES; ++i) {
                const int tile = warp() + i * CTA_WARPS;
                if (adds_bias && tile < tiles) sums[i].begin(vectors(layer, of.bias) + (first + tile) * TILE_ROWS);
            }
            if (slice == share.slices.begin) wait();
            if (tiles == 0) continue;
            multiply_slice<T, ROWS, PHASE == PROJ ? 1 : 2>(rows(), input, m.zeros, of, tiles, chunks, sums, weights);
            const int row = lane() / TILE_ROWS, col = (first + warp()) * TILE_ROWS + lane() % TILE_ROWS;
            UNROLL
            for (int i = 0; i < WARP_TILES; ++i) {
                if (warp() + i * CTA_WARPS >= tiles) break;
                const float sum = sums[i].one();
                if (row < rows())
                    fixed_point::add(sums_of(set, row, col + i * CTA_WARPS * TILE_ROWS),
                                     fixed_point::to_fixed(a.plan.sum_scale, sum));
            }
        }
    }
    __device__ __forceinline__ void receive(Gather& gather, int bytes) const {
        if (threadIdx.x == 0) gather_expect(gather, layers_done, static_cast<unsigned>(bytes));
        gather_wait(gather, layers_done);
    }
    __device__ __forceinline__ void store_input(int row, int col, const float4& x) const {
        const uint2 left = input_of<T>(x.x, x.y), right = input_of<T>(x.z, x.w);
        *reinterpret_cast<uint4*>(m.input + row * m.input_stride + col * INPUT_BYTES) =
            make_uint4(left.x, left.y, right.x, right.y);
    }

    // ----------------------------------------------------------------------------------------------- 3. All-reduce
    //
    // Grid-wide, of the residual stream: reduce-scatter by atomics in the L2 cache, then an all-gather per cluster.
    //
    //     CTA r of cluster 0   adds its outputs \   sums of    / polls until complete, sends to all CTAs of cluster 0
    //     CTA r of cluster 1   adds              >  slice r   <  polls, sends to cluster 1
    //
    // Sums are in fixed point, so every cluster gets the same bits, and they count their addends, so polling needs no
    // flag (fixed_point.cuh). No CTA may add to a sum that a reader still needs. PROJ has one set of sums: a CTA that
    // adds to it again has FC2's, including an addend from every cluster's CTA of this rank, which had read PROJ's
    // before. FC2 alternates between two: a cluster without heads adds nothing to PROJ, so only the next FC2 shows that
    // it has read.

    __device__ __forceinline__ fixed_point::Sum* sums_of(int set, int row, int col) const {
        return a.workspace + a.plan.sums + (set * rows() + row) * a.model.width + col;
    }
    // which: 0 the CTA's columns of the stream, 1 + set the sums as last seen
    __device__ __forceinline__ longlong2& kept(int which, int row, int col) const {
        return *reinterpret_cast<longlong2*>(m.sums + (which * rows() + row) * share.columns.count() + col);
    }
    // -> float [rows][width], valid until the all_reduce() after the next. Several neighboring threads share two
    // columns: all poll them, and each sends them to its part of the cluster.
    __device__ __forceinline__ const float* all_reduce(int set) {
        const unsigned addends = set == 0 ? min(a.model.heads, a.plan.clusters) : a.plan.clusters;
        const int pairs = share.columns.count() / 2, all = rows() * pairs;
        int bits = 0;  // 2^bits threads share a pair
        while (1 << bits < cluster() && (2 << bits) * all <= CTA_THREADS) ++bits;
        float* const stream = m.stream + (reductions & 1) * rows() * a.model.width;
        if (threadIdx.x == 0) gather_expect(gathers.stream, reductions, 4 * rows() * a.model.width);
        NO_UNROLL
        for (int first = 0; first < all << bits; first += CTA_THREADS) {
            const int pair = (first + static_cast<int>(threadIdx.x)) >> bits, part = threadIdx.x & ((1 << bits) - 1);
            const int row = ONE ? 0 : pair / max(pairs, 1), col = 2 * (pair - row * pairs);
            const bool exists = pair < all;
            longlong2 now = {}, found = {};
            if (exists) {
                const longlong2 before = kept(1 + set, row, col);
                found = kept(0, row, col);
                longlong2 added;
                do {
                    const ulonglong2 sums = fixed_point::load_pair(sums_of(set, row, share.columns.begin + col));
                    now = {static_cast<long long>(sums.x), static_cast<long long>(sums.y)};
                    added.x = fixed_point::added(sums.x, static_cast<fixed_point::Sum>(before.x), addends);
                    added.y = fixed_point::added(sums.y, static_cast<fixed_point::Sum>(before.y), addends);
                } while (!fixed_point::complete(added.x) || !fixed_point::complete(added.y));
                const auto plus = [&](long long old, long long more) {
                    const bool fine = old != NOT_A_NUMBER && fixed_point::is_number(a.plan.sum_scale, more, addends);
                    return fine ? old + more : NOT_A_NUMBER;
                };
                found = {plus(found.x, added.x), plus(found.y, added.y)};
            }
            __syncwarp();  // all threads of the pair have read what one of them now changes
            if (exists) {
                const auto as_bits = [&](long long x) {
                    return __float_as_uint(x == NOT_A_NUMBER ? NAN : fixed_point::to_float(a.plan.sum_scale, x));
                };
                float* const to = stream + row * a.model.width + share.columns.begin + col;
                NO_UNROLL
                for (int rank = part; rank < cluster(); rank += 1 << bits)
                    gather_send(to, rank, gathers.stream, reductions, make_uint2(as_bits(found.x), as_bits(found.y)));
                if (part == 0) kept(1 + set, row, col) = now, kept(0, row, col) = found;
            }
        }
        gather_wait(gathers.stream, reductions++);
        return stream;
    }
    __device__ __forceinline__ static int fc2_set(unsigned layer) { return 1 + static_cast<int>(layer & 1); }

    // --------------------------------------------------------------------------------------------------- 4. Phases

    __device__ __forceinline__ void layer(int layer, int step) {
        const int heads = share.heads.count();
        const Outputs qkv = outputs_of(QKV, layer, share.tiles[QKV].begin);
        const float* const norm = vectors(layer, matrix(QKV).norm);
        if (layer == 0)
            normalize(*this, norm, true, [&] { return embed(*this, step); });
        else
            normalize(*this, norm, share.tiles[QKV].count() > 0, [&] { return all_reduce(fc2_set(layers_done - 1)); });
        trace.stamp(Trace::NORM);
        column_parallel(QKV, layer, qkv, [&](const Outputs& of, const float2& value) {
            const int part = of.col >> (31 - __clz(head_dim())), inside = of.col & (head_dim() - 1);
            const int at = (of.row * a.plan.max_heads - share.heads.begin) * a.plan.head_tiles + of.tile;
            unsigned char* const to = m.qkv + at * TILE_ROWS * static_cast<int>(sizeof(T));
            constexpr int WORDS = static_cast<int>(sizeof(T)) / 2;
            const unsigned first = input_of<T>(value.x, value.y).x;  // 16 bits: both values, rounded
            unsigned words[WORDS];
            UNROLL
            for (int i = 0; i < WORDS; ++i) words[i] = i == 0 ? first : __float_as_uint(value.y);
            gather_send_quad<ONE>(to, words, of.exists, cluster(), gathers.qkv, layers_done);
            const int position = of.exists && !(ONE && warp() > 0) ? state.position[of.row] + step : -1;
            if (part % 3 == 0 || position < 0 || position >= a.model.max_seq_len) return;
            T* const cache = cache_row(a, layer, part % 3 - 1, of.row, part / 3, position) + inside;
            UNROLL
            for (int i = 0; i < WORDS; ++i) reinterpret_cast<unsigned*>(cache)[i] = words[i];
        });
        trace.stamp(Trace::QKV);
        if (heads > 0) {
            AttentionPart part = attention_part(*this, layer, step, 0, 0);
            receive(gathers.qkv, rows() * heads * 3 * head_dim() * static_cast<int>(sizeof(T)));
            trace.stamp(Trace::GATHER_QKV);
            NO_UNROLL
            for (int i = 0; i < rows() * heads; ++i) {
                if (i > 0) part = attention_part(*this, layer, step, ONE ? 0 : i / heads, ONE ? i : i % heads);
                if (i > 0) cta_sync();  // the warps' states have been read
                attend(*this, layer, ONE ? 0 : i / heads, ONE ? i : i % heads, part);
            }
            trace.stamp(Trace::ATTENTION);
            row_parallel<PROJ>(layer, {m.input, m.input_stride}, heads * a.plan.head_chunks, 0, [&] {
                receive(gathers.states, 4 * cluster() * rows() * heads * (head_dim() + STATE_PAD));
                trace.stamp(Trace::GATHER_STATES);
                merge_states(*this);
            });
        }
        trace.stamp(Trace::PROJ);

        const Outputs fc1 = outputs_of(FC1, layer, share.tiles[FC1].begin);
        normalize(*this, vectors(layer, matrix(FC1).norm), share.tiles[FC1].count() > 0, [&] { return all_reduce(0); });
        trace.stamp(Trace::NORM);
        column_parallel(FC1, layer, fc1, [&](const Outputs& of, const float2& value) {
            const int at = of.row * m.inner_stride + (of.tile - share.fc1_begin) * TILE_ROWS * INPUT_BYTES;
            const uint2 words = input_of<T>(gelu(value.x), gelu(value.y));
            gather_send_quad<ONE>(m.inner + at, {words.x, words.y}, of.exists, cluster(), gathers.inner, layers_done);
        });
        trace.stamp(Trace::FC1);
        row_parallel<FC2>(layer, {m.inner, m.inner_stride}, share.inner.count(), fc2_set(layers_done), [&] {
            if (share.inner.count() > 0) receive(gathers.inner, rows() * share.inner.count() * CHUNK_INPUT<T>);
            trace.stamp(Trace::GATHER_INNER);
        });
        trace.stamp(Trace::FC2);
        ++layers_done;
    }

    // Writes the CTA's largest logits to its LL lines.
    __device__ __forceinline__ void lm_head(unsigned flag) {
        const int layers = a.model.layers;
        const Outputs logits = outputs_of(LM_HEAD, layers, share.tiles[LM_HEAD].begin);
        const float* const norm = vectors(layers, matrix(LM_HEAD).norm);
        normalize(*this, norm, true, [&] { return all_reduce(fc2_set(layers_done - 1)); });
        trace.stamp(Trace::NORM);
        __threadfence();  // the step's keys and values, before the LL lines
        // Loaded early, since it comes from host memory
        const bool cancel = blockIdx.x == 0 && threadIdx.x == 0 && *static_cast<const volatile int*>(a.cancel) != 0;
        Best best = {-INFINITY, 0};
        column_parallel(LM_HEAD, layers, logits, [&](const Outputs& of, const float2& value) {
            UNROLL
            for (int i = 0; i < 2; ++i) {
                const Best one = {i ? value.y : value.x, of.col + i};
                if (!of.exists || one.token >= a.model.vocab) continue;
                if (a.logits && !(ONE && warp() > 0)) a.logits[int64_t{of.row} * a.model.vocab + one.token] = one.value;
                if (is_better(one, best)) best = one;
            }
        });
        if (SAMPLED) __threadfence();  // the logits
        best = best_of_lanes(best);
        if (warp() < rows() && lane() == 0)
            ll_store(line(warp(), static_cast<int>(blockIdx.x)), __float_as_uint(best.value),
                     static_cast<unsigned>(best.token) | (cancel ? CANCELLED : 0), flag);
        trace.stamp(Trace::LM_HEAD);
    }
    __device__ __forceinline__ unsigned long long* line(int row, int cta) const {
        return a.workspace + a.plan.lines + 2 * (row * a.plan.ctas + cta);
    }

    // Whether there is a next step
    __device__ __forceinline__ bool goes_on() const {
        bool all_finished = true, all_numbers = true;
        for (int r = 0; r < rows(); ++r)
            all_finished &= state.finished[r], all_numbers &= state.token[r] != NO_TOKEN;
        return !state.cancelled && !all_finished && all_numbers;
    }
};

// --------------------------------------------------------------------------------------------------- 5. Kernel

template <class Step>
__global__ void __launch_bounds__(KERNEL_THREADS, 1) persistent_step_kernel(const __grid_constant__ Steps a) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ PipelineBarriers barriers;
    __shared__ Gathers gathers;
    __shared__ StepState state;
    // In registers: the compiler would have to assume that a pointer loaded from shared memory could point anywhere
    const Share share = share_of(a.model, a.plan, static_cast<int>(blockIdx.x));
    const Smem m = smem_layout(memory, a.model, a.plan);
    const int rows = a.model.rows, row = static_cast<int>(threadIdx.x), first_step = a.steps[0];
    if (a.workspace[0] != 0) return;  // an earlier launch ended the text
    if (threadIdx.x == 0) {
        pipeline_init(barriers, a.plan.stages, CTA_WARPS);
        for (Gather* one : {&gathers.stream, &gathers.qkv, &gathers.states, &gathers.inner}) gather_init(*one);
        signal_init(gathers.histograms, static_cast<unsigned>(a.plan.cluster));
        hopper::mbarrier_init_done();
        state.cancelled = false;
    }
    if (row < rows) {
        state.position[row] = a.positions[row], state.finished[row] = a.finished[row] != 0;
        const bool known = first_step > 0 && first_step <= a.history_steps;
        state.token[row] = known ? a.history[(first_step - 1) * rows + row] : 0;
    }
    for (int i = threadIdx.x; i < (1 + SUM_SETS) * rows * share.columns.count(); i += KERNEL_THREADS) m.sums[i] = 0;
    for (int i = threadIdx.x; a.model.sampled && i < 2 * BINS; i += KERNEL_THREADS) m.bins[i] = {};
    if (threadIdx.x < INPUT_BYTES * a.model.chunk_columns()) m.zeros[threadIdx.x] = 0;
    __syncthreads();
    cluster_sync();  // all mbarriers are initialized
    if (threadIdx.x >= CTA_THREADS) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        hopper::fewer_registers<PRODUCER_REGISTERS>();
#endif
        if (threadIdx.x > CTA_THREADS) return;
        Producer producer{{barriers, m.stages, a.plan.stages, a.plan.stage_bytes}};
        Step::produce(a, share, state, producer);
        return producer.drain();
    }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    hopper::more_registers<CONSUMER_REGISTERS>();
#endif
    Consumer weights{{barriers, m.stages, a.plan.stages, a.plan.stage_bytes}};
    Trace trace;
    Step run{a, m, share, state, gathers, weights, trace};
    int step = 0;
    NO_UNROLL
    for (bool more = true; more; ++step) {
        NO_UNROLL
        for (int layer = 0; layer < a.model.layers; ++layer) run.layer(layer, step);
        run.lm_head(a.first_flag + step);
        next_token(run, first_step + step, a.first_flag + step);
        more = step + 1 < a.count && run.goes_on();
        if (threadIdx.x == 0) weights.end_step(step, more);
    }
    if (Step::SAMPLED && a.model.sampled) {  // others may still read this CTA's histograms
        if (row < a.plan.cluster) signal_send(gathers.histograms, threadIdx.x, run.histograms);
        gather_wait(gathers.histograms, run.histograms);
    }
    if (blockIdx.x > 0 || row >= rows) return;
    a.positions[row] = state.position[row] + step, a.lengths[row] = state.position[row] + step + 1;
    a.steps[row] = first_step + step, a.finished[row] = state.finished[row], a.workspace[0] = !run.goes_on();
#endif
}

#include "common/kernels/gpt2/step_launch.cuh"  // kernel_for, plan_steps, run_steps
#endif
