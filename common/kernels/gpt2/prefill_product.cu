// prefill_product.cu - a product of a prefill with all that stands around it, for Hopper GPUs (sm_90a).
//
//   1. Shapes       Shape, Problem
//   2. Producer     produce       asks for tiles; for weights before its predecessor has ended
//   3. Consumers    consume       products; of an input that is to be normalised also the rows' moments
//                   store         layernorm, bias, gelu, addition; rows -> memory
//                   keep_sums, store_sums    the same for a product whose K is divided among the blocks of a cluster
//   4. Launcher     prefill_fits, prefill_product
//
//   common/cuda/    hopper_tiles.cuh: tiles, products, slots, roles
//
// A prompt of 512 tokens gives few tiles, one to a multiprocessor at most, and a block is over after K / 64 steps. So
// what counts is what lies between the products: nothing runs there, and the next one's weights are on their way while
// this one ends. A layernorm is applied to the sums afterwards, as in a decode step (gpt2.h); its weight is in the
// product's weights already, and mean and variance come from the tiles of x, which all pass through shared memory.
//
//     time ->   producer    W0 W1 W2 | x0 x1 x2 W3 x3 ...          |: the predecessor has ended
//               consumers                 x0 W0  x1 W1 ...  store
//
// For all other targets the kernel is empty and prefill_fits returns false, as in the simulator unless that runs code
// for sm_90a.
#include "common/kernels/gpt2/gpt2.h"

#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
#include <stdexcept>

bool prefill_fits(const PrefillProduct&) { return false; }
void prefill_product(const PrefillProduct&) { throw std::invalid_argument("prefill_product is not built for this GPU"); }
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "common/cuda/check.h"
#include "common/cuda/cluster.cuh"
#include "common/cuda/dependent_launch.cuh"
#include "common/cuda/hopper_rows.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/gpt2/gelu.cuh"
#include "common/kernels/gpt2/vectors.cuh"

// ------------------------------------------------------------------------------------------------- 1. Shapes
//
// A block computes ROWS rows of COLS columns, in steps of 64 along K. A slot is a tile of x and a tile of weights.
// SPLIT blocks, a cluster, share the steps of a tile.

template <int GROUPS_, int COLS_, int SLOTS_, int SPLIT_ = 1>
struct Shape {
    static constexpr int GROUPS = GROUPS_, COLS = COLS_, SLOTS = SLOTS_, SPLIT = SPLIT_, STEP = 64;
    static constexpr int ROWS = hopper::GROUP_ROWS * GROUPS, THREADS = hopper::GROUP_THREADS * (1 + GROUPS);
    using X = hopper::Tile<ROWS, STEP>;
    using W = hopper::Tile<COLS, STEP>;
    // Shared memory, in bytes: x [SLOTS][ROWS][64], weights [SLOTS][COLS][64]
    static constexpr int W_AT = SLOTS * X::BYTES, BYTES = W_AT + SLOTS * W::BYTES + hopper::ALIGNMENT;
    // In place of the tiles, when they have been read: sums [ROWS][SUM_COLS]; 8 more, so that rows lie in other banks
    static constexpr int SUM_COLS = COLS + 8;
    static_assert(BYTES <= hopper::MAX_SHARED && ROWS * SUM_COLS * 4 <= W_AT + SLOTS * W::BYTES && ROWS % SPLIT == 0);
};
using Large = Shape<2, 128, 6>;
using Small = Shape<1, 64, 8>;
using Split = Shape<2, 128, 6, 4>;

// Which steps are this block's.
template <class S>
__device__ __forceinline__ int first_step(int steps, int rank) {
    return S::SPLIT == 1 ? rank * steps : static_cast<int>(int64_t{steps} * rank / S::SPLIT);
}

// PrefillProduct as the kernel wants it; names as there. Maps: x [sequences][K / 64][seq_len][64], weight [K / 64][N][64]
struct Problem {
    CUtensorMap x, weight;
    const float *bias, *weight_sum;
    void *out, *k_cache, *v_cache;
    int seq_len, tiles, n, steps, max_seq_len;  // tiles: of a sequence's rows
    float eps;
    bool gelu, add;
};

// ----------------------------------------------------------------------------------------------- 2. Producer

template <class S>
__device__ __forceinline__ void produce(const Problem& a, hopper::Slots<S::SLOTS>& slots, unsigned char* shared) {
    using namespace hopper;
    const int sequence = blockIdx.y / a.tiles, row = blockIdx.y % a.tiles * S::ROWS;
    const int col = blockIdx.x / S::SPLIT * S::COLS, rank = blockIdx.x % S::SPLIT;
    const int first = first_step<S>(a.steps, rank), steps = first_step<S>(a.steps, rank + 1) - first;
    const auto ask_weights = [&](int slot, int step) {
        mbarrier_expect(slots.full[slot], S::X::BYTES + S::W::BYTES);
        tma_load(shared + S::W_AT + slot * S::W::BYTES, a.weight, slots.full[slot], 0, col, first + step, 0);
    };
    const int ahead = min(S::SLOTS, steps);
    for (int step = 0; step < ahead; ++step) ask_weights(step, step);  // all slots are empty
    wait_for_predecessor();
    Ring<S::SLOTS> ring;
    for (int step = 0; step < steps; ++step) {
        if (step >= ahead) {
            wait_until_empty(slots, ring);
            ask_weights(ring.slot(), step);
        }
        tma_load(shared + ring.slot() * S::X::BYTES, a.x, slots.full[ring.slot()], 0, row, first + step, sequence);
        ring.advance();
    }
}

// ---------------------------------------------------------------------------------------------- 3. Consumers

// Of this lane's half of row lane / 2 of the warp's 16, of 64 columns in a tile: added to sum and squares. The pieces of
// a row lie in another order, which does not matter to a sum, but piece ^ (row % 8) keeps lanes in different banks.
template <typename T>
__device__ __forceinline__ void add_moments(float& sum, float& squares, const unsigned char* tile, int warp_row) {
    const int row = warp_row + threadIdx.x % 32 / 2, half = threadIdx.x % 2;
    UNROLL
    for (int i = 0; i < 4; ++i) {
        const int piece = (half * 4 + i) ^ row % 8;
        float values[8];
        Vector<T>::unpack(values, *reinterpret_cast<const uint4*>(tile + row * 128 + piece * 16));
        UNROLL
        for (int j = 0; j < 8; ++j) sum += values[j], squares += values[j] * values[j];
    }
}

// d [64][COLS], of which this warp has 16 rows, first_row ... of the sequence's; mean and 1 / std of this lane's two.
template <typename T, class S>
__device__ __forceinline__ void store(const Problem& a, float (&d)[S::COLS / 8][4], int sequence, int first_row,
                                      const float (&mean)[2], const float (&inverse_std)[2]) {
    const int lane = threadIdx.x % 32, first_col = blockIdx.x * S::COLS, width = a.n / 3;
    T* const out = static_cast<T*>(a.out);
    UNROLL
    for (int n = 0; n < S::COLS / 8; n += 4)
        UNROLL
        for (int half = 0; half < 2; ++half) {  // rows lane / 4, lane / 4 + 8
            unsigned words[4];                  // columns 8 (n + i) + lane % 4 * 2 and the next one
            UNROLL
            for (int i = 0; i < 4; ++i) {
                const int col = min(first_col + 8 * (n + i), a.n - 8) + lane % 4 * 2;
                float y[2] = {d[n + i][2 * half], d[n + i][2 * half + 1]};
                const float2 bias = *reinterpret_cast<const float2*>(a.bias + col);
                if (a.weight_sum) {
                    const float2 sums = *reinterpret_cast<const float2*>(a.weight_sum + col);
                    y[0] = (y[0] - mean[half] * sums.x) * inverse_std[half];
                    y[1] = (y[1] - mean[half] * sums.y) * inverse_std[half];
                }
                y[0] += bias.x, y[1] += bias.y;
                if (a.gelu) y[0] = gelu(y[0]), y[1] = gelu(y[1]);
                const T pair[2] = {from_float<T>(y[0]), from_float<T>(y[1])};
                words[i] = *reinterpret_cast<const unsigned*>(pair);
            }
            hopper::transpose_quad(words);  // now the 8 columns from 8 (n + lane % 4) on
            const int token = first_row + lane / 4 + 8 * half, col = first_col + 8 * (n + lane % 4);
            if (token >= a.seq_len || col >= a.n) continue;
            uint4 bits = {words[0], words[1], words[2], words[3]};
            uint4* const to = reinterpret_cast<uint4*>(out + (int64_t{sequence} * a.seq_len + token) * a.n + col);
            if (a.add) {
                float y[8], x[8];
                Vector<T>::unpack(y, bits);
                Vector<T>::unpack(x, *to);
                UNROLL
                for (int i = 0; i < 8; ++i) x[i] += y[i];
                bits = Vector<T>::pack(x);
            }
            *to = bits;
            if (a.k_cache == nullptr || col < width) continue;
            void* const cache = col < 2 * width ? a.k_cache : a.v_cache;
            const int head = col % width / 64;
            const int64_t slot = (int64_t{sequence} * (width / 64) + head) * a.max_seq_len + token;
            *reinterpret_cast<uint4*>(static_cast<T*>(cache) + slot * 64 + col % 64) = bits;
        }
}

// A block's part of the sums, to its shared memory. d [64][COLS]: of which this warp has 16 rows.
template <class S>
__device__ __forceinline__ void keep_sums(float* sums, const float (&d)[S::COLS / 8][4], int group) {
    const int lane = threadIdx.x % 32, warp_row = hopper::GROUP_ROWS * group + threadIdx.x / 32 % 4 * 16;
    UNROLL
    for (int n = 0; n < S::COLS / 8; ++n)
        UNROLL
        for (int half = 0; half < 2; ++half)
            *reinterpret_cast<float2*>(sums + (warp_row + lane / 4 + 8 * half) * S::SUM_COLS + 8 * n + lane % 4 * 2) =
                make_float2(d[n][2 * half], d[n][2 * half + 1]);
}

// The tile as the sum over the cluster's blocks, in the order of their ranks; each takes ROWS / SPLIT of its rows. Bias
// and addition only.
template <typename T, class S>
__device__ __forceinline__ void store_sums(const Problem& a, float* sums) {
    constexpr int UNITS = S::COLS / 8, ROWS = S::ROWS / S::SPLIT, CONSUMERS = hopper::GROUP_THREADS * S::GROUPS;
    const int rank = blockIdx.x % S::SPLIT, first_col = blockIdx.x / S::SPLIT * S::COLS;
    for (int i = threadIdx.x - hopper::GROUP_THREADS; i < ROWS * UNITS; i += CONSUMERS) {
        const int row = rank * ROWS + i / UNITS, tile_col = i % UNITS * 8, col = first_col + tile_col;
        const int sequence = blockIdx.y / a.tiles, token = blockIdx.y % a.tiles * S::ROWS + row;
        if (token >= a.seq_len || col >= a.n) continue;
        uint4* const to = reinterpret_cast<uint4*>(static_cast<T*>(a.out) +
                                                   (int64_t{sequence} * a.seq_len + token) * a.n + col);
        float y[8], x[8];
        UNROLL
        for (int j = 0; j < 8; ++j) y[j] = a.bias[col + j];
        UNROLL
        for (int block = 0; block < S::SPLIT; ++block) {
            const float4* from = reinterpret_cast<const float4*>(in_block(sums, block) + row * S::SUM_COLS + tile_col);
            const float4 low = from[0], high = from[1];
            y[0] += low.x, y[1] += low.y, y[2] += low.z, y[3] += low.w;
            y[4] += high.x, y[5] += high.y, y[6] += high.z, y[7] += high.w;
        }
        if (a.add) {
            Vector<T>::unpack(x, *to);
            UNROLL
            for (int j = 0; j < 8; ++j) y[j] += x[j];
        }
        *to = Vector<T>::pack(y);
    }
}

template <typename T, class S>
__device__ __forceinline__ void consume(const Problem& a, hopper::Slots<S::SLOTS>& slots, const unsigned char* shared,
                                        int group, float (&d)[S::COLS / 8][4]) {
    using namespace hopper;
    const int group_row = GROUP_ROWS * group, warp_row = group_row + threadIdx.x / 32 % 4 * 16;
    const KMajor x_at = k_major<typename S::X>(shared, group_row), w_at = k_major<typename S::W>(shared + S::W_AT);
    float sum = 0.0f, squares = 0.0f;
    Ring<S::SLOTS> ring;
    const int rank = blockIdx.x % S::SPLIT, steps = first_step<S>(a.steps, rank + 1) - first_step<S>(a.steps, rank);
    int before = 0;  // the slot of the step before
    NO_UNROLL
    for (int step = 0; step < steps; ++step) {
        const int slot = ring.slot();
        wait_for(slots, ring);
        wgmma_begin();
        UNROLL
        for (int i = 0; i < S::STEP / 16; ++i)
            wgmma<T>(d, x_at.plus(slot * S::X::BYTES + 32 * i), w_at.plus(slot * S::W::BYTES + 32 * i),
                     step > 0 || i > 0);
        wgmma_commit();
        if (a.weight_sum) add_moments<T>(sum, squares, shared + slot * S::X::BYTES, warp_row);
        __syncwarp();
        wgmma_wait<1>();
        if (step > 0) give_back(slots, before);
        before = slot;
        ring.advance();
    }
    wgmma_wait<0>();
    keep_order(d);
    if constexpr (S::SPLIT > 1) return;
    float mean[2], inverse_std[2];
    const float k = 64.0f * a.steps;
    sum += __shfl_xor_sync(FULL_WARP, sum, 1), squares += __shfl_xor_sync(FULL_WARP, squares, 1);
    UNROLL
    for (int half = 0; half < 2; ++half) {
        const int holder = 2 * (threadIdx.x % 32 / 4 + 8 * half);
        mean[half] = __shfl_sync(FULL_WARP, sum, holder) / k;
        const float variance = __shfl_sync(FULL_WARP, squares, holder) / k - mean[half] * mean[half];
        inverse_std[half] = rsqrtf(fmaxf(variance, 0.0f) + a.eps);
    }
    store<T, S>(a, d, blockIdx.y / a.tiles, blockIdx.y % a.tiles * S::ROWS + warp_row, mean, inverse_std);
}

template <typename T, class S>
__global__ void __launch_bounds__(S::THREADS, 1) prefill_product_kernel(const __grid_constant__ Problem a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char bytes[];
    __shared__ hopper::Slots<S::SLOTS> slots;
    unsigned char* shared = hopper::aligned(bytes);
    if (threadIdx.x == 0) {
        slots.init(4 * S::GROUPS);
        hopper::mbarrier_init_done();
    }
    __syncthreads();
    launch_dependents();
    const int group = hopper::role_of_warpgroup();
    float d[S::COLS / 8][4];  // of a consumer: its warpgroup's 64 rows
    if (group == hopper::PRODUCER) {
        if (threadIdx.x == 0)
            produce<S>(a, slots, shared);
        else
            wait_for_predecessor();
        __syncwarp();
    } else {
        wait_for_predecessor();
        consume<T, S>(a, slots, shared, group, d);
    }
    if constexpr (S::SPLIT > 1) {
        float* sums = reinterpret_cast<float*>(shared);
        __syncthreads();  // all tiles have been read
        if (group != hopper::PRODUCER) keep_sums<S>(sums, d, group);
        cluster_arrive();
        cluster_wait();
        if (group != hopper::PRODUCER) store_sums<T, S>(a, sums);
        cluster_arrive();
        cluster_wait();  // nobody reads this block's sums any more
    }
#endif
}

// ----------------------------------------------------------------------------------------------- 4. Launcher

template <typename T, class S>
static bool launch(const PrefillProduct& a, bool dry) {
    if (!hopper::is_built(prefill_product_kernel<T, S>)) return false;
    Problem p = {};
    const int steps = a.k / 64;
    const hopper::RowShape x = {a.sequences, steps, a.seq_len, 64}, weight = {1, steps, a.n, 64};
    const int64_t rows = a.seq_len;
    const RowStrides by_rows = {rows * a.k, 64, a.k}, by_heads = {rows * a.k, rows * 64, 64};
    if (!hopper::make_tensor_map<T>(p.x, a.x, x, a.x_by_heads ? by_heads : by_rows, S::ROWS) ||
        !hopper::make_tensor_map<T>(p.weight, a.weight, weight, {0, 64, a.k}, S::COLS))
        return false;
    if (dry) return true;
    p.bias = a.bias, p.weight_sum = a.weight_sum;
    p.out = a.out, p.k_cache = a.k_cache, p.v_cache = a.v_cache;
    p.seq_len = a.seq_len, p.tiles = ceil_div(a.seq_len, S::ROWS), p.n = a.n, p.steps = steps;
    p.max_seq_len = a.max_seq_len, p.eps = a.eps, p.gelu = a.gelu, p.add = a.add;
    const auto kernel = prefill_product_kernel<T, S>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
    const dim3 grid(ceil_div(a.n, S::COLS) * S::SPLIT, p.tiles * a.sequences);
    launch_clusters_after(kernel, S::SPLIT, grid, S::THREADS, S::BYTES, a.stream, p);
    return true;
}

// How long a shape takes: rounds of all multiprocessors times the rows of all tiles that one of them reads. SUM: what
// adding up takes, in rows of tiles; a guess.
template <class S>
static double estimate(const PrefillProduct& a) {
    constexpr double SUM = 1200;
    const double tiles = 1.0 * ceil_div(a.seq_len, S::ROWS) * a.sequences * ceil_div(a.n, S::COLS);
    const double rounds = std::ceil(tiles * S::SPLIT / device_attribute(cudaDevAttrMultiProcessorCount));
    return rounds * (a.k / 64 / S::SPLIT * (S::ROWS + S::COLS) + (S::SPLIT > 1 ? SUM : 0));
}

template <typename T>
static bool run(const PrefillProduct& a, bool dry) {
    if (a.k % 64 != 0 || a.n % 8 != 0 || device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
    if (int64_t{ceil_div(a.seq_len, 64)} * a.sequences > MAX_GRID_YZ) return false;
    const bool sums = a.weight_sum == nullptr && !a.gelu && a.k_cache == nullptr && a.k / 64 >= Split::SPLIT;
    if (sums && estimate<Split>(a) < std::min(estimate<Small>(a), estimate<Large>(a))) return launch<T, Split>(a, dry);
    return estimate<Small>(a) <= estimate<Large>(a) ? launch<T, Small>(a, dry) : launch<T, Large>(a, dry);
}

static bool run(const PrefillProduct& a, bool dry) {
    if (a.type == FloatType::FLOAT16) return run<__half>(a, dry);
    return a.type == FloatType::BFLOAT16 && run<__nv_bfloat16>(a, dry);
}

bool prefill_fits(const PrefillProduct& a) { return run(a, true); }
void prefill_product(const PrefillProduct& a) {
    if (!run(a, false)) throw std::invalid_argument("prefill_product does not take this product: see prefill_fits");
}
#endif
