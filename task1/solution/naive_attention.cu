// naive_attention.cu - attention in three unoptimized kernels: the baseline for all later tasks.
//
//   1. Threads     thread_number                    which thread of the whole grid am I?            (gap 6)
//   2. Scores      scores_kernel, launch_scores     S = Q K^T * scale, masked; a thread per score   (gaps 7, 8)
//   3. Softmax     softmax_kernel, launch_softmax   P = softmax(S); a thread per row                (gaps 9 to 12)
//   4. Output      output_kernel, launch_output     O = P V; a thread per output element            (gaps 13, 14)
//   5. Attention   naive_attention                  the three kernels, one after another            (gap 15)
//
// A kernel (__global__) is a function that the GPU runs once per thread, in many threads at once. It does not loop over
// the elements of its result: each thread finds its own number and computes the element with that number.
//
// Each head of each batch entry is an independent problem; they are stored one after another in memory. So a
// single index, batch_head, counts batch entries and heads together. All arrays are row-major:
//
//   query, out [batch_heads, S_q, head_dim]        element (i, q, d) is query[(i * S_q + q) * head_dim + d]
//   key, value [batch_heads, S_k, head_dim]        element (i, k, d) is key[(i * S_k + k) * head_dim + d]
//   scores, weights [batch_heads, S_q, S_k]        element (i, q, k) is scores[(i * S_q + q) * S_k + k]
//
// Such an index can exceed 2^31 - 1, the largest 32-bit int, so sizes and indices are int64_t here.
//
// T is the type of the inputs and the output: float, or one of the 16-bit types __half and __nv_bfloat16. Write the
// code as you would for float, and convert on loads and stores: static_cast<float>(x), static_cast<T>(sum). Do all
// arithmetic in float: the product of two __half values would be rounded to 11 bits.
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
// A grid's threads are grouped into blocks of equal size. A thread knows its block's number, how many threads a
// block has, and its own number within the block (all have an .x, a .y and a .z; only .x is used here):
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

// The number of blocks of THREADS threads needed for at least `threads` threads.
static unsigned blocks_for(int64_t threads) { return static_cast<unsigned>(ceil_div(threads, THREADS)); }

// ------------------------------------------------------------------------------------------------- 2. Scores

// Thread number n computes scores[n].
//
//   query [batch_heads, S_q, head_dim], key [batch_heads, S_k, head_dim] -> scores [batch_heads, S_q, S_k]
template <typename T>
__global__ void scores_kernel(const T* query, const T* key, float* scores, int64_t batch_heads, int64_t S_q,
                              int64_t S_k, int64_t head_dim, float scale, bool causal, AttentionMask mask) {
    const int64_t index = thread_number();
    // A grid consists of whole blocks. Unless the number of scores is a multiple of 256, the last block has spare
    // threads; they must not access memory past the end of the array.
    if (index >= batch_heads * S_q * S_k) return;

    int64_t batch_head = 0, q = 0, k = 0;
    // BEGIN SOLUTION 7 (3 lines): find batch_head, q and k from index, that is, undo
    //     index = (batch_head * S_q + q) * S_k + k. The remainder of a division by S_k is k; the quotient gives q
    //     and batch_head in the same way.
    k = index % S_k;
    q = index / S_k % S_q;
    batch_head = index / S_k / S_q;
    // END SOLUTION

    float sum = 0.0f;
    // BEGIN SOLUTION 8 (5 lines): sum is the dot product of row q of this head's query and row k of its key. Pointers
    //     to the first element of each of the two rows keep the loop short.
    const T* query_row = query + (batch_head * S_q + q) * head_dim;
    const T* key_row = key + (batch_head * S_k + k) * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) {
        sum += static_cast<float>(query_row[d]) * static_cast<float>(key_row[d]);
    }
    // END SOLUTION

    // The mask applies to the scaled score. If causal, future keys (k > q) are hidden: exp(-infinity) is 0.
    const bool in_the_future = causal && k > q;
    scores[index] = in_the_future ? -INFINITY : masked_score(sum * scale, mask, batch_head, q, k);
}

// This runs on the CPU. kernel<<<blocks, threads per block, 0, stream>>>(arguments) launches a kernel on the GPU and
// returns without waiting for it. (The 0 is the size of dynamic shared memory, not used here.)
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
// The factor exp(-max) is in the numerator and the denominator, so it cancels; but without it exp(89) already
// overflows to infinity in float, and infinity / infinity is NaN.

// Thread number n turns row n of the scores into weights. Every entry of a row needs the row's maximum and sum: with
// one thread per row, they are computed only once.
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

    // The maximum of a fully masked row is -infinity, and -infinity - (-infinity) is NaN. Subtracting 0
    // instead makes every exponential exp(-infinity) = 0.
    const float shift = row_max == -INFINITY ? 0.0f : row_max;

    float sum = 0.0f;
    // BEGIN SOLUTION 10 (4 lines): for each entry x of the scores row, write exp(x - shift) to the weights row and
    //     add it to sum. expf is the exponential function for float.
    for (int64_t k = 0; k < cols; ++k) {
        weights_row[k] = expf(scores_row[k] - shift);
        sum += weights_row[k];
    }
    // END SOLUTION

    // BEGIN SOLUTION 11 (2 lines): divide each entry of the weights row by the sum. The sum of a fully masked row
    //     is exactly 0: its weights are 0, not 0 / 0, which is NaN.
    const float inverse_sum = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int64_t k = 0; k < cols; ++k) weights_row[k] *= inverse_sum;
    // END SOLUTION
}

void launch_softmax(const float* scores, float* weights, int64_t rows, int64_t cols, cudaStream_t stream) {
    // BEGIN SOLUTION 12 (2 lines): like launch_scores, with as many threads as this kernel needs. Don't forget
    //     CUDA_CHECK_LAUNCH: without it, a failed launch goes unnoticed.
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
    // BEGIN SOLUTION 13 (9 lines): the whole kernel, modeled on scores_kernel: this thread's number, return if there is
    //     no such element, the position of the element in out, two pointers, a loop, the store. The sum runs over the
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

// Kernels on one stream run one after another, in launch order, so each sees what the previous one wrote. `scores` is
// memory for the scores of all heads; the softmax turns them into weights in place.
template <typename T>
void naive_attention(const T* query, const T* key, const T* value, float* scores, T* out, int64_t batch_heads,
                     int64_t S_q, int64_t S_k, int64_t head_dim, float scale, bool causal, AttentionMask mask,
                     cudaStream_t stream) {
    // BEGIN SOLUTION 15 (3 lines): call the three launch functions. The softmax knows nothing about heads: what are the
    //     rows and columns of the scores for it?
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
