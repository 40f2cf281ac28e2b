// online_softmax.cu - online softmax, with one sweep for m and l, and merging of partial attention results.
//
//   1. State          State                    the state of a row after some of its scores: (m, l)
//                     shift_of                 what exp() may subtract: m, or 0 while m is -infinity
//                     add_scores               a state and some more scores -> a state            (gap 6)
//                     merge_warp               the states of 32 lanes -> one                      (gap 7)
//                     merge_block              the states of all threads of a block -> one        (gap 8)
//   2. Online softmax online_softmax_kernel    one sweep for m and l, a second one to write y     (gaps 9, 10)
//   3. Merge          merge_states_kernel      the outputs over several sets of keys -> one       (gaps 11, 12)
//   4. Launchers      online_softmax, merge_states
//
// Task 2 needed the maximum of a row before it could add up exp(x - max): two sweeps before the first output.
// Here one sweep computes both. Of the scores seen so far it keeps
//
//     m   the largest
//     l   the sum of exp(score - m)
//
// and when a larger score appears, l is rescaled to the new maximum: exp(x - m_new) = exp(x - m) * exp(m - m_new)
// for every term at once. The same factor merges the states of two disjoint sets of scores:
//
//     (m_a, l_a) + (m_b, l_b) = (m, l_a * exp(m_a - m) + l_b * exp(m_b - m))       with m = max(m_a, m_b)
//
// Merging is commutative and associative, and (-infinity, 0) is its identity. So the scores of a row can be
// distributed over threads, warps, blocks or kernels in any way, and all states merged at the end.
// Source: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018.
#include "task3/given/online_softmax.h"

#include <cmath>

#include "common/cuda/check.h"
#include "common/cuda/not_implemented.h"
#include "common/cuda/warp.cuh"

// -------------------------------------------------------------------------------------------------- 1. State

constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;  // of a block that processes one row
constexpr int ITEMS = 4;             // scores that a thread adds to its state at a time
static_assert(WARPS <= 32, "merge_block lets one warp hold a state of every warp");

struct State {
    float m;  // the largest score; -infinity if there was none, or if all were -infinity
    float l;  // the sum of exp(score - m)
};

// -infinity - (-infinity) is NaN. A row whose scores so far are all -infinity subtracts 0 instead: all its
// exponentials are exp(-infinity) = 0, and so is l.
__device__ __forceinline__ float shift_of(float m) { return m == -INFINITY ? 0.0f : m; }

// The state after COUNT more scores. One new score takes two exponentials, four take five: l is rescaled once,
// not once per score.
template <int COUNT>
__device__ __forceinline__ State add_scores(State state, const float (&scores)[COUNT]) {
    // BEGIN SOLUTION 6 (8 lines): the largest of state.m and the scores; with it, through shift_of, rescale state.l to
    //     the new maximum; then add the exponential of every score. Return {the maximum, the sum}. `#pragma unroll`
    //     before each loop keeps the scores in registers.
    float m = state.m;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) m = fmaxf(m, scores[i]);
    const float shift = shift_of(m);
    float l = state.l * expf(state.m - shift);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) l += expf(scores[i] - shift);
    return {m, l};
    // END SOLUTION
}

// Merges the states of the 32 lanes. All lanes must call it; all get the same result. The rule for two states
// holds for 32 as well: m is the largest m, and l is the sum of all l, each rescaled from its own m to that one.
__device__ __forceinline__ State merge_warp(State state) {
    // BEGIN SOLUTION 7 (3 lines): warp_max and warp_sum of common/cuda/warp.cuh, and one exponential per lane.
    const float m = warp_max(state.m);
    const float l = warp_sum(state.l * expf(state.m - shift_of(m)));
    return {m, l};
    // END SOLUTION
}

// Merges the states of all THREADS threads. All threads must call it; all get the same result. One call per
// kernel: a second one would write to `partial` while slower warps are still reading it.
__device__ __forceinline__ State merge_block(State state) {
    __shared__ State partial[WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // BEGIN SOLUTION 8 (4 lines): merge within each warp; one lane of each warp writes the result to `partial`; when
    //     all warps have done so, every warp merges the WARPS states (lanes that have none contribute
    //     {-INFINITY, 0.0f}).
    state = merge_warp(state);
    if (lane == 0) partial[warp] = state;
    __syncthreads();
    return merge_warp(lane < WARPS ? partial[lane] : State{-INFINITY, 0.0f});
    // END SOLUTION
}

// ----------------------------------------------------------------------------------------- 2. Online softmax

// One block per row: grid (rows), block (THREADS).
//
//   x, y [rows, cols]   lse [rows]
//
// A step of the first sweep covers ITEMS * THREADS = 1024 columns. Thread t takes column t of each of the four
// groups of 256, so the lanes of a warp read 32 neighboring floats (a coalesced access), and each thread has four
// loads in flight at a time.
//
//   columns  0 ... 255      256 ... 511     512 ... 767     768 ... 1023  | 1024 ...      the next step
//   thread   0 ... 255      0 ... 255       0 ... 255       0 ... 255     | 0 ...
__global__ void __launch_bounds__(THREADS)
    online_softmax_kernel(const float* __restrict__ x, float* __restrict__ y, float* __restrict__ lse,
                          int64_t cols) {
    const float* row_x = x + blockIdx.x * cols;
    float* row_y = y + blockIdx.x * cols;

    // Sweep 1: m and l of the whole row.
    State state = {-INFINITY, 0.0f};
    // BEGIN SOLUTION 9 (9 lines): step through the row as drawn above; in each step collect this thread's ITEMS scores
    //     in a small array and call add_scores. A column that does not exist counts as -INFINITY: its exponential
    //     is 0, and it is never the maximum (unless there is no other score). Then merge_block.
    for (int64_t first = threadIdx.x; first < cols; first += ITEMS * THREADS) {
        float scores[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int64_t col = first + i * THREADS;
            scores[i] = col < cols ? row_x[col] : -INFINITY;
        }
        state = add_scores(state, scores);
    }
    state = merge_block(state);
    // END SOLUTION

    // Sweep 2: the result. A row whose scores are all -infinity has l = 0: its y is 0, and log(0) = -infinity.
    const float shift = shift_of(state.m);
    const float inverse_l = state.l == 0.0f ? 0.0f : 1.0f / state.l;
    // BEGIN SOLUTION 10 (4 lines): write y, and from one thread lse. Compute the logarithm of the sum of exp(x) from
    //     shift and l; exp(x) itself might overflow.
    for (int64_t col = threadIdx.x; col < cols; col += THREADS) {
        row_y[col] = expf(row_x[col] - shift) * inverse_l;
    }
    if (threadIdx.x == 0) lse[blockIdx.x] = shift + logf(state.l);
    // END SOLUTION
}

// -------------------------------------------------------------------------------------------------- 3. Merge
//
// Attention over some of the keys gives out = O / l and lse = m + log(l). To the merge, such a part looks like a
// single key: its score is lse, and its value is out. So a softmax over the lse of the parts combines them, and
// merging is itself attention, over `parts` keys.
//
// The weights are exp(lse - m) / l, with m and l of the parts' lse, not exp(lse - merged_lse): merged_lse is
// rounded. With scores around 10,000 the rounding error is up to 0.0005, and the weights' sum would be off as much.

// One warp per row and group of MERGE_COLS = 64 columns: grid (rows / MERGE_WARPS, head_dim / MERGE_COLS), both
// rounded up, block (32 * MERGE_WARPS).
//
//   outs [parts, rows, head_dim]   lse [parts, rows]   out [rows, head_dim]   merged_lse [rows]
//
// The lanes first split the parts: lane i computes the weights of the parts i, i + 32, ... Then they split the
// columns: lane i has columns i and i + 32 of the group and gets each part's weight from the lane that computed it.
// One column per lane would give more warps, but each would recompute the weights for half as much output.
__global__ void __launch_bounds__(32 * MERGE_WARPS)
    merge_states_kernel(const float* __restrict__ outs, const float* __restrict__ lse, float* __restrict__ out,
                        float* __restrict__ merged_lse, int64_t parts, int64_t rows, int64_t head_dim) {
    const int lane = threadIdx.x % 32;
    const int64_t row = blockIdx.x * int64_t{MERGE_WARPS} + threadIdx.x / 32;
    const int64_t col = blockIdx.y * int64_t{MERGE_COLS} + lane;  // this lane's columns: col and col + 32
    if (row >= rows) return;  // the whole warp returns, and no block barrier follows

    State state = {-INFINITY, 0.0f};
    // BEGIN SOLUTION 11 (5 lines): m and l of the row's lse over all parts: each lane adds its own parts one by one
    //     (add_scores with an array of one score), then the lanes merge.
    for (int64_t part = lane; part < parts; part += 32) {
        const float score[1] = {lse[part * rows + row]};
        state = add_scores(state, score);
    }
    state = merge_warp(state);
    // END SOLUTION

    const float shift = shift_of(state.m);
    const float inverse_l = state.l == 0.0f ? 0.0f : 1.0f / state.l;
    const bool has_first = col < head_dim, has_second = col + 32 < head_dim;
    float first_sum = 0.0f, second_sum = 0.0f;
    for (int64_t start = 0; start < parts; start += 32) {
        const int count = static_cast<int>(parts - start < 32 ? parts - start : 32);
        // BEGIN SOLUTION 12 (8 lines): the weight of part start + lane, 0 if there is no such part. Then, for each i
        //     below count: get the weight of part start + i from lane i (__shfl_sync, which all lanes must call),
        //     and add weight * output to both sums. Do not read the output of a part whose weight is 0: it may be
        //     NaN, and 0 * NaN is NaN. Do not read columns that do not exist either. `#pragma unroll 8` before the
        //     loop keeps the loads of eight parts in flight.
        const float own = lane < count ? expf(lse[(start + lane) * rows + row] - shift) * inverse_l : 0.0f;
#pragma unroll 8
        for (int i = 0; i < count; ++i) {
            const float weight = __shfl_sync(FULL_WARP, own, i);
            const float* part_out = outs + ((start + i) * rows + row) * head_dim + col;
            first_sum += weight * (weight != 0.0f && has_first ? part_out[0] : 0.0f);
            second_sum += weight * (weight != 0.0f && has_second ? part_out[32] : 0.0f);
        }
        // END SOLUTION
    }
    if (has_first) out[row * head_dim + col] = first_sum;
    if (has_second) out[row * head_dim + col + 32] = second_sum;
    if (col == 0) merged_lse[row] = shift + logf(state.l);
}

// ---------------------------------------------------------------------------------------------- 4. Launchers

void online_softmax(const float* x, float* y, float* lse, int64_t rows, int64_t cols, cudaStream_t stream) {
    online_softmax_kernel<<<static_cast<unsigned>(rows), THREADS, 0, stream>>>(x, y, lse, cols);
    CUDA_CHECK_LAUNCH();
}

void merge_states(const float* outs, const float* lse, float* out, float* merged_lse, int64_t parts,
                  int64_t rows, int64_t head_dim, cudaStream_t stream) {
    const dim3 blocks(static_cast<unsigned>(ceil_div(rows, int64_t{MERGE_WARPS})),
                      static_cast<unsigned>(ceil_div(head_dim, int64_t{MERGE_COLS})));
    merge_states_kernel<<<blocks, 32 * MERGE_WARPS, 0, stream>>>(outs, lse, out, merged_lse, parts, rows, head_dim);
    CUDA_CHECK_LAUNCH();
}
