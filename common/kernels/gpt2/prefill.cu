// prefill.cu - a prefill's first kernel, and what follows its attention.
//
//   begin_text_kernel     the host's prompts -> their embeddings; the text's initial state
//   store_heads_kernel    attention's output row by row, keys and values to their caches
//   last_rows_kernel      one block per sequence: the rows for the first token; the others prefetch weights into L2
//
#include <algorithm>

#include "common/cuda/alignment.h"
#include "common/cuda/check.h"
#include "common/cuda/dependent_launch.cuh"
#include "common/kernels/gpt2/gpt2.h"
#include "common/kernels/gpt2/vectors.cuh"

// ---------------------------------------------------------------------------------------------------- the prompts

constexpr int TEXT_ROWS = 8, TEXT_THREADS = 32 * TEXT_ROWS;

// One warp per row. A block's tokens are one sector of the host's memory, read once.
template <typename T, int UNIT>
__global__ void __launch_bounds__(TEXT_THREADS) begin_text_kernel(const BeginText a) {
    __shared__ int tokens[TEXT_ROWS];
    const int first = static_cast<int>(blockIdx.x) * TEXT_ROWS, thread = static_cast<int>(threadIdx.x);
    launch_dependents();
    if (thread < TEXT_ROWS && first + thread < a.rows) tokens[thread] = a.prompts[first + thread];
    for (int64_t i = int64_t{blockIdx.x} * TEXT_THREADS + thread; i < a.state_size; i += gridDim.x * TEXT_THREADS)
        a.state[i] = a.host_state[i];
    __syncthreads();
    const int row = first + thread / 32;
    if (row >= a.rows) return;
    const int token = tokens[thread / 32];
    const T* const embedding = static_cast<const T*>(a.wte) + int64_t{token >= 0 && token < a.vocab ? token : 0} * a.width;
    const T* const position = static_cast<const T*>(a.wpe) + int64_t{row % a.seq_len} * a.width;
    UNROLL
    for (int col = thread % 32 * UNIT; col < a.width; col += 32 * UNIT) {
        float sum[UNIT], addend[UNIT];
        load<T>(sum, embedding + col);
        load<T>(addend, position + col);
        UNROLL
        for (int i = 0; i < UNIT; ++i) sum[i] += addend[i];
        store(static_cast<T*>(a.x) + int64_t{row} * a.width + col, sum);
    }
}

void begin_text(const BeginText& a) {
    for_float_type(a.type, [&]<typename T>() {
        const auto launch = [&](auto kernel) {
            kernel<<<static_cast<unsigned>(ceil_div(a.rows, TEXT_ROWS)), TEXT_THREADS, 0, a.stream>>>(a);
            CUDA_CHECK_LAUNCH();
        };
        if (vectors_fit<T>(a.width, {a.wte, a.wpe, a.x}))
            launch(begin_text_kernel<T, Vector<T>::SIZE>);
        else
            launch(begin_text_kernel<T, 1>);
    });
}

// ----------------------------------------------------------------------------------------------- behind attention

constexpr int MAX_THREADS = 512;

// grid (batch * seq_len), one Unit per thread. A row is [parts][heads][head_dim]: part 0 the output, 1 the keys, 2 the
// values. Copying does not depend on the type: a Unit is 16 bytes if addresses and head_dim allow, otherwise one
// element. One kernel does all three copies, since each is dominated by latency.
template <typename Unit>
__global__ void __launch_bounds__(MAX_THREADS) store_heads_kernel(const StoreHeads a, int head_units, int parts) {
    wait_for_predecessor();
    launch_dependents();
    const int row_units = a.heads * head_units;
    const int64_t row = blockIdx.x;
    const int sequence = static_cast<int>(blockIdx.x) / a.seq_len, token = static_cast<int>(blockIdx.x) % a.seq_len;
    for (int i = threadIdx.x; i < parts * row_units; i += blockDim.x) {
        const int part = i / row_units, column = i % row_units, head = column / head_units, unit = column % head_units;
        const int64_t batch_head = int64_t{sequence} * a.heads + head;
        if (part == 0) {
            const int64_t from = (batch_head * a.seq_len + token) * head_units + unit;
            static_cast<Unit*>(a.out)[row * row_units + column] = static_cast<const Unit*>(a.attended)[from];
            continue;
        }
        const int64_t to = (batch_head * a.max_seq_len + token) * head_units + unit;
        static_cast<Unit*>(part == 1 ? a.k_cache : a.v_cache)[to] =
            static_cast<const Unit*>(a.qkv)[(row * 3 + part) * row_units + column];
    }
}

void store_heads(const StoreHeads& a) {
    const auto launch = [&]<typename Unit>(Unit) {
        const int head_units = a.head_dim * a.element_bytes / static_cast<int>(sizeof(Unit));
        const int parts = a.k_cache == nullptr ? 1 : 3;
        const int threads = std::min(ceil_div(parts * a.heads * head_units, 32) * 32, MAX_THREADS);
        const unsigned blocks = grid_blocks(int64_t{a.batch} * a.seq_len, "store_heads");
        launch_after(store_heads_kernel<Unit>, blocks, threads, 0, a.stream, a, head_units, parts);
    };
    if (a.head_dim * a.element_bytes % 16 == 0 && all_aligned({a.attended, a.qkv, a.out, a.k_cache, a.v_cache}))
        launch(uint4{});
    else if (a.element_bytes == 4)
        launch(uint32_t{});
    else
        launch(uint16_t{});
}

// -------------------------------------------------------------------------------------------------- the last rows

constexpr int ROW_THREADS = 256, FETCHING_BLOCKS = 64;

// grid (batch + FETCHING_BLOCKS). HBM is idle while the last attention and the GEMMs after it run.
template <typename T>
__global__ void __launch_bounds__(ROW_THREADS) last_rows_kernel(const LastRows a, int64_t fetched_bytes) {
    launch_dependents();
    if (blockIdx.x >= a.batch) {
#ifndef CUDA_SIMULATOR
        constexpr int LINE = 128;
        const int64_t first = (int64_t{blockIdx.x - a.batch} * ROW_THREADS + threadIdx.x) * LINE;
        for (int64_t at = first; at < fetched_bytes; at += int64_t{FETCHING_BLOCKS} * ROW_THREADS * LINE)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(static_cast<const char*>(a.fetched) + at)));
#endif
        wait_for_predecessor();
        return;
    }
    wait_for_predecessor();
    const int64_t sequence = blockIdx.x, from = sequence * a.seq_len + a.positions[sequence];
    for (int c = threadIdx.x; c < a.width; c += ROW_THREADS) {
        a.residual[sequence * a.width + c] = to_float(static_cast<const T*>(a.x)[from * a.width + c]);
        static_cast<T*>(a.out)[sequence * a.width + c] = static_cast<const T*>(a.heads)[from * a.width + c];
    }
}

void last_rows(const LastRows& a) {
    // Half of the L2 cache duplicates the other half; later kernels need some of it
    const int64_t bytes = std::min(a.fetched_bytes, int64_t{device_attribute(cudaDevAttrL2CacheSize)} * 2 / 5);
    for_float_type(a.type, [&]<typename T>() {
        launch_after(last_rows_kernel<T>, static_cast<unsigned>(a.batch + FETCHING_BLOCKS), ROW_THREADS, 0, a.stream, a, bytes);
    });
}
