// next_token.cu - between two decode steps: the token of the last one, the embedding for the next.
#include "common/cuda/check.h"
#include "common/cuda/dependent_launch.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/gpt2/best.cuh"
#include "common/kernels/gpt2/gpt2.h"
#include "common/kernels/gpt2/vectors.cuh"

constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;
constexpr int COLUMNS = 4;  // of an embedding, loaded at once by a thread

// Elements first, first + THREADS, ... of a row.
template <typename T>
__device__ __forceinline__ void load(float (&values)[COLUMNS], const T* row, int first, int width) {
    UNROLL
    for (int i = 0; i < COLUMNS; ++i) {
        const int col = first + i * THREADS;
        values[i] = col < width ? to_float(row[col]) : 0.0f;
    }
}

// The token of the largest of best [count], returned to all threads of the block.
__device__ __forceinline__ int token_of(const Best* best, int count) {
    __shared__ Best of_warp[WARPS];
    Best mine = {-INFINITY, 0};
    const auto add = [&](const Best& other) {
        if (is_better(other, mine)) mine = other;
    };
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const float2 one = __ldcg(reinterpret_cast<const float2*>(best + i));
        add({one.x, __float_as_int(one.y)});
    }
    mine = best_of_lanes(mine);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
    __syncthreads();
    UNROLL
    for (int w = 0; w < WARPS; ++w) add(of_warp[w]);
    return mine.token;
}

// One block per sequence. The predecessor produces `best` or `tokens`; the previous state, and the embedding of the
// next position, are read before it has finished.
template <typename T>
__global__ void __launch_bounds__(THREADS) next_token_kernel(const NextToken a) {
    const int sequence = blockIdx.x;
    launch_dependents();
    const int stop = *a.stop, step = a.steps[sequence], before = a.positions[sequence];
    const bool was_finished = a.finished[sequence] != 0;
    const auto position_row_of = [&](int position) {
        const bool inside = position >= 0 && position < a.context;
        return static_cast<const T*>(a.wpe) + int64_t{inside ? position : 0} * a.width;
    };
    float position_embedding[COLUMNS];  // columns threadIdx.x, threadIdx.x + THREADS, ...
    load<T>(position_embedding, position_row_of(before + 1), threadIdx.x, a.width);
    wait_for_predecessor();
    const int token = a.best ? token_of(a.best + sequence * a.blocks, a.blocks)
                             : static_cast<int>(a.tokens[sequence]);
    const bool finished = was_finished || token == stop;
    const int position = before + !finished;
    const T* const token_row =
        static_cast<const T*>(a.wte) + int64_t{token >= 0 && token < a.vocab ? token : 0} * a.width;
    for (int first = threadIdx.x; first < a.width; first += COLUMNS * THREADS) {
        float token_embedding[COLUMNS];
        load<T>(token_embedding, token_row, first, a.width);
        if (finished || first >= THREADS) load<T>(position_embedding, position_row_of(position), first, a.width);
        UNROLL
        for (int i = 0; i < COLUMNS; ++i)
            if (first + i * THREADS < a.width)
                a.residual[sequence * a.width + first + i * THREADS] = token_embedding[i] + position_embedding[i];
    }
    __syncthreads();  // all threads have read what is overwritten next
    if (threadIdx.x > 0) return;
    if (step >= 0 && step < a.history_steps) {
        if (a.arrived) a.arrived[step * a.rows + sequence] = token;
        a.history[step * a.rows + sequence] = token;
    }
    a.finished[sequence] = finished;
    a.steps[sequence] = step + 1;
    a.positions[sequence] = position;
    a.lengths[sequence] = position + 1;
}

template <typename T>
static void launch(const NextToken& a) {
    if (a.early) return launch_after(next_token_kernel<T>, a.rows, THREADS, 0, a.stream, a);
    next_token_kernel<T><<<a.rows, THREADS, 0, a.stream>>>(a);
    CUDA_CHECK_LAUNCH();
}

void next_token(const NextToken& a) {
    for_float_type(a.type, [&]<typename T>() { launch<T>(a); });
}
