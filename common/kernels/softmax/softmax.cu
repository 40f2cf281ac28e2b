// softmax.cu - the softmax of every row of a matrix, float32.
//
//   1. Pieces       read_row, write_row                a thread's entries of a row
//                   row_max, row_sum                   reductions over all threads of a row
//   2. Kernels      softmax_in_registers_kernel        rows that fit in registers: read once, written once
//                   softmax_in_chunks_kernel           longer rows: read twice, maximum and sum in one pass
//   3. Launcher     softmax                            chooses kernel and shape by row length
//
// Changes from the kernel taught in task 2, each on top of the previous one (each step can be run on its own):
//
//   1. One pass, warp shuffles. The online softmax computes maximum and sum in one pass over the row, so that it is
//      read twice instead of three times. The threads combine their maxima, and their sums, with warp shuffles and one
//      barrier instead of a tree with nine. Rows of 4096 gain nothing: the caches serve their later reads, and
//      rescaling costs exponentials.
//   2. float4. Global memory is accessed 16 bytes at a time.
//   3. Row in registers. The row is read once and stays in registers; rows of different lengths get different numbers
//      of threads and of entries per thread. Rows over 32,768 do not fit; half of a row of 65,536 is read twice.
//
// Rows that float4 cannot handle (a length that is not a multiple of 4, an unaligned pointer) use the same kernels with
// scalar accesses. A row takes at least a warp, so rows under 128 entries leave lanes idle.
//
// Measurements: README.md.
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/cuda/alignment.h"
#include "common/cuda/check.h"
#include "common/cuda/empty_rows.cuh"
#include "common/cuda/row_pieces.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/softmax/softmax.h"

// ------------------------------------------------------------------------------------------------- 1. Pieces
//
// A row is processed by WARPS warps, that is THREADS = 32 * WARPS threads; threadIdx.x is a thread's index among them.
// Each holds ITEMS entries, as vectors of WIDTH neighboring floats:
//
//     thread 0 | thread 1 | ... | thread THREADS - 1 | thread 0 | thread 1 | ...        WIDTH entries each
//
// so a warp reads 32 neighboring vectors: one request of 512 bytes for WIDTH = 4.

// values = the thread's entries of the row, starting at column `first`; past the end -inf, whose exponential is 0.
template <int WARPS, int WIDTH, int ITEMS>
__device__ __forceinline__ void read_row(float (&values)[ITEMS], const float* row, int first, int cols) {
    UNROLL
    for (int i = 0; i < ITEMS; i += WIDTH) {
        const int col = first + (i / WIDTH * 32 * WARPS + static_cast<int>(threadIdx.x)) * WIDTH;
        if constexpr (WIDTH == 4) {
            const float4 four =
                col < cols ? four_at(row + col) : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            values[i] = four.x, values[i + 1] = four.y, values[i + 2] = four.z, values[i + 3] = four.w;
        } else {
            values[i] = col < cols ? row[col] : -INFINITY;
        }
    }
}

// The inverse. __stcs stores with an evict-first policy in the L2 cache: no kernel here reads the output again, whereas
// a row that is read twice should still be cached the second time.
template <int WARPS, int WIDTH, int ITEMS>
__device__ __forceinline__ void write_row(const float (&values)[ITEMS], float* row, int first, int cols) {
    UNROLL
    for (int i = 0; i < ITEMS; i += WIDTH) {
        const int col = first + (i / WIDTH * 32 * WARPS + static_cast<int>(threadIdx.x)) * WIDTH;
        if (col >= cols) continue;
        if constexpr (WIDTH == 4)
            __stcs(reinterpret_cast<float4*>(row + col),
                   make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]));
        else
            __stcs(row + col, values[i]);
    }
}

// The maximum over the row's threads, returned to all of them: first within each warp, then over the warps' results.
// One barrier, where a tree over 256 threads takes nine.
template <int WARPS>
__device__ __forceinline__ float row_max(float value) {
    value = warp_max(value);
    if constexpr (WARPS > 1) {
        __shared__ float of_warp[WARPS];
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 0) of_warp[warp] = value;
        __syncthreads();
        value = warp_max(lane < WARPS ? of_warp[lane] : -INFINITY);
    }
    return value;
}

// The same for the sum. A kernel calls each of the two only once, so no thread overwrites what others still read.
template <int WARPS>
__device__ __forceinline__ float row_sum(float value) {
    value = warp_sum(value);
    if constexpr (WARPS > 1) {
        __shared__ float of_warp[WARPS];
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 0) of_warp[warp] = value;
        __syncthreads();
        value = warp_sum(lane < WARPS ? of_warp[lane] : 0.0f);
    }
    return value;
}

// ------------------------------------------------------------------------------------------------ 2. Kernels
//
//   x, y [rows, cols]   y may be x: a thread reads only the entries that it writes itself, and reads them first

// One warp handles a row without shared memory or a barrier, so several rows share a block.
template <int WARPS>
constexpr int ROWS_PER_BLOCK = WARPS == 1 ? 4 : 1;

// cols <= 32 * WARPS * ITEMS: the row stays in registers between reading and writing, and each exponential is computed
// once.          grid (ceil(rows / ROWS_PER_BLOCK)), block (32 * WARPS, ROWS_PER_BLOCK)
template <int WARPS, int ITEMS, int WIDTH>
__global__ void __launch_bounds__(32 * WARPS * ROWS_PER_BLOCK<WARPS>)
    softmax_in_registers_kernel(const float* x, float* y, int64_t rows, int cols) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * ROWS_PER_BLOCK<WARPS> + threadIdx.y;
    if (ROWS_PER_BLOCK<WARPS> > 1 && row >= rows) return;  // the whole warp
    float values[ITEMS];
    read_row<WARPS, WIDTH>(values, x + row * cols, 0, cols);

    float max = -INFINITY;
    UNROLL
    for (int i = 0; i < ITEMS; ++i) max = fmaxf(max, values[i]);
    const float shift = shift_of(row_max<WARPS>(max));

    float sum = 0.0f;
    UNROLL
    for (int i = 0; i < ITEMS; ++i) {
        values[i] = expf(values[i] - shift);
        sum += values[i];
    }
    const float inverse_sum = inverse_of(row_sum<WARPS>(sum));
    UNROLL
    for (int i = 0; i < ITEMS; ++i) values[i] *= inverse_sum;
    write_row<WARPS, WIDTH>(values, y + row * cols, 0, cols);
}

// Rows of any length, a chunk of 32 * WARPS * ITEMS entries at a time. Online softmax: when a thread's maximum grows,
// it rescales its sum, so that one pass yields both.
//
//     read     chunk 0, chunk 1, ... chunk n - 1
//     write    chunk n - 1, ... chunk 1, chunk 0      the last one read is still in registers and is not read again,
//                                                     and the one before it is the most likely to be in the L2 cache
//
// grid (rows), block (32 * WARPS)
template <int WARPS, int ITEMS, int WIDTH>
__global__ void __launch_bounds__(32 * WARPS)
    softmax_in_chunks_kernel(const float* x, float* y, int cols) {
    constexpr int CHUNK = 32 * WARPS * ITEMS;
    const float* row_x = x + static_cast<size_t>(blockIdx.x) * cols;
    float* row_y = y + static_cast<size_t>(blockIdx.x) * cols;
    const int last = (cols - 1) / CHUNK * CHUNK;
    float values[ITEMS];

    float max = -INFINITY, sum = 0.0f;  // over this thread's entries so far; the sum is of exp(x - max)
    for (int chunk = 0; chunk <= last; chunk += CHUNK) {
        read_row<WARPS, WIDTH>(values, row_x, chunk, cols);
        const float old_max = max;
        UNROLL
        for (int i = 0; i < ITEMS; ++i) max = fmaxf(max, values[i]);
        const float shift = shift_of(max);
        sum *= expf(old_max - shift);
        UNROLL
        for (int i = 0; i < ITEMS; ++i) sum += expf(values[i] - shift);
    }
    const float shift = shift_of(row_max<WARPS>(max));
    const float inverse_sum = inverse_of(row_sum<WARPS>(sum * expf(max - shift)));

    for (int chunk = last; chunk >= 0; chunk -= CHUNK) {
        if (chunk != last) read_row<WARPS, WIDTH>(values, row_x, chunk, cols);
        UNROLL
        for (int i = 0; i < ITEMS; ++i) values[i] = expf(values[i] - shift) * inverse_sum;
        write_row<WARPS, WIDTH>(values, row_y, chunk, cols);
    }
}

// ----------------------------------------------------------------------------------------------- 3. Launcher

template <int WARPS, int ITEMS, int WIDTH>
static void in_registers(const float* x, float* y, int64_t rows, int cols, cudaStream_t stream) {
    constexpr int ROWS = ROWS_PER_BLOCK<WARPS>;
    const unsigned blocks = grid_blocks(ceil_div(rows, static_cast<int64_t>(ROWS)), "x", "rows");
    softmax_in_registers_kernel<WARPS, ITEMS, WIDTH><<<blocks, dim3(32 * WARPS, ROWS), 0, stream>>>(x, y, rows, cols);
}

template <int WARPS, int ITEMS, int WIDTH>
static void in_chunks(const float* x, float* y, int64_t rows, int cols, cudaStream_t stream) {
    softmax_in_chunks_kernel<WARPS, ITEMS, WIDTH>
        <<<grid_blocks(rows, "x", "rows"), 32 * WARPS, 0, stream>>>(x, y, cols);
}

// 16 items are four independent float4 loads per thread, enough to keep the memory busy, and leave enough registers for
// full occupancy; so longer rows first get more threads, up to the limit of 1024 per block, and then more items.
template <int WIDTH>
static void by_length(const float* x, float* y, int64_t rows, int cols, cudaStream_t stream) {
    const auto launch = cols <= 128     ? in_registers<1, 4, WIDTH>
                        : cols <= 256   ? in_registers<1, 8, WIDTH>
                        : cols <= 512   ? in_registers<1, 16, WIDTH>
                        : cols <= 1024  ? in_registers<2, 16, WIDTH>
                        : cols <= 2048  ? in_registers<4, 16, WIDTH>
                        : cols <= 4096  ? in_registers<8, 16, WIDTH>
                        : cols <= 8192  ? in_registers<16, 16, WIDTH>
                        : cols <= 16384 ? in_registers<32, 16, WIDTH>
                        : cols <= 32768 ? in_registers<32, 32, WIDTH>
                                        : in_chunks<32, 32, WIDTH>;
    launch(x, y, rows, cols, stream);
}

void softmax(const float* x, float* y, int64_t rows, int cols, int step, cudaStream_t stream) {
    const bool vectors = cols % 4 == 0 && all_aligned({x, y});  // every row starts at a multiple of 16 bytes
    const auto launch = step == 1 || (step == 2 && !vectors) ? in_chunks<8, 4, 1>
                        : step == 2                          ? in_chunks<8, 4, 4>
                        : vectors                            ? by_length<4>
                                                             : by_length<1>;
    launch(x, y, rows, cols, stream);
    CUDA_CHECK_LAUNCH();
}
