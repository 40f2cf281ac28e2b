// naive_attention.cu - attention in three kernels, nothing optimized: the baseline of all later tasks.
//
//   1. Threads     thread_number                    which thread of the whole grid am I?            (gap 6)
//   2. Scores      scores_kernel, launch_scores     S = Q K^T * scale, masked; a thread per score   (gaps 7, 8)
//   3. Softmax     softmax_kernel, launch_softmax   P = softmax(S); a thread per row                (gaps 9 to 12)
//   4. Output      output_kernel, launch_output     O = P V; a thread per output element            (gaps 13, 14)
//   5. Attention   naive_attention                  the three, one after the other                  (gap 15)
//
// A kernel (__global__) is a function that the GPU runs once per thread, all at the same time. It has no loop over the
// elements of its result: each thread asks for its number and computes the element with that number.
//
// Every head of every batch entry is a problem of its own, stored one after the other in memory. So batch and
// heads are counted in a single number, batch_head. All arrays are row-major:
//
//   query, out [batch_heads, S_q, head_dim]        element (i, q, d) is query[(i * S_q + q) * head_dim + d]
//   key, value [batch_heads, S_k, head_dim]        element (i, k, d) is key[(i * S_k + k) * head_dim + d]
//   scores, weights [batch_heads, S_q, S_k]        element (i, q, k) is scores[(i * S_q + q) * S_k + k]
//
// Such an index can pass 2^31, the end of a 32-bit int: that is why sizes and indices are int64_t here.
//
// T is the type of the inputs and the output: float, or one of the 16-bit types __half and __nv_bfloat16. Write the
// code as for float, and convert where you read and store: static_cast<float>(x), static_cast<T>(sum). All arithmetic
// is done in float; the product of two __half would be rounded to 11 bits.
#include "task1/given/naive_attention.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/not_implemented.h"

// ------------------------------------------------------------------------------------------------ 1. Threads
//
// The threads of a grid come in blocks of equal size. A thread knows the number of its block, how many threads a
// block has, and its own number within the block (all have an .x, a .y and a .z; here only .x is used):
//
//   blockIdx.x     0  0  0 ... 0       1   1   1 ... 1       2   2  ...
//   threadIdx.x    0  1  2 ... 255     0   1   2 ... 255     0   1  ...         blockDim.x = 256
//   number         0  1  2 ... 255     256 257 258 ... 511   512 513 ...
__device__ __forceinline__ int64_t thread_number() {
    int64_t number = 0;
    // BEGIN SOLUTION 6 (1 line): the number of this thread in the whole grid, as in the picture. The three variables
    //     are 32-bit integers, and so is a product of two of them: make one an int64_t first, static_cast<int64_t>(x).
    number = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    // END SOLUTION
    return number;
}

// How many blocks of THREADS threads it takes to have at least `threads` of them.
static unsigned blocks_for(int64_t threads) { return static_cast<unsigned>(ceil_div(threads, THREADS)); }

// ------------------------------------------------------------------------------------------------- 2. Scores

// Thread number n computes scores[n].
//
//   query [batch_heads, S_q, head_dim], key [batch_heads, S_k, head_dim] -> scores [batch_heads, S_q, S_k]
template <typename T>
__global__ void scores_kernel(const T* query, const T* key, float* scores, int64_t batch_heads, int64_t S_q,
                              int64_t S_k, int64_t head_dim, float scale, bool causal, AttentionMask mask) {
    const int64_t index = thread_number();
    // A grid is made of whole blocks. Unless the number of scores is a multiple of 256, the last block has threads
    // that have nothing to do; they must not touch memory that isn't theirs.
    if (index >= batch_heads * S_q * S_k) return;

    int64_t batch_head = 0, q = 0, k = 0;
    // BEGIN SOLUTION 7 (3 lines): find batch_head, q and k from index, that is, undo
    //     index = (batch_head * S_q + q) * S_k + k. The remainder of a division by S_k is k; what remains of the
    //     quotient is q and batch_head in the same way.
    k = index % S_k;
    q = index / S_k % S_q;
    batch_head = index / S_k / S_q;
    // END SOLUTION

    float sum = 0.0f;
    // BEGIN SOLUTION 8 (5 lines): sum is the dot product of row q of this matrix's query with row k of its key. Two
    //     pointers to the first elements of the two rows make the loop short.
    const T* query_row = query + (batch_head * S_q + q) * head_dim;
    const T* key_row = key + (batch_head * S_k + k) * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) {
        sum += static_cast<float>(query_row[d]) * static_cast<float>(key_row[d]);
    }
    // END SOLUTION

    // The mask belongs to the scaled score. The future (k > q) is hidden if causal: exp(-infinity) is 0.
    const bool in_the_future = causal && k > q;
    scores[index] = in_the_future ? -INFINITY : masked_score(sum * scale, mask, batch_head, q, k);
}

// This runs on the CPU. kernel<<<blocks, threads per block, 0, stream>>>(arguments) asks the GPU to run a kernel and
// does not wait for it. (The 0 is for shared memory, which task 2 uses.)
template <typename T>
void launch_scores(const T* query, const T* key, float* scores, int64_t batch_heads, int64_t S_q, int64_t S_k,
                   int64_t head_dim, float scale, bool causal, AttentionMask mask, cudaStream_t stream) {
    scores_kernel<<<blocks_for(batch_heads * S_q * S_k), THREADS, 0, stream>>>(
        query, key, scores, batch_heads, S_q, S_k, head_dim, scale, causal, mask);
    CUDA_CHECK_LAUNCH();  // throws if the GPU refuses the launch
}

// ------------------------------------------------------------------------------------------------ 3. Softmax
//
//     P[k] = exp(S[k] - max(S)) / sum_j exp(S[j] - max(S))
//
// Numerator and denominator both carry the factor exp(-max), so it changes nothing; but without it exp(89) is
// already infinite in float, and infinity / infinity is NaN.

// Thread number n turns row n of the scores into weights. All entries of a row need its maximum and its sum: one thread
// for a whole row finds them once.
//
//   scores, weights [rows, cols]          weights may be scores: a thread reads and writes its own row only
__global__ void softmax_kernel(const float* scores, float* weights, int64_t rows, int64_t cols) {
    const int64_t index = thread_number();
    if (index >= rows) return;
    const float* scores_row = scores + index * cols;
    float* weights_row = weights + index * cols;

    float row_max = -INFINITY;
    // BEGIN SOLUTION 9 (1 line): row_max is the largest entry of the row; fmaxf(a, b) is the larger of two floats.
    for (int64_t k = 0; k < cols; ++k) row_max = fmaxf(row_max, scores_row[k]);
    // END SOLUTION

    // A fully masked row has the maximum -infinity, and -infinity - (-infinity) is NaN. With 0 in its
    // place every exponential is exp(-infinity) = 0.
    const float shift = row_max == -INFINITY ? 0.0f : row_max;

    float sum = 0.0f;
    // BEGIN SOLUTION 10 (4 lines): write exp(x - shift) for each entry x of the row of scores to the row of weights,
    //     and add these up in sum. expf is the exponential of a float.
    for (int64_t k = 0; k < cols; ++k) {
        weights_row[k] = expf(scores_row[k] - shift);
        sum += weights_row[k];
    }
    // END SOLUTION

    // BEGIN SOLUTION 11 (2 lines): divide each entry of the row of weights by the sum. In a row that is masked
    //     throughout, the sum is exactly 0: its weights are 0, not 0 / 0, which is NaN.
    const float inverse_sum = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int64_t k = 0; k < cols; ++k) weights_row[k] *= inverse_sum;
    // END SOLUTION
}

void launch_softmax(const float* scores, float* weights, int64_t rows, int64_t cols, cudaStream_t stream) {
    // BEGIN SOLUTION 12 (2 lines): as launch_scores, with as many threads as this kernel needs. Do not forget
    //     CUDA_CHECK_LAUNCH: without it a launch that the GPU refuses goes unnoticed.
    softmax_kernel<<<blocks_for(rows), THREADS, 0, stream>>>(scores, weights, rows, cols);
    CUDA_CHECK_LAUNCH();
    // END SOLUTION
}

// ------------------------------------------------------------------------------------------------- 4. Output

// Thread number n computes out[n].
//
//   weights [batch_heads, S_q, S_k], value [batch_heads, S_k, head_dim] -> out [batch_heads, S_q, head_dim]
template <typename T>
__global__ void output_kernel(const float* weights, const T* value, T* out, int64_t batch_heads, int64_t S_q,
                              int64_t S_k, int64_t head_dim) {
    // BEGIN SOLUTION 13 (9 lines): all of it. scores_kernel is the model: the number of this thread, return if there is
    //     no such element, the place of the element in out, two pointers, a loop, the store. The sum runs over the
    //     keys: the weights of query q times the entries of value in column d.
    const int64_t index = thread_number();
    if (index >= batch_heads * S_q * head_dim) return;
    const int64_t d = index % head_dim;
    const int64_t row = index / head_dim;  // batch_head * S_q + q
    const float* weights_row = weights + row * S_k;
    const T* value_column = value + row / S_q * S_k * head_dim + d;
    float sum = 0.0f;
    for (int64_t k = 0; k < S_k; ++k) sum += weights_row[k] * static_cast<float>(value_column[k * head_dim]);
    out[index] = static_cast<T>(sum);
    // END SOLUTION
}

template <typename T>
void launch_output(const float* weights, const T* value, T* out, int64_t batch_heads, int64_t S_q, int64_t S_k,
                   int64_t head_dim, cudaStream_t stream) {
    // BEGIN SOLUTION 14 (3 lines): the same for output_kernel.
    output_kernel<<<blocks_for(batch_heads * S_q * head_dim), THREADS, 0, stream>>>(
        weights, value, out, batch_heads, S_q, S_k, head_dim);
    CUDA_CHECK_LAUNCH();
    // END SOLUTION
}

// ---------------------------------------------------------------------------------------------- 5. Attention

// Kernels on one stream run one after the other, in the order of their launches, so each finds what the one before it
// wrote. `scores` is memory for all the scores of all heads; the softmax turns them into weights in place.
template <typename T>
void naive_attention(const T* query, const T* key, const T* value, float* scores, T* out, int64_t batch_heads,
                     int64_t S_q, int64_t S_k, int64_t head_dim, float scale, bool causal, AttentionMask mask,
                     cudaStream_t stream) {
    // BEGIN SOLUTION 15 (3 lines): call the three launch functions. What are the rows and columns of the scores for the
    //     softmax, which knows nothing of heads?
    launch_scores(query, key, scores, batch_heads, S_q, S_k, head_dim, scale, causal, mask, stream);
    launch_softmax(scores, scores, batch_heads * S_q, S_k, stream);
    launch_output(scores, value, out, batch_heads, S_q, S_k, head_dim, stream);
    // END SOLUTION
}

// The three types that binding.cpp offers to Python.
#define FOR_TYPE(T)                                                                                                    \
    template void launch_scores(const T*, const T*, float*, int64_t, int64_t, int64_t, int64_t, float, bool,           \
                                AttentionMask, cudaStream_t);                                                          \
    template void launch_output(const float*, const T*, T*, int64_t, int64_t, int64_t, int64_t, cudaStream_t);         \
    template void naive_attention(const T*, const T*, const T*, float*, T*, int64_t, int64_t, int64_t, int64_t, float, \
                                  bool, AttentionMask, cudaStream_t);
FOR_TYPE(float)
FOR_TYPE(__half)
FOR_TYPE(__nv_bfloat16)
