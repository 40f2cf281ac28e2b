// step_plan.h - how the persistent kernel (persistent_step.cu) divides a decode step among the GPU's SMs.
//
//   1. Model    StepModel              the sizes of a GPT-2 and of a batch
//   2. Plan     Matrix, StepPlan       weights and workspace in memory; plan_layout() fills it in
//   3. Shares   Share, share_of        what a CTA computes
//   4. Shared   Smem, smem_layout      a CTA's shared memory
//   5. Launch   Steps, plan_steps, run_steps
//
// Weights are packed in the order in which CTAs read them (PackedWeights of persistent_step.py). A tile is 8 rows of a
// matrix [N, K]; a chunk is 64 bytes of each of its rows: 512 contiguous bytes, 16 for each lane of a warp.
//
//   weights   [layers][QKV, PROJ, FC1, FC2], then LM_HEAD
//             QKV, FC1, LM_HEAD  [tiles][chunks][8][64 bytes]; QKV's rows are [heads][query, key, value][head_dim]
//             PROJ, FC2          [SLICES][chunks][tiles of the slice][8][64 bytes]; PROJ's columns are
//                                [heads][head_dim, zero-padded to whole chunks]
//   vectors   float [layers][norm_1 weight, bias; QKV bias; PROJ bias; norm_2 weight, bias; FC1 bias; FC2 bias;
//             softmax scale, 0, 0, 0], then the last norm's weight and bias
//
// T is float32, float16 or bfloat16.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/cuda/check.h"
#include "common/cuda/float_type.h"
#include "common/kernels/gpt2/fixed_point.cuh"
#include "common/kernels/gpt2/gpt2.h"

constexpr int TILE_ROWS = 8, CHUNK_BYTES = 512, CHUNK_ROW_BYTES = CHUNK_BYTES / TILE_ROWS;
constexpr int SLICES = 8;  // PROJ's and FC2's outputs are cut into these; a multiple of the CTAs in a cluster
constexpr int MAX_CLUSTERS = 32;
constexpr int CTA_WARPS = 8, CTA_THREADS = 32 * CTA_WARPS;  // two consumer warpgroups
constexpr int KERNEL_THREADS = CTA_THREADS + 128;           // and one in which a single thread is the producer
constexpr int TILE_BATCH = 8;    // tiles whose partial sums are reduced together
constexpr int WARP_CHUNKS = 4;   // chunks of a column-parallel stage per warp
constexpr int WARP_TILES = 4;    // tiles of a slice per warp
constexpr int STAGE_CHUNKS = 2;  // maximum chunks in a row-parallel stage
constexpr int KEPT_TILES = 2;    // out of 8 tiles of LM_HEAD: kept in the L2 cache for the next step
constexpr int SUM_SETS = 3;      // sets of all-reduce sums: one for PROJ, two alternating for FC2
constexpr int INPUT_BYTES = 4;   // per column of a GEMV's input in shared memory, for any T
constexpr int STATE_PAD = 4;     // floats after a softmax state's head_dim: m, l, 0, 0
constexpr int BINS = 256;        // bins of a sampling histogram, one per thread (step_sampling.cuh)
constexpr int SAMPLED_PER_THREAD = 28;  // maximum number of logits that a thread samples from

// --------------------------------------------------------------------------------------------------- 1. Model

struct StepModel {
    FloatType type;
    int layers, width, heads, hidden, vocab;
    int rows;  // sequences of the batch, 1 .. MAX_STEP_ROWS
    int max_seq_len;
    bool sampled;  // tokens are sampled; else greedy

    __host__ __device__ int head_dim() const { return width / heads; }
    __host__ __device__ int element_bytes() const { return type == FloatType::FLOAT32 ? 4 : 2; }
    __host__ __device__ int chunk_columns() const { return CHUNK_ROW_BYTES / element_bytes(); }
    __host__ __device__ int head_tiles() const { return 3 * head_dim() / TILE_ROWS; }  // tiles of QKV per head
    __host__ __device__ int head_chunks() const {                                      // chunks of PROJ per head
        return (head_dim() + chunk_columns() - 1) / chunk_columns();
    }
};

// ---------------------------------------------------------------------------------------------------- 2. Plan

enum Phase { QKV, PROJ, FC1, FC2, LM_HEAD, MATRICES };  // ATTENTION has no weights

// Offsets are those of the first layer.
struct Matrix {
    int n, tiles, chunks;
    int stage_chunks;  // QKV, FC1, LM_HEAD: a stage is this many chunks of one tile; PROJ, FC2: of all tiles of a slice
    size_t weights;    // bytes from the start of all weights
    int bias, norm;    // floats from the start of all vectors, the norm's weight and bias; -1: none

    __host__ __device__ size_t tile_bytes() const { return size_t{CHUNK_BYTES} * chunks; }
    __host__ __device__ int slice_begin(int slice) const { return tiles * slice / SLICES; }
};

struct StepPlan {
    bool fits;
    int ctas, cluster, clusters;  // CTAs in all, CTAs of a cluster, clusters
    Matrix matrices[MATRICES];
    size_t layer_bytes, weight_bytes;
    int layer_vectors, vectors, scale;  // scale: the index of the softmax scale among a layer's vectors
    int sums, lines, workspace;  // 64-bit words: [SUM_SETS][rows][width] sums, [rows][ctas][2] LL lines; in total
    fixed_point::Scale sum_scale;
    float inverse_width;
    int head_dim, head_chunks, head_tiles, head_lanes;  // head_lanes: 16-byte vectors of a key or value, a power of 2
    int max_heads, max_inner, max_columns;  // a CTA's heads, chunks of FC2's columns, columns of the residual stream
    int stages, stage_tokens;               // stage_tokens: keys and values that fit in a stage
    unsigned stage_bytes;
    int smem_bytes;
};

struct Range {
    int begin, end;
    __host__ __device__ int count() const { return end - begin; }
};

// Part `part` of `parts`, whose sizes differ by at most one.
__host__ __device__ inline Range part_of(Range all, int parts, int part) {
    return {all.begin + all.count() * part / parts, all.begin + all.count() * (part + 1) / parts};
}

// -------------------------------------------------------------------------------------------------- 3. Shares

struct Share {
    int cluster, rank;
    Range heads, inner;     // the cluster's heads and chunks of FC2's columns
    Range tiles[MATRICES];  // the CTA's, of QKV, FC1 and LM_HEAD
    Range slices, columns;  // the CTA's, of PROJ's and FC2's outputs: slices, and columns of the residual stream
    int fc1_begin;          // the cluster's first tile of FC1
};

__host__ __device__ inline Share share_of(const StepModel& model, const StepPlan& plan, int cta) {
    Share s = {};
    s.cluster = cta / plan.cluster, s.rank = cta % plan.cluster;
    const auto of_cluster = [&](int count) { return part_of({0, count}, plan.clusters, s.cluster); };
    const auto of_cta = [&](int begin, int end) { return part_of({begin, end}, plan.cluster, s.rank); };
    const int inner_tiles = model.chunk_columns() / TILE_ROWS;  // tiles of FC1 per chunk of FC2
    const Range logits = of_cluster(plan.matrices[LM_HEAD].tiles);
    s.heads = of_cluster(model.heads), s.inner = of_cluster(plan.matrices[FC2].chunks);
    s.fc1_begin = s.inner.begin * inner_tiles;
    s.tiles[QKV] = of_cta(s.heads.begin * model.head_tiles(), s.heads.end * model.head_tiles());
    s.tiles[FC1] = of_cta(s.fc1_begin, s.inner.end * inner_tiles);
    s.tiles[LM_HEAD] = of_cta(logits.begin, logits.end);
    s.slices = of_cta(0, SLICES);
    const Matrix& fc2 = plan.matrices[FC2];
    s.columns = {TILE_ROWS * fc2.slice_begin(s.slices.begin), TILE_ROWS * fc2.slice_begin(s.slices.end)};
    return s;
}

// ------------------------------------------------------------------------------------------- 4. Shared memory

struct Moments {  // partial sums of a row, by warp
    float sum[CTA_WARPS], squares[CTA_WARPS];
};
struct alignas(16) Bin {  // a bin of a sampling histogram, or an entry of a list of tokens
    unsigned count, token, low, high;  // low, high: of the weights
};

struct Smem {
    unsigned char* stages;   // [stages][stage_bytes]                     the weight pipeline
    float* stream;           // [2][rows][width]                          all-gathered: the residual stream
    unsigned char* qkv;      // T [rows][heads][3][head_dim]              all-gathered: the cluster's q, k, v
    float* states;           // [cluster][rows][heads][head_dim + 4]      all-gathered: softmax states: o; m, l
    unsigned char* inner;    // [rows][inner_stride]                      all-gathered: FC2's input, see `input`
    long long* sums;         // [1 + SUM_SETS][rows][columns]             the CTA's columns of the residual stream, in
                             //                                           fixed point; the sums as last seen
    unsigned char* zeros;    // a chunk's input of zeros
    unsigned char* input;    // [rows][input_stride]                      a GEMV's input. 16 bits: for every 4 columns
                             //                                           2 rounded, their rest; 2 rounded, their rest
    float* partial;          // [2][CTA_WARPS][TILE_BATCH][rows][8]       warps' sums, double-buffered
    float* warp_states;      // [CTA_WARPS][head_dim], [CTA_WARPS][2]     warps' softmax states
    Moments* moments;        // [rows]
    Bin* bins;               // [2][BINS]                                 if sampled
    float* maxima;           // [rows][MAX_CLUSTERS * SLICES]             if sampled: of each CTA's logits
    int inner_stride, input_stride, partial_floats, bytes;  // strides: rows start in different banks
};

__host__ __device__ inline Smem smem_layout(unsigned char* memory, const StepModel& model, const StepPlan& plan) {
    Smem m = {};
    const auto take = [&](auto*& to, int bytes) {
        to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(memory + m.bytes);
        m.bytes += (bytes + 15) / 16 * 16;
    };
    const auto stride = [](int bytes) { return (bytes + 127) / 128 * 128 + 64; };
    const int rows = model.rows, head_dim = model.head_dim(), chunk_input = INPUT_BYTES * model.chunk_columns();
    const int attended = plan.max_heads * model.head_chunks() * chunk_input, width = model.width * INPUT_BYTES;
    m.inner_stride = stride(plan.max_inner * chunk_input);
    m.input_stride = stride(attended > width ? attended : width);
    m.partial_floats = CTA_WARPS * TILE_BATCH * rows * TILE_ROWS;
    take(m.stages, plan.stages * static_cast<int>(plan.stage_bytes));
    take(m.stream, 4 * 2 * rows * model.width);
    take(m.qkv, rows * plan.max_heads * 3 * head_dim * model.element_bytes());
    take(m.states, 4 * plan.cluster * rows * plan.max_heads * (head_dim + STATE_PAD));
    take(m.inner, rows * m.inner_stride);
    take(m.sums, 8 * (1 + SUM_SETS) * rows * plan.max_columns);
    take(m.zeros, chunk_input);
    take(m.input, rows * m.input_stride);
    take(m.partial, 4 * 2 * m.partial_floats);
    take(m.warp_states, 4 * CTA_WARPS * (head_dim + 2));
    take(m.moments, static_cast<int>(sizeof(Moments)) * rows);
    take(m.bins, model.sampled ? 2 * BINS * static_cast<int>(sizeof(Bin)) : 0);
    take(m.maxima, model.sampled ? 4 * rows * MAX_CLUSTERS * SLICES : 0);
    return m;
}

// What the kernel assumes.
inline bool sizes_fit(const StepModel& model, int cluster) {
    const int lanes = model.head_dim() * model.element_bytes() / 16, columns = model.chunk_columns();
    return model.rows >= 1 && model.rows <= MAX_STEP_ROWS && model.width % model.heads == 0 &&
           model.head_dim() % TILE_ROWS == 0 && lanes >= 1 && lanes <= 32 && (lanes & (lanes - 1)) == 0 &&
           model.width % columns == 0 && model.hidden % columns == 0 &&
           model.width <= SLICES * CTA_WARPS * WARP_TILES * TILE_ROWS &&
           !(model.sampled && model.vocab > cluster * CTA_THREADS * SAMPLED_PER_THREAD);
}

// Everything except stages and smem_bytes.
inline void plan_layout(StepPlan& plan, const StepModel& model, int cluster, int clusters) {
    constexpr int MOST_CHUNKS = WARP_CHUNKS * CTA_WARPS;  // stages of 16 KB: many, and large enough for TMA
    const int width = model.width, hidden = model.hidden, columns = model.chunk_columns();
    plan.cluster = cluster, plan.clusters = clusters, plan.ctas = cluster * clusters;
    plan.sum_scale = fixed_point::scale_for(clusters);
    plan.inverse_width = 1.0f / static_cast<float>(width);
    plan.head_dim = model.head_dim(), plan.head_chunks = model.head_chunks(), plan.head_tiles = model.head_tiles();
    plan.head_lanes = plan.head_dim * model.element_bytes() / 16;
    const auto take = [&](int count) { return plan.layer_vectors += count, plan.layer_vectors - count; };
    const auto add = [&](Phase phase, int n, int chunks) {
        Matrix& m = plan.matrices[phase];
        const bool row_parallel = phase == PROJ || phase == FC2;
        m.n = n, m.tiles = ceil_div(n, TILE_ROWS), m.chunks = chunks;
        const int stage_tiles = row_parallel ? ceil_div(m.tiles, SLICES) : 1;
        m.stage_chunks = row_parallel ? std::clamp(MOST_CHUNKS / stage_tiles, 1, STAGE_CHUNKS)
                                      : ceil_div(chunks, ceil_div(chunks, MOST_CHUNKS));
        const int stage_bytes = CHUNK_BYTES * stage_tiles * m.stage_chunks;
        plan.stage_bytes = std::max(plan.stage_bytes, static_cast<unsigned>(stage_bytes));
        m.bias = m.norm = -1;
        if (phase == LM_HEAD) return;
        m.weights = plan.layer_bytes, plan.layer_bytes += m.tiles * m.tile_bytes();
        if (!row_parallel) m.norm = take(2 * width);
        m.bias = take(n);
    };
    add(QKV, 3 * width, width / columns);
    add(PROJ, width, model.heads * model.head_chunks());
    add(FC1, hidden, width / columns);
    add(FC2, width, hidden / columns);
    add(LM_HEAD, model.vocab, width / columns);
    plan.scale = take(4);
    plan.matrices[LM_HEAD].norm = 0;  // after the last layer's, as are its weights
    plan.vectors = model.layers * plan.layer_vectors + 2 * width;
    const Matrix& head = plan.matrices[LM_HEAD];
    plan.weight_bytes = model.layers * plan.layer_bytes + head.tiles * head.tile_bytes();
    const int token_bytes = 2 * plan.head_dim * model.element_bytes();
    plan.stage_tokens = std::min(static_cast<int>(plan.stage_bytes) / token_bytes, CTA_THREADS * 32 / token_bytes);
    plan.sums = 2;  // after one word that says whether the run is over, and one of padding
    plan.lines = plan.sums + (SUM_SETS * model.rows * width + 1) / 2 * 2;
    plan.workspace = plan.lines + 2 * model.rows * plan.ctas;
    for (int cta = 0; cta < plan.ctas; ++cta) {
        const Share share = share_of(model, plan, cta);
        plan.max_heads = std::max(plan.max_heads, share.heads.count());
        plan.max_inner = std::max(plan.max_inner, share.inner.count());
        plan.max_columns = std::max(plan.max_columns, share.columns.count());
    }
}

// -------------------------------------------------------------------------------------------------- 5. Launch

struct Steps {
    StepModel model;
    StepPlan plan;
    const unsigned char* weights;
    const float* vectors;
    const void *wte, *wpe;  // T [vocab, width], [context, width]
    int context;
    float eps;
    void* cache;  // T [layers][keys, values][batch][heads][max_seq_len][head_dim]
    int batch;    // batch size of the cache; the first `rows` are used
    unsigned long long* workspace;  // [plan.workspace], zeroed before the first run
    float* logits;                  // [rows, vocab]; nullptr unless wanted or sampled
    int *positions, *lengths, *steps, *finished;  // [rows]; see NextToken in gpt2.h
    const int* stop;                              // [1], a token; -1: none
    int* history;                                 // [history_steps, rows]
    int history_steps;
    const double *uniforms, *temperature, *top_p;  // sampled: [history_steps, rows], [1], [1]; see sampling.py
    const int64_t* top_k;                          // [1]
    int* arrived;        // [history_steps, rows], mapped host memory: the tokens as they arrive
    const int* cancel;   // [1], also mapped: nonzero ends the run after the current step
    bool first;          // the first launch of a text: earlier launches don't count
    int count;           // steps
    unsigned first_flag;  // for the LL lines: the launch uses first_flag ... first_flag + count - 1, each of them once
    cudaStream_t stream;
};

constexpr int NO_TOKEN = -2;  // in `arrived` and `history`: the logits are not numbers

// max_ctas: 0 for as many as suit the GPU. `fits` is false if the kernel does not support the model; the rest is then
// unset.
StepPlan plan_steps(const StepModel& model, int max_ctas);

// Runs `count` steps, or fewer if all sequences have reached their stop token, `cancel` is set, or a step produces
// NO_TOKEN, after which the text's later launches do nothing. The input of the first step is token steps[] - 1 of the
// history. Afterward positions, lengths and steps have advanced by the number of steps; a finished sequence keeps
// advancing with the others.
void run_steps(const Steps& steps);
