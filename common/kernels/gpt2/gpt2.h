// gpt2.h - the launchers for GPT-2's layers around attention that binding.cpp calls.
//
//   layernorm, bias_gelu          between the GEMMs, for any number of rows                     elementwise.cu
//   BeginText, begin_text                             a prefill's prompts and initial state     prefill.cu
//   StoreHeads, store_heads, LastRows, last_rows      what follows its attention                prefill.cu
//   Linear, linear                a GEMM of a few hundred rows, on Hopper                       linear.cu
//   StepGemv, step_gemv           a GEMV of a decode step, with prologue and epilogue fused     step_product.cuh
//   DrawToken, draw_token         samples a token for each sequence                             draw_token.cu
//   NextToken, next_token         what follows the last GEMV of a step                          next_token.cu
//
// A decode step is four GEMVs per layer, with at most four rows, so all that counts is reading the weights at full
// speed. The operations before and after each GEMV are fused into it, so that nothing else has to run:
//
//   layernorm, q k v, bias        q -> buffer, k and v -> their slots in the KV cache
//   (decode_attention, see common/kernels/decode)
//   projection, bias              += residual stream
//   layernorm, expand, bias, gelu -> buffer
//   project back, bias            += residual stream
//   ...
//   layernorm, logits             -> logits, and the largest of each block
//   next_token                    the token, its embedding -> residual stream; advances positions and lengths
//
// "T" is the dtype of weights, buffers and cache: float32, float16 or bfloat16. The residual stream is always float32.
// Pointers are device pointers. Every function enqueues its kernel on `stream` and returns; nothing is checked here. No
// value on the device is read on the host: everything can be captured in a CUDA graph.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "common/cuda/float_type.h"
#include "common/cuda/row_strides.h"

// sum = x + residual (nullptr: x), out[r, c] = (sum[r, c] - mean[r]) / sqrt(variance[r] + eps) * weight[c] + bias[c].
//
//   x, residual, out, sum T [rows, width]; weight, bias T [width]
void layernorm(FloatType type, const void* x, const void* residual, const void* weight, const void* bias, void* out,
               void* sum, int64_t rows, int width, float eps, cudaStream_t stream);

// out[r, c] = gelu(x[r, c] + bias[c]), see gelu.cuh.
//
//   x, out T [rows, width]; bias T [width]
void bias_gelu(FloatType type, const void* x, const void* bias, void* out, int64_t rows, int width,
               cudaStream_t stream);

// x[r] = wte[prompts[r]] + wpe[r % seq_len]; state = host_state. Reads the host's memory while it runs.
struct BeginText {
    FloatType type;
    const int *host_state, *prompts;  // [state_size], [rows] = [batch, seq_len], both in pinned host memory
    int* state;                       // [state_size]
    const void *wte, *wpe;            // T [vocab, width], [seq_len or more, width]
    void* x;                          // T [rows, width]
    int64_t state_size;
    int rows, seq_len, width, vocab;
    cudaStream_t stream;
};

void begin_text(const BeginText& arguments);

// out[b, s, h, d] = attended[b, h, s, d]; stores keys and values of qkv to the caches' slots 0 .. seq_len - 1.
struct StoreHeads {
    const void* attended;  // [batch, heads, seq_len, head_dim]
    void* out;             // [batch, seq_len, heads, head_dim]
    const void* qkv;       // [batch, seq_len, 3, heads, head_dim]; nullptr, as are the caches: not stored
    void *k_cache, *v_cache;  // [batch, heads, max_seq_len, head_dim]
    int batch, heads, seq_len, max_seq_len, head_dim, element_bytes;
    cudaStream_t stream;
};

void store_heads(const StoreHeads& arguments);

// residual[b] = x[b, positions[b]], out[b] = heads[b, positions[b]]; and prefetches the first of `fetched_bytes` bytes
// of `fetched`, as many as there is room for, into the L2 cache.
struct LastRows {
    FloatType type;
    const void *x, *heads;  // T [batch, seq_len, width]
    const int* positions;   // [batch], less than seq_len
    float* residual;        // [batch, width]
    void* out;              // T [batch, width]
    const void* fetched;
    int64_t fetched_bytes;
    int batch, seq_len, width;
    cudaStream_t stream;
};

void last_rows(const LastRows& arguments);

// y = x @ weight^T + bias, optionally followed by gelu.     x T [M, K], weight T [N, K], bias T [N]; T: 16 bits
//
// The columns of y are divided among tensors, part_columns each: all in y[0], [M, N]; or queries, keys and values in
// y[0 .. 2], each [batch, heads, seq_len or more, head_dim] by its strides; row m is token m % seq_len of sequence
// m / seq_len.
struct Linear {
    FloatType type;
    int M, N, K;
    const void *x, *weight, *bias;
    bool gelu;
    void* y[3];
    RowStrides strides[3];
    int part_columns, head_dim, seq_len;  // the first two: multiples of 8
    cudaStream_t stream;
};

// Whether there is a kernel for these sizes on this GPU: Hopper, and all tiles of y run at once.
bool linear_fits(FloatType type, int64_t M, int64_t N, int64_t K);
// False, with nothing launched, if TMA cannot address an operand, or it doesn't fit.
bool linear(const Linear& arguments);

constexpr int64_t MAX_LAYERNORM_ROWS = int64_t{1} << 32;  // 4 per block, at most 2^31 - 1 blocks
constexpr int64_t MAX_GELU_ELEMENTS = int64_t{1} << 37;
constexpr int MAX_STEP_ROWS = 4;           // sequences per batch; larger batches use TorchStep (decode_step.py)
constexpr size_t MAX_STEP_SHARED = 49152;  // bytes of shared memory that every GPU allows without opting in

// A block's largest logit of a sequence and its index in the vocabulary.
struct Best {
    float value;
    int token;
};

// y[r, n] = sum over k of input[r, k] * weight[n, k], + bias[n].     weight T [N, K], bias float [N]
//
// The input is x, T [rows, K]; or, if there is a norm_weight, a layernorm of `residual`, float [rows, K]. Then no
// thread waits for mean and standard deviation, since they can be applied to the sums afterward:
//
//     sum over k of ((r_k - mean) / std * norm_weight_k + norm_bias_k) * weight_nk
//         = (sum over k of r_k * norm_weight_k * weight_nk  -  mean * weight_sum_n) / std  +  a constant
//
//     weight_sum[n] = sum over k of norm_weight_k * weight_nk        float [N], computed once, in float64
//     the constant, sum over k of norm_bias_k * weight_nk, is then part of `bias`
struct StepGemv {
    enum class Output { QKV, RESIDUAL, GELU, LOGITS };
    FloatType type;
    Output output;
    int rows, n, k;
    const void* weight;
    const float* bias;
    const void* x;
    const void* norm_weight;  // T [K]; nullptr: the input is x
    const float* weight_sum;
    float eps;
    float* residual;  // RESIDUAL: [rows, N], y is added to it

    void* out;                // QKV: the queries T [rows, N / 3]; GELU: T [rows, N]; LOGITS: float [rows, N]
    void *k_cache, *v_cache;  // QKV: T [rows, heads, max_seq_len, head_dim]
    const int* positions;     // QKV: [rows], the slot; an invalid one is not written to
    int head_dim, max_seq_len;
    Best* best;  // LOGITS: [rows, step_blocks()]

    bool early;  // may start before its predecessor in the stream, which must be a kernel, has finished
    cudaStream_t stream;
};

void step_gemv(const StepGemv& gemv);
// The number of blocks of a GEMV with output LOGITS.
int step_blocks(const StepGemv& gemv);
// Bytes of shared memory.
size_t step_shared_bytes(const StepGemv& gemv);

// Samples one token per sequence from softmax(logits / temperature), like `draw` of sampling.py, without a sort.
struct DrawToken {
    int rows, vocab;
    const float* logits;  // [rows, vocab]
    const Best* best;     // [rows, blocks], the largest of each part of the logits
    int blocks;
    const int* steps;                                    // [rows], the row of uniforms
    const double *uniforms, *temperature, *top_p;        // [history_steps, rows], [1], [1]
    const int64_t* top_k;                                // [1]
    int history_steps;
    int64_t* tokens;  // [rows]
    cudaStream_t stream;
};

// Whether the GPU and the size of the vocabulary allow it.
bool draw_fits(int vocab);
void draw_token(const DrawToken& arguments);

// For each sequence: takes the token, from `best` (the overall largest) or from `tokens`, records it, advances, and
// looks up the input of the next step.
//
//   token                       history[steps, sequence] = token
//   finished |= token == stop   a finished sequence does not advance
//   steps, positions, lengths   += 1
//   residual                    = wte[token] + wpe[position]
struct NextToken {
    FloatType type;
    int rows, width, vocab;
    const Best* best;      // [rows, blocks]; or nullptr
    int blocks;
    const int64_t* tokens;  // [rows]; read if best is nullptr
    const int* stop;        // [1], a token; -1: none
    int *finished, *steps, *positions, *lengths;  // [rows]
    int* history;           // [history_steps, rows]; steps beyond it are not recorded
    int* arrived;           // the same in the host's memory; or nullptr
    int history_steps, context;
    const void *wte, *wpe;  // T [vocab, width], [context, width]
    float* residual;        // [rows, width]
    bool early;
    cudaStream_t stream;
};

void next_token(const NextToken& arguments);
