// attention_kernel.cu - attention built from three kernels: softmax, GEMM, mask. All float32.
//
//   1. Row sums        row_sum_kernel          one block per row: shared memory, barriers, a tree     (gaps 1, 2)
//   2. Softmax         block_reduce            the same tree, for sums and maxima                     (gap 3)
//                      softmax_kernel          one block per row, three passes over the row           (gaps 4 to 6)
//   3. GEMM            load_tile               a tile from global to shared memory
//                      multiply_tiles          the matrix product of two tiles                        (gap 7)
//                      store_tile              the result from registers to global memory
//                      gemm_nn_kernel          C = A @ B                                              (gap 8)
//                      load_tile_transposed    a tile, transposed as it is loaded                     (gap 9)
//                      gemm_nt_kernel          C = A @ B^T                                            (gap 10)
//   4. Mask            scale_and_mask_kernel
//   5. Launchers       row_sum, softmax, gemm_nn, gemm_nt, scale_and_mask
//   6. Attention       custom_attention        four of the launchers, one after another               (gap 11)
//
// Matrices are row-major: element (row, col) of a [rows, cols] matrix is matrix[row * cols + col]. That
// index can exceed 2^31 - 1, so it is computed in 64 bits. Shapes are given next to the buffers;
// attention_kernel.h documents each function's interface.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/not_implemented.h"
#include "task2/given/attention_kernel.h"

constexpr int ROW_THREADS = 256;  // threads of a block that processes one row; a power of two, for the tree

// ----------------------------------------------------------------------------------------------- 1. Row sums
//
//     sums[r] = x[r][0] + x[r][1] + ... + x[r][cols - 1]
//
// A row may have more entries than a block has threads, and a thread sees only its own registers. So the 256 threads
// split the row, and each writes its partial sum to shared memory, where the others can read it.
//
// __syncthreads() is a barrier: no thread of the block continues until all have reached it, and what they wrote to
// shared memory before it is visible to all after it. Without a barrier, the order is undefined.

// One block per row: grid (rows), block (ROW_THREADS).          x [rows, cols], sums [rows]
//
// Thread t takes the entries t, t + 256, t + 512, ... of the row: in every step the 32 threads of a warp read 32
// neighboring floats (a coalesced access). No row length needs special handling.
__global__ void __launch_bounds__(ROW_THREADS) row_sum_kernel(const float* x, float* sums, int cols) {
    __shared__ float partial[ROW_THREADS];  // one array for the whole block
    const float* row_x = x + static_cast<size_t>(blockIdx.x) * cols;
    // BEGIN SOLUTION 1 (3 lines): add up this thread's entries of row_x and write the sum to partial[threadIdx.x]. A
    //     thread that has no entries writes 0.
    float sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += ROW_THREADS) sum += row_x[i];
    partial[threadIdx.x] = sum;
    // END SOLUTION

    // Tree reduction: 256 partial sums -> one sum. With 8 threads:
    //
    //     step 1   p0+p4   p1+p5   p2+p6   p3+p7       four threads active
    //     step 2   p0+p2   p1+p3                       two
    //     step 3   p0+p1                               one: partial[0] is complete
    //
    // BEGIN SOLUTION 2 (6 lines): the tree. In each step each of the first `active` threads adds to its entry of
    //     `partial` the entry `active` places further on; `active` starts at half the block and halves every time.
    //     Each step, including the first, reads what other threads wrote before it, so a barrier is needed in
    //     between. All threads must reach every barrier, so it can't be inside an if that holds for some of them.
    __syncthreads();
    for (unsigned active = ROW_THREADS / 2; active > 0; active /= 2) {
        if (threadIdx.x < active) partial[threadIdx.x] += partial[threadIdx.x + active];
        __syncthreads();
    }
    // END SOLUTION
    if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}

// ------------------------------------------------------------------------------------------------ 2. Softmax
//
//     y[i] = exp(x[i] - max(x)) / sum_j exp(x[j] - max(x))
//
// Subtracting the maximum changes nothing mathematically (numerator and denominator shrink by the same
// factor), but it keeps every exponent at or below 0: exp() cannot overflow, and the sum is at least 1.
//
// A row may have 65,536 entries, 256 KiB: more shared memory than a block can have (48 KiB by default, 227 KiB
// at most on an H100). So the row stays in global memory and is read in three passes (the second and third
// mostly from cache), and shared memory holds one partial result per thread.
//
// Softmax needs a maximum and a sum, each a tree reduction as in section 1. A template covers both: Max and Sum are
// functors, types whose objects can be called like a function, and block_reduce(partial, Max()) is compiled with
// fmaxf in place of combine.

struct Max {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
    __device__ float operator()(float a, float b) const { return a + b; }
};

// Combines the ROW_THREADS entries of `partial` (shared memory) into partial[0].
//
//   before: each thread has just written partial[threadIdx.x]; there has been no barrier yet
//   after:  every thread may read partial[0]; a barrier is needed before any thread writes to `partial` again
template <typename Combine>
__device__ __forceinline__ void block_reduce(float* partial, Combine combine) {
    // BEGIN SOLUTION 3 (7 lines): your tree of row_sum_kernel, with combine(a, b) instead of a + b.
    __syncthreads();
    for (unsigned active = ROW_THREADS / 2; active > 0; active /= 2) {
        if (threadIdx.x < active) {
            partial[threadIdx.x] = combine(partial[threadIdx.x], partial[threadIdx.x + active]);
        }
        __syncthreads();
    }
    // END SOLUTION
}

// One block per row: grid (rows), block (ROW_THREADS).
//
//   x, y [rows, cols]   y may be x: in pass 3 a thread reads only the entries that it writes itself.
//                       Hence these pointers are not __restrict__.
//
// Thread t takes the entries t, t + 256, t + 512, ... of the row, as in row_sum_kernel.
__global__ void __launch_bounds__(ROW_THREADS) softmax_kernel(const float* x, float* y, int cols) {
    __shared__ float partial[ROW_THREADS];
    const float* row_x = x + static_cast<size_t>(blockIdx.x) * cols;
    float* row_y = y + static_cast<size_t>(blockIdx.x) * cols;

    // Pass 1: the largest entry of the row.
    float row_max = -INFINITY;
    // BEGIN SOLUTION 4 (5 lines): set row_max to the largest entry of the whole row, in every thread.
    //     First each thread finds the maximum of its own entries; then block_reduce with Max() combines these
    //     maxima. Pass 2 writes to `partial` again: make sure that all threads have read partial[0] by then.
    for (int i = threadIdx.x; i < cols; i += ROW_THREADS) row_max = fmaxf(row_max, row_x[i]);
    partial[threadIdx.x] = row_max;
    block_reduce(partial, Max());
    row_max = partial[0];
    __syncthreads();
    // END SOLUTION

    // The maximum of a fully masked row is -inf, and -inf - (-inf) is NaN. Subtracting 0 instead makes every
    // exp() exp(-inf) = 0; the sum is 0, and pass 3 writes zeros: such a query attends to nothing.
    const float shift = row_max == -INFINITY ? 0.0f : row_max;

    // Pass 2: the sum of the exponentials.
    float row_sum = 0.0f;
    // BEGIN SOLUTION 5 (4 lines): set row_sum to the sum of exp(x - shift) over the whole row, in every
    //     thread. The steps are those of pass 1; expf is the exponential function for float.
    for (int i = threadIdx.x; i < cols; i += ROW_THREADS) row_sum += expf(row_x[i] - shift);
    partial[threadIdx.x] = row_sum;
    block_reduce(partial, Sum());
    row_sum = partial[0];
    // END SOLUTION

    // Pass 3: the result. The exponentials are recomputed: storing them would cost another write and read of
    // the row.
    // BEGIN SOLUTION 6 (4 lines): write y. A sum of exactly 0 (the fully masked row above) must give zeros, not
    //     0 / 0.
    const float inverse_sum = row_sum == 0.0f ? 0.0f : 1.0f / row_sum;
    for (int i = threadIdx.x; i < cols; i += ROW_THREADS) {
        row_y[i] = expf(row_x[i] - shift) * inverse_sum;
    }
    // END SOLUTION
}

// --------------------------------------------------------------------------------------------------- 3. GEMM
//
// A block computes one TILE x TILE tile of C. It walks along K in steps of TILE; in each step it loads a tile
// of A and a tile of B into shared memory and adds their product to sums kept in registers.
//
//                          N                  Without shared memory, each entry of A would be read from
//                    +---+---+---+            global memory N times and each entry of B M times. With it,
//                  K |   | B |   |            that is N / 32 and M / 32 times: once loaded, an entry is
//                    |   | v |   |            used for 32 columns or rows of C.
//           K        +---+---+---+
//        +-------+   +---+---+---+            The last tile of a row or column may extend past its matrix.
//      M |  A >  |   |   | C |   |            Entries outside are loaded as 0, add nothing to the product
//        +-------+   +---+---+---+            and are not stored. So no size has to be a multiple of 32.
//
// block (32, 8): threadIdx.y is the number of the warp, threadIdx.x the lane. A thread computes OUTPUTS = 4
// entries of one column of the tile, 8 rows apart:
//
//     sums[i] is tile entry (row threadIdx.y + i * TILE_ROWS, column threadIdx.x)

constexpr int TILE = 32;
constexpr int TILE_ROWS = 8;               // rows that the block's 256 threads cover at a time
constexpr int OUTPUTS = TILE / TILE_ROWS;  // entries of C per thread
constexpr int MAX_GRID_Z = 65535;
static_assert(MAX_GEMM_N == int64_t(65535) * TILE && MAX_GEMM_SIZE == 2147483648 - TILE);

// tile[r][c] = matrix[first_row + r][first_col + c], or 0 outside the matrix.          matrix [rows, cols]
// A warp reads 32 neighbors of one row (a coalesced access) and writes them to 32 banks (no conflict).
template <int WIDTH>
__device__ __forceinline__ void load_tile(float (&tile)[TILE][WIDTH], const float* matrix, int rows, int cols,
                                          int first_row, int first_col) {
    const int col = first_col + threadIdx.x;
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) {
        const int r = threadIdx.y + i * TILE_ROWS;
        const bool inside = first_row + r < rows && col < cols;
        tile[r][threadIdx.x] = inside ? matrix[static_cast<size_t>(first_row + r) * cols + col] : 0.0f;
    }
}

// sums += a_tile @ b_tile, this thread's four entries.          a_tile [row, k], b_tile [k, col]
//
// For each k the lanes of a warp read 32 neighbors of b_tile (32 banks) and all read the same entry of a_tile
// (a broadcast): no bank conflicts. Each value of b_tile is used for four multiplications.
template <int WIDTH>
__device__ __forceinline__ void multiply_tiles(const float (&a_tile)[TILE][TILE],
                                               const float (&b_tile)[TILE][WIDTH], float (&sums)[OUTPUTS]) {
    // BEGIN SOLUTION 7 (6 lines): for every k, multiply this thread's entry of b_tile by its four entries of
    //     a_tile and add to sums. The top of this section says which rows and column belong to this thread.
    //     Read the entry of b_tile once per k, not four times. `#pragma unroll` before the loop over the four
    //     keeps sums in registers; `#pragma unroll 8` before the one over k saves loop overhead.
#pragma unroll 8
    for (int k = 0; k < TILE; ++k) {
        const float b = b_tile[k][threadIdx.x];
#pragma unroll
        for (int i = 0; i < OUTPUTS; ++i) sums[i] += a_tile[threadIdx.y + i * TILE_ROWS][k] * b;
    }
    // END SOLUTION
}

// Stores this thread's entries of the tile at c[first_row][first_col], those inside the matrix only.  c [M, N]
__device__ __forceinline__ void store_tile(float* c, int M, int N, int first_row, int first_col,
                                           const float (&sums)[OUTPUTS]) {
    const int col = first_col + threadIdx.x;
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) {
        const int row = first_row + threadIdx.y + i * TILE_ROWS;
        if (row < M && col < N) c[static_cast<size_t>(row) * N + col] = sums[i];
    }
}

// C = A @ B for every matrix of the batch.          a [batch, M, K], b [batch, K, N], c [batch, M, N]
//
// grid (row tiles, column tiles, matrices). Row tiles are on x because gridDim.x may be 2^31 - 1, gridDim.y
// and gridDim.z only 65,535; for a larger batch, each block loops over several matrices.
__global__ void __launch_bounds__(TILE * TILE_ROWS)
    gemm_nn_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c,
                   int64_t batch, int M, int N, int K) {
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    const int first_row = blockIdx.x * TILE;
    const int first_col = blockIdx.y * TILE;
    for (int64_t matrix = blockIdx.z; matrix < batch; matrix += gridDim.z) {
        const float* a_matrix = a + matrix * M * K;
        const float* b_matrix = b + matrix * K * N;
        float* c_matrix = c + matrix * M * N;
        float sums[OUTPUTS] = {};
        // BEGIN SOLUTION 8 (7 lines): walk along K in steps of TILE: load_tile for a_tile and for b_tile, then
        //     multiply_tiles. All threads write the tiles, and all threads read them: none may read before all
        //     have written, and none may overwrite (in the next step) before all have read.
        for (int k0 = 0; k0 < K; k0 += TILE) {
            load_tile(a_tile, a_matrix, M, K, first_row, k0);
            load_tile(b_tile, b_matrix, K, N, k0, first_col);
            __syncthreads();
            multiply_tiles(a_tile, b_tile, sums);
            __syncthreads();
        }
        // END SOLUTION
        store_tile(c_matrix, M, N, first_row, first_col, sums);
    }
}

// tile[c][r] = matrix[first_row + r][first_col + c], or 0 outside the matrix.          matrix [rows, cols]
//
// A warp still reads 32 neighbors of one row, so the reads stay coalesced; but now it writes them to one
// column of the tile. Shared memory has 32 banks, entry number n of an array is in bank n % 32, and lanes
// that write to the same bank take turns. In a tile of width 32, a whole column is in one bank: a 32-way
// bank conflict. With one unused entry at the end of each row (width 33), entry (c, r) is number 33 * c + r,
// in bank (c + r) % 32: every lane writes to a different bank.
template <int WIDTH>
__device__ __forceinline__ void load_tile_transposed(float (&tile)[TILE][WIDTH], const float* matrix,
                                                     int rows, int cols, int first_row, int first_col) {
    static_assert(WIDTH % 2 == 1, "an even width gives bank conflicts");
    // BEGIN SOLUTION 9 (7 lines): like load_tile above, except for where in the tile an entry goes. The reads
    //     from `matrix` must stay as they are there: neighboring threads read neighboring addresses.
    const int col = first_col + threadIdx.x;
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) {
        const int r = threadIdx.y + i * TILE_ROWS;
        const bool inside = first_row + r < rows && col < cols;
        tile[threadIdx.x][r] = inside ? matrix[static_cast<size_t>(first_row + r) * cols + col] : 0.0f;
    }
    // END SOLUTION
}

// C = A @ B^T for every matrix of the batch.          a [batch, M, K], b [batch, N, K], c [batch, M, N]
//
// Here a column of C corresponds to a row of B. load_tile_transposed transposes the tile of B; the rest is
// the same as in gemm_nn_kernel.
__global__ void __launch_bounds__(TILE * TILE_ROWS)
    gemm_nt_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c,
                   int64_t batch, int M, int N, int K) {
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE + 1];  // + 1: see load_tile_transposed
    const int first_row = blockIdx.x * TILE;
    const int first_col = blockIdx.y * TILE;
    for (int64_t matrix = blockIdx.z; matrix < batch; matrix += gridDim.z) {
        const float* a_matrix = a + matrix * M * K;
        const float* b_matrix = b + matrix * N * K;
        float* c_matrix = c + matrix * M * N;
        float sums[OUTPUTS] = {};
        // BEGIN SOLUTION 10 (7 lines): as in gemm_nn_kernel, but b_tile comes from the [N, K] matrix b_matrix
        //     and is transposed. Work out which sizes are its rows and columns, and where in the matrix this
        //     block's tile begins.
        for (int k0 = 0; k0 < K; k0 += TILE) {
            load_tile(a_tile, a_matrix, M, K, first_row, k0);
            load_tile_transposed(b_tile, b_matrix, N, K, first_col, k0);
            __syncthreads();
            multiply_tiles(a_tile, b_tile, sums);
            __syncthreads();
        }
        // END SOLUTION
        store_tile(c_matrix, M, N, first_row, first_col, sums);
    }
}

// --------------------------------------------------------------------------------------------------- 4. Mask

// One block per row of scores, in place: multiply by `scale`; apply the mask argument (masked_score, see
// attention_mask.cuh); if causal, set entries k > q to -inf (the softmax makes them 0).
//
//   scores [batch_heads, S_q, S_k]          grid (batch_heads * S_q), block (ROW_THREADS)
__global__ void __launch_bounds__(ROW_THREADS)
    scale_and_mask_kernel(float* scores, int S_q, int S_k, float scale, bool causal, AttentionMask mask) {
    const int64_t batch_head = blockIdx.x / S_q;
    const int q = blockIdx.x % S_q;
    float* row = scores + static_cast<size_t>(blockIdx.x) * S_k;
    for (int k = threadIdx.x; k < S_k; k += ROW_THREADS) {
        row[k] = causal && k > q ? -INFINITY : masked_score(row[k] * scale, mask, batch_head, q, k);
    }
}

// ---------------------------------------------------------------------------------------------- 5. Launchers

void row_sum(const float* x, float* sums, int64_t rows, int cols, cudaStream_t stream) {
    row_sum_kernel<<<static_cast<unsigned>(rows), ROW_THREADS, 0, stream>>>(x, sums, cols);
    CUDA_CHECK_LAUNCH();
}

void softmax(const float* x, float* y, int64_t rows, int cols, cudaStream_t stream) {
    softmax_kernel<<<static_cast<unsigned>(rows), ROW_THREADS, 0, stream>>>(x, y, cols);
    CUDA_CHECK_LAUNCH();
}

static dim3 gemm_grid(int64_t batch, int M, int N) {
    const unsigned matrices = static_cast<unsigned>(std::min<int64_t>(batch, MAX_GRID_Z));
    return dim3(ceil_div(M, TILE), ceil_div(N, TILE), matrices);
}

void gemm_nn(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K,
             cudaStream_t stream) {
    gemm_nn_kernel<<<gemm_grid(batch, M, N), dim3(TILE, TILE_ROWS), 0, stream>>>(a, b, c, batch, M, N, K);
    CUDA_CHECK_LAUNCH();
}

void gemm_nt(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K,
             cudaStream_t stream) {
    gemm_nt_kernel<<<gemm_grid(batch, M, N), dim3(TILE, TILE_ROWS), 0, stream>>>(a, b, c, batch, M, N, K);
    CUDA_CHECK_LAUNCH();
}

void scale_and_mask(float* scores, int64_t batch_heads, int S_q, int S_k, float scale, bool causal,
                    AttentionMask mask, cudaStream_t stream) {
    const unsigned rows = static_cast<unsigned>(batch_heads * S_q);
    scale_and_mask_kernel<<<rows, ROW_THREADS, 0, stream>>>(scores, S_q, S_k, scale, causal, mask);
    CUDA_CHECK_LAUNCH();
}

// ---------------------------------------------------------------------------------------------- 6. Attention

// out = softmax(mask(query @ key^T * scale)) @ value, for each head.
//
//   query, out [batch_heads, S_q, head_dim]
//   key, value [batch_heads, S_k, head_dim]
//   scores     [batch_heads, S_q, S_k]        workspace: first the scores, at the end the weights
//
// Kernels on one stream run one after the other, so each sees the scores as the previous one left them.
void custom_attention(const float* query, const float* key, const float* value, float* scores, float* out,
                      int64_t batch_heads, int S_q, int S_k, int head_dim, float scale, bool causal,
                      AttentionMask mask, cudaStream_t stream) {
    // BEGIN SOLUTION 11 (4 lines): call the launchers of section 5 in the right order; `scores` is where each
    //     leaves its result for the next (the softmax works in place). For each of the two GEMMs, work out
    //     which of S_q, S_k and head_dim are its M, N and K.
    gemm_nt(query, key, scores, batch_heads, S_q, S_k, head_dim, stream);
    scale_and_mask(scores, batch_heads, S_q, S_k, scale, causal, mask, stream);
    softmax(scores, scores, batch_heads * S_q, S_k, stream);
    gemm_nn(scores, value, out, batch_heads, S_q, head_dim, S_k, stream);
    // END SOLUTION
}
