// gemm.cu - matrix products in float32: C = A B and C = A B^T.
//
//   1. Shapes       Shape                 how C is cut into pieces for blocks, warps and threads
//   2. Loading      AlongK, AcrossK       an operand's tile from global memory to registers, then to shared memory
//   3. Multiplying  Fragment              what a thread needs of both tiles for one k
//   4. Kernel       gemm_kernel
//   5. Launcher     gemm                  chooses the shape by the size of C
//
// What is different from the taught kernel of task 2, one change on top of the other (each step can be run by itself):
//
//   1. Register tiles. A thread computes 16 x 8 entries of C in place of 4 x 1: for each number that it reads from
//      shared memory it does 5.3 multiplications and not 0.8. The block's tile of C grows from 32 x 32 to 128 x 128, so
//      that A and B are read from global memory a quarter as often.
//   2. float4. Global memory is read and written 16 bytes at a time. (Shared memory is from the first step on.)
//   3. No bank conflicts. The tiles that are turned over have rows of 132 floats, and the lanes of a warp are placed
//      such that its accesses to shared memory take as few passes over the banks as they can.
//   4. Pipelined. The next tile comes from global memory while the present one is multiplied, into registers first,
//      then into a second buffer: one barrier per tile in place of two. The numbers for the next k come from shared
//      memory while those for the present k are multiplied.
//
// Further: small tiles where large ones would leave multiprocessors without work; sizes and pointers that float4 cannot
// take go through the same kernel with scalar accesses. Measured, and what was tried: README.md.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/cuda/alignment.h"
#include "common/cuda/check.h"
#include "common/cuda/row_pieces.cuh"
#include "common/kernels/gemm/gemm.h"

// The changes in the order of the list above. A kernel is compiled for one step and has the changes up to it.
constexpr int REGISTER_TILES = 1, VECTOR_LOADS = 2, NO_CONFLICTS = 3, PIPELINED = 4;
static_assert(GEMM_STEPS == PIPELINED);

// ------------------------------------------------------------------------------------------------- 1. Shapes
//
//      C                   block's tile BM x BN          warp's piece WM x WN          thread's entries TM x TN
//      +--+--+--+--+       +-------+-------+             32 lanes as a grid of         groups of 4 rows x 4 columns,
//      |  |  |  |  |       | warp0 | warp1 |             LANE_ROWS x LANE_COLS         spread over the piece: see
//      +--+--+--+--+       +-------+-------+                                           group_start
//      |  |  |  |  |       | warp2 | warp3 |
//      +--+--+--+--+       +-------+-------+
//
// For every k a thread reads TM + TN numbers from shared memory and does TM * TN multiplications with them. The more
// entries it owns, the less often it reads: 16 x 8 entries take 24 numbers for 128 multiplications, the taught kernel's
// 4 x 1 take 5 for 4. The registers set the limit: a thread has at most 255.

template <int BM_, int BN_, int WM_, int WN_, int TM_, int TN_>
struct Shape {
    static constexpr int BM = BM_, BN = BN_, WM = WM_, WN = WN_, TM = TM_, TN = TN_;
    static constexpr int LANE_ROWS = WM / TM, LANE_COLS = WN / TN;
    static constexpr int WARP_COLS = BN / WN;
    static constexpr int THREADS = BM / WM * WARP_COLS * 32;
    static_assert(LANE_ROWS * LANE_COLS == 32 && TM % 4 == 0 && TN % 4 == 0 && LANE_ROWS % 2 == 0);
};
using LargeShape = Shape<128, 128, 64, 64, 16, 8>;
using SmallShape = Shape<64, 64, 32, 32, 4, 8>;

constexpr int BK = 8;  // how many k a tile holds

// ------------------------------------------------------------------------------------------------ 2. Loading
//
// A tile holds BK values of k and lies in shared memory as [k][row of A] or [k][column of B]: for one k a thread then
// finds the numbers of neighbouring rows (columns) side by side and reads four at a time.
//
// Loading has two halves. fetch() starts reading the next tile from global memory into registers, store() puts the
// registers into shared memory; between the two the kernel multiplies, so that nobody waits for global memory.
//
// What lies beyond K is set to 0. What lies beyond the rows of A or columns of B may be anything, since it only goes
// into entries of C that do not exist and are not stored.

// An operand whose rows run along k: A [M, K], and B of A B^T [N, K]. `lines` is M or N.
//
// A thread reads four neighbouring k of a line and writes them to four rows of the tile: this turns the tile over. The
// 32 lanes of a warp hold 16 lines at two places of k, so they write to row k, columns line .. line + 15, and to row
// k + 4, the same columns. WIDTH = LINES + 4 puts the second sixteen 4 * WIDTH = 16 banks further on (LINES is a
// multiple of 32): no two lanes meet in a bank.
template <int LINES, int WIDTH, int THREADS, bool VECTOR>
class AlongK {
    static constexpr int LINES_AT_ONCE = THREADS / (BK / 4), PARTS = LINES / LINES_AT_ONCE;
    static_assert(PARTS * LINES_AT_ONCE == LINES);
    const int line_ = threadIdx.x / (BK / 4), k_ = threadIdx.x % (BK / 4) * 4;
    const float* source_[PARTS];
    float4 values_[PARTS];
    int k_left_;

   public:
    __device__ __forceinline__ AlongK(const float* matrix, int lines, int K, int first_line) : k_left_(K - k_) {
#pragma unroll
        for (int i = 0; i < PARTS; ++i) {  // beyond the last line: the last line once more
            const int line = min(first_line + line_ + i * LINES_AT_ONCE, lines - 1);
            source_[i] = matrix + static_cast<size_t>(line) * K + k_;
        }
    }

    __device__ __forceinline__ void fetch() {
#pragma unroll
        for (int i = 0; i < PARTS; ++i) {
            values_[i] = read_four<VECTOR>(source_[i], k_left_);
            source_[i] += BK;
        }
        k_left_ -= BK;
    }

    __device__ __forceinline__ void store(float (&tile)[BK][WIDTH]) const {
#pragma unroll
        for (int i = 0; i < PARTS; ++i) {
            const int line = line_ + i * LINES_AT_ONCE;
            tile[k_][line] = values_[i].x;
            tile[k_ + 1][line] = values_[i].y;
            tile[k_ + 2][line] = values_[i].z;
            tile[k_ + 3][line] = values_[i].w;
        }
    }
};

// An operand whose rows run across k: B of A B [K, N]. `cols` is N. The tile lies as the matrix does.
template <int COLS, int WIDTH, int THREADS, bool VECTOR>
class AcrossK {
    static constexpr int K_AT_ONCE = THREADS / (COLS / 4), PARTS = BK / K_AT_ONCE;
    static_assert(PARTS * K_AT_ONCE == BK);
    const int k_ = threadIdx.x / (COLS / 4), col_ = threadIdx.x % (COLS / 4) * 4;
    const float* source_[PARTS];
    float4 values_[PARTS];
    int k_left_;
    const int cols_left_;
    const size_t step_;

   public:
    __device__ __forceinline__ AcrossK(const float* matrix, int cols, int K, int first_col)
        : k_left_(K - k_), cols_left_(cols - first_col - col_), step_(static_cast<size_t>(BK) * cols) {
#pragma unroll
        for (int i = 0; i < PARTS; ++i)
            source_[i] = matrix + static_cast<size_t>(k_ + i * K_AT_ONCE) * cols + first_col + col_;
    }

    __device__ __forceinline__ void fetch() {
#pragma unroll
        for (int i = 0; i < PARTS; ++i) {
            values_[i] = read_four<VECTOR>(source_[i], k_left_ > i * K_AT_ONCE ? cols_left_ : 0);
            source_[i] += step_;
        }
        k_left_ -= BK;
    }

    __device__ __forceinline__ void store(float (&tile)[BK][WIDTH]) const {
#pragma unroll
        for (int i = 0; i < PARTS; ++i) *reinterpret_cast<float4*>(&tile[k_ + i * K_AT_ONCE][col_]) = values_[i];
    }
};

// -------------------------------------------------------------------------------------------- 3. Multiplying

// Where a thread's group number `group` of four rows (columns) begins within its warp's piece, which LANES lanes share;
// `lane` is this one's place among them and OWNED the number of rows that it owns.
//
//     SPREAD:   lane 0 | lane 1 | lane 2 | lane 3 | lane 0 | lane 1 | ...     four each, in turn
//     without:  lane 0 | lane 0 | lane 0 | lane 0 | lane 1 | lane 1 | ...     all of a lane's side by side
//
// Spread, the lanes read neighbouring groups at the same time: 16 bytes each, all banks. Side by side, the groups that
// they read at the same time lie OWNED floats apart, and their banks coincide.
template <bool SPREAD, int LANES, int OWNED>
__device__ __forceinline__ int group_start(int group, int lane) {
    return SPREAD ? (group * LANES + lane) * 4 : lane * OWNED + group * 4;
}

// A thread's numbers for one k.
template <class S>
struct Fragment {
    float a[S::TM];
    float b[S::TN];

    // a_row, b_row: row k of the tiles, from where the warp's piece begins.
    template <bool SPREAD>
    __device__ __forceinline__ void load(const float* a_row, const float* b_row, int lane_row, int lane_col) {
#pragma unroll
        for (int i = 0; i < S::TM; i += 4)
            *reinterpret_cast<float4*>(a + i) =
                four_at(a_row + group_start<SPREAD, S::LANE_ROWS, S::TM>(i / 4, lane_row));
#pragma unroll
        for (int j = 0; j < S::TN; j += 4)
            *reinterpret_cast<float4*>(b + j) =
                four_at(b_row + group_start<SPREAD, S::LANE_COLS, S::TN>(j / 4, lane_col));
    }

    __device__ __forceinline__ void multiply_add(float (&sums)[S::TM][S::TN]) const {
        for (int i = 0; i < S::TM; ++i)
            for (int j = 0; j < S::TN; ++j) sums[i][j] += a[i] * b[j];
    }
};

// ------------------------------------------------------------------------------------------------- 4. Kernel
//
//   a [matrices, M, K]; b [matrices, N, K] if B_ALONG_K, else [matrices, K, N]; c [matrices, M, N]
//
// grid (tiles of rows, tiles of columns, matrices), block (S::THREADS). VECTOR: K and N are
// multiples of 4, and a, b and c begin at a multiple of 16 bytes.

template <class S, bool B_ALONG_K, bool VECTOR, int STEP>
__global__ void __launch_bounds__(S::THREADS, 2)
    gemm_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int M, int N, int K) {
    constexpr bool SPREAD = STEP >= NO_CONFLICTS;
    constexpr int A_WIDTH = S::BM + (SPREAD ? 4 : 0);  // + 4: see AlongK
    constexpr int B_WIDTH = S::BN + (SPREAD && B_ALONG_K ? 4 : 0);
    constexpr int BUFFERS = STEP >= PIPELINED ? 2 : 1;
    __shared__ alignas(16) float a_tile[BUFFERS][BK][A_WIDTH];
    __shared__ alignas(16) float b_tile[BUFFERS][BK][B_WIDTH];
    using ALoader = AlongK<S::BM, A_WIDTH, S::THREADS, VECTOR>;
    using BLoader = std::conditional_t<B_ALONG_K, AlongK<S::BN, B_WIDTH, S::THREADS, VECTOR>,
                                       AcrossK<S::BN, B_WIDTH, S::THREADS, VECTOR>>;

    // Lanes 0 and 1 stand below one another in the grid of lanes, so do 2 and 3, and so on: of any four lanes in a row
    // two read the same four numbers of A, and two the same of B. Lanes so close together share what is read, and 32
    // lanes take two passes over the banks. With rows of 8 lanes, four in a row would read four different groups of B.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int lane_row = SPREAD ? lane % 2 + lane / (2 * S::LANE_COLS) * 2 : lane / S::LANE_COLS;
    const int lane_col = SPREAD ? lane / 2 % S::LANE_COLS : lane % S::LANE_COLS;
    const int warp_row = warp / S::WARP_COLS * S::WM, warp_col = warp % S::WARP_COLS * S::WN;
    const int first_row = blockIdx.x * S::BM, first_col = blockIdx.y * S::BN;

    const int64_t matrix = blockIdx.z;
    ALoader a_loader(a + matrix * M * K, M, K, first_row);
    BLoader b_loader(b + matrix * N * K, N, K, first_col);
    float sums[S::TM][S::TN] = {};
    const int tiles = ceil_div(K, BK);
    const auto load = [&](Fragment<S>& fragment, int buffer, int k) {
        fragment.template load<SPREAD>(&a_tile[buffer][k][warp_row], &b_tile[buffer][k][warp_col], lane_row, lane_col);
    };

    if constexpr (STEP < PIPELINED) {  // one thing after the other, as in the taught kernel
        for (int t = 0; t < tiles; ++t) {
            a_loader.fetch(), b_loader.fetch();
            a_loader.store(a_tile[0]), b_loader.store(b_tile[0]);
            __syncthreads();
#pragma unroll
            for (int k = 0; k < BK; ++k) {
                Fragment<S> fragment;
                load(fragment, 0, k);
                fragment.multiply_add(sums);
            }
            __syncthreads();
        }
    } else {
        // While tile t is multiplied, tile t + 1 is on its way to the registers, and while one fragment is multiplied,
        // the next one comes from shared memory; at the last k of a tile that is the first fragment of tile t + 1.
        // Tile t lies in buffer t % 2. Who overwrites a buffer has passed a barrier that all threads reach only after
        // reading it: one barrier per tile. What follows the last tile is a tile of zeros.
        Fragment<S> fragment[2];
        a_loader.fetch(), b_loader.fetch();
        a_loader.store(a_tile[0]), b_loader.store(b_tile[0]);
        __syncthreads();
        load(fragment[0], 0, 0);
#pragma unroll 1
        for (int t = 0; t < tiles; ++t) {
            a_loader.fetch(), b_loader.fetch();
#pragma unroll
            for (int k = 0; k < BK - 1; ++k) {
                load(fragment[(k + 1) % 2], t % 2, k + 1);
                fragment[k % 2].multiply_add(sums);
            }
            const int next = (t + 1) % 2;
            a_loader.store(a_tile[next]), b_loader.store(b_tile[next]);
            __syncthreads();
            load(fragment[0], next, 0);
            fragment[1].multiply_add(sums);
        }
    }

    float* c_matrix = c + matrix * M * N;
#pragma unroll
    for (int i = 0; i < S::TM; ++i) {
        const int row = first_row + warp_row + group_start<SPREAD, S::LANE_ROWS, S::TM>(i / 4, lane_row) + i % 4;
#pragma unroll
        for (int j = 0; j < S::TN; j += 4) {
            const int col = first_col + warp_col + group_start<SPREAD, S::LANE_COLS, S::TN>(j / 4, lane_col);
            if (row >= M || col >= N) continue;
            float* target = c_matrix + static_cast<size_t>(row) * N + col;
            if constexpr (VECTOR) {
                *reinterpret_cast<float4*>(target) =
                    make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
            } else {
#pragma unroll
                for (int n = 0; n < 4; ++n)
                    if (col + n < N) target[n] = sums[i][j + n];
            }
        }
    }
}

// ----------------------------------------------------------------------------------------------- 5. Launcher

static_assert(MAX_GEMM_N == MAX_GRID_YZ * SmallShape::BN && MAX_GEMM_SIZE == 2147483648 - LargeShape::BM);

struct Product {
    const float *a, *b;
    float* c;
    int64_t batch;
    int M, N, K;
    bool b_transposed;

    // Whether all accesses of four floats would be aligned.
    bool takes_vectors() const {
        return K % 4 == 0 && N % 4 == 0 && all_aligned({a, b, c});
    }
};

template <class S, bool VECTOR, int STEP>
static void launch(const Product& p, cudaStream_t stream) {
    for (int64_t first = 0; first < p.batch; first += MAX_GRID_YZ) {
        const auto matrices = static_cast<unsigned>(std::min<int64_t>(p.batch - first, MAX_GRID_YZ));
        const dim3 grid(ceil_div(p.M, S::BM), ceil_div(p.N, S::BN), matrices);
        const float* a = p.a + first * p.M * p.K;
        const float* b = p.b + first * p.N * p.K;
        float* c = p.c + first * p.M * p.N;
        if (p.b_transposed)
            gemm_kernel<S, true, VECTOR, STEP><<<grid, S::THREADS, 0, stream>>>(a, b, c, p.M, p.N, p.K);
        else
            gemm_kernel<S, false, VECTOR, STEP><<<grid, S::THREADS, 0, stream>>>(a, b, c, p.M, p.N, p.K);
        CUDA_CHECK_LAUNCH();
    }
}

// Small tiles need about 8/7 of the time per entry of C, since they take twice the reads from shared memory. But all
// blocks last equally long, and while the last ones run, multiprocessors without work wait. So compared is what the
// busiest multiprocessor has to do, in entries of C; large blocks keep it busy two at a time.
static bool large_tiles_pay(const Product& p) {
    const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
    const auto busiest = [&]<class S>(S, int at_a_time) {
        const int64_t blocks = p.batch * ceil_div(p.M, S::BM) * ceil_div(p.N, S::BN);
        return ceil_div(blocks, int64_t(multiprocessors) * at_a_time) * at_a_time * S::BM * S::BN;
    };
    return busiest(LargeShape(), 2) * 7 <= busiest(SmallShape(), 1) * 8;
}

void gemm(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K, bool b_transposed, int step,
          cudaStream_t stream) {
    const Product p{a, b, c, batch, M, N, K, b_transposed};
    const bool vector = p.takes_vectors(), large = step < PIPELINED || large_tiles_pay(p);
    const auto run = step == REGISTER_TILES || (step < PIPELINED && !vector) ? launch<LargeShape, false, REGISTER_TILES>
                     : step == VECTOR_LOADS                                  ? launch<LargeShape, true, VECTOR_LOADS>
                     : step == NO_CONFLICTS                                  ? launch<LargeShape, true, NO_CONFLICTS>
                     : large && vector                                       ? launch<LargeShape, true, PIPELINED>
                     : large                                                 ? launch<LargeShape, false, PIPELINED>
                     : vector                                                ? launch<SmallShape, true, PIPELINED>
                                                                             : launch<SmallShape, false, PIPELINED>;
    run(p, stream);
}
