// sparse_attention_mma.cu - attention to a subset of the keys, forward, float16 and bfloat16 on tensor cores.
//
//   1. Bands        Band                        strided keys, causal mask, sliding window
//   2. Blocks       Blocks                      block-sparse
//   3. Kernel       sparse_forward_kernel
//   4. Launcher     sparse_forward_fp16, sparse_forward_bf16
//
//   flash_forward.cuh    the body of the kernel, shared with dense attention: fragments, GEMMs, the loop over tiles
//
// Keys that are not attended to are not computed: the loop of FlashAttention-2 visits other tiles. A pattern says
// which, and which of them have a hidden key; only those are masked, and the rest of the loop is that of dense
// attention.
//
//   strided   The strided keys are a shorter sequence with a row stride of `stride` rows: a tile is copied from there
//             to shared memory, where it looks like any other. Nothing is gathered in global memory.
//   window    A row sees a band of keys. A block of rows goes from the first key of its first row to the last key of
//             its last row, a warp only through those of these tiles that its own 32 rows see; both ends are masked.
//   blocks    The tiles of a key block, then those of the next in the list. Listed blocks are fully visible, so nothing
//             is masked except causal tiles on the diagonal.
//
// Measurements, and what didn't work: README.md.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/flash_forward.cuh"
#include "common/cuda/flash_launch.h"
#include "common/cuda/key_positions.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/unroll.cuh"
#include "common/kernels/sparse/sparse.h"

using namespace flash;  // Scores, Rows, Shape, hide_outside, launch_forward

// A pattern implements the Keys concept of flash_forward.cuh. PLAIN: a positive scale, rows in 16-byte pieces (see
// TileLoader). The other instance supports everything, and scales the scores as it masks them, in every tile.

template <int M, int N>
__device__ __forceinline__ void scale_scores(float (&s)[M][N][4], float factor) {
    UNROLL
    for (int i = 0; i < 4 * M * N; ++i) s[i / (4 * N)][i / 4 % N][i % 4] *= factor;
}

// -------------------------------------------------------------------------------------------------- 1. Bands
//
// A row sees consecutive keys, begin_of(row) ... end_of(row) - 1, and both bounds increase with the row. A block of 128
// rows under a causal window of 100 keys; x: tile without a hidden key, m: masked:
//
//     tile      0   1   2   3   4   5   6   7       tile 0 starts with the first key of row 0
//     warp 0    m   x   x   m   m
//     warp 1        m   x   x   m   m
//     warp 2            m   x   x   m   m
//     warp 3                m   x   x   m   m
//
// A warp is idle while the block visits tiles of others. In a narrow band that is much of the time: there, blocks of
// two warps, four of them on an SM, waste less. In a wide band, blocks of four warps copy half as often, and a warp
// also computes the few tiles before its own, although hidden: one branch less in the loop.

template <class S, bool PLAIN>
struct Band {
    static constexpr bool BEGINS_LATE = S::WARPS == 2, JUMPS = false;
    static constexpr int B_c = S::B_c;
    const SparseArguments& a;
    int warp_start;
    int first, keys, tiles;         // the block's
    int begin, end;                 // tiles of this warp
    int masked_until, masked_from;  // all of these are masked except the ones in between

    static __host__ __device__ int rows(const SparseArguments&) { return S::B_r; }

    __device__ __forceinline__ Band(const SparseArguments& arguments, const Rows<S>& block)
        : a(arguments), warp_start(block.warp_start) {
        first = begin_of(block.start);
        keys = max(end_of(block.start + block.count - 1) - first, 0);
        tiles = ceil_div(keys, B_c);
        const int last_row = warp_start + block.warp_count - 1;
        begin = end = 0;
        if (block.warp_count > 0) {
            begin = BEGINS_LATE ? (begin_of(warp_start) - first) / B_c : 0;
            end = ceil_div(end_of(last_row) - first, B_c);
        }
        masked_until = PLAIN ? ceil_div(begin_of(last_row) - first, B_c) : tiles;
        masked_from = (end_of(warp_start) - first) / B_c;
    }

    // The first key that the row sees, and one past its last. Positions of keys fit in 32 bits.
    __device__ __forceinline__ int begin_of(int row) const {
        return a.window > 0 ? limited(keys_up_to(row - a.window - a.key_offset, static_cast<int>(a.key_step))) : 0;
    }
    __device__ __forceinline__ int end_of(int row) const {
        if (!a.causal && a.window == 0) return static_cast<int>(a.S_k);
        const int64_t last = (a.causal ? row : row + a.window - 1) - a.key_offset;
        return limited(keys_up_to(last, static_cast<int>(a.key_step)));
    }
    __device__ __forceinline__ int limited(int64_t keys) const { return static_cast<int>(keys < a.S_k ? keys : a.S_k); }

    __device__ __forceinline__ int left(int t) const { return keys - t * B_c; }
    __device__ __forceinline__ bool masked(int t) const { return t < masked_until || t >= masked_from; }
    __device__ __forceinline__ void hide(Scores<S>& s, int t) const {
        if constexpr (!PLAIN) scale_scores(s, a.scale * LOG2_E);
        const int from = first + t * B_c;
        hide_outside(s, [&](int i) {
            const int row = warp_start + i;
            return KeyRange{begin_of(row) - from, end_of(row) - from};
        });
    }

    __device__ __forceinline__ bool hides_keys() const { return a.causal || a.window > 0; }
    template <typename F>
    __device__ __forceinline__ void for_each_seen(int row, F f) const {
        const int end = end_of(row);
        for (int key = begin_of(row); key < end; ++key) f(key);
    }
    __device__ __forceinline__ float masked(float score, int, int) const { return score; }
};

// ------------------------------------------------------------------------------------------------- 2. Blocks
//
// A thread block computes one block of rows, 32 for each warp, and visits `parts` tiles for every key block in the
// row's list. Invalid counts and columns are clamped, so that no key is read where there is none.

template <class S, bool PLAIN>
struct Blocks {
    static constexpr bool BEGINS_LATE = false, JUMPS = true;
    static constexpr int B_c = S::B_c, first = 0, begin = 0;
    const SparseArguments& a;
    const int* columns;  // for this row of blocks
    int parts, tiles, end, first_masked;
    bool diagonal;  // the last tile of this warp is on the diagonal, where row r sees the keys up to r

    static __host__ __device__ int rows(const SparseArguments& a) { return a.block; }

    __device__ __forceinline__ Blocks(const SparseArguments& arguments, const Rows<S>& block)
        : a(arguments), parts(a.block / B_c) {
        const int q_block = block.start / a.block;
        const int64_t row = block.head * (a.S_q / a.block) + q_block;
        columns = a.columns + row * (a.S_k / a.block);
        int count = min(max(a.counts[row], 0), static_cast<int>(a.S_k) / a.block);
        if (a.causal) count = visible(count, q_block);
        diagonal = a.causal && count > 0 && column(count - 1) == q_block;
        tiles = count * parts;
        const int warp = threadIdx.x / 32;
        end = block.warp_count > 0 ? tiles - (diagonal ? parts - 1 - warp : 0) : 0;
        first_masked = !PLAIN ? 0 : diagonal ? end - 1 : tiles;
    }

    // How many of the row's blocks, in ascending order, are not past the diagonal. All threads of the block call.
    __device__ __forceinline__ int visible(int count, int q_block) const {
        int sum = 0;
        for (int i = 0; i < count; i += S::THREADS) {
            const int n = i + static_cast<int>(threadIdx.x);
            sum += __syncthreads_count(n < count && column(n) <= q_block);
        }
        return sum;
    }

    __device__ __forceinline__ int column(int n) const {
        return static_cast<int>(min(static_cast<unsigned>(columns[n]), static_cast<unsigned>(a.S_k) / a.block - 1));
    }
    __device__ __forceinline__ int left(int t) const { return (tiles - t) * B_c; }
    __device__ __forceinline__ int skip(int t) const {
        const int n = parts == 3 ? t / 3 : t >> parts / 2;  // which of the row's blocks: t / parts
        if (t >= tiles || n * parts != t) return 0;
        return (column(n) - (n > 0 ? column(n - 1) + 1 : 0)) * a.block;
    }
    __device__ __forceinline__ bool masked(int t) const { return t >= first_masked; }
    __device__ __forceinline__ void hide(Scores<S>& s, int t) const {
        if constexpr (!PLAIN) scale_scores(s, a.scale * LOG2_E);
        if (diagonal && t == end - 1) hide_outside(s, [&](int row) { return KeyRange{0, row + 1}; });
    }

    __device__ __forceinline__ bool hides_keys() const { return a.causal; }
    template <typename F>
    __device__ __forceinline__ void for_each_seen(int row, F f) const {
        for (int n = 0; n < tiles / parts; ++n) {
            const int from = column(n) * a.block, end = a.causal ? min(from + a.block, row + 1) : from + a.block;
            for (int key = from; key < end; ++key) f(key);
        }
    }
    __device__ __forceinline__ float masked(float score, int, int) const { return score; }
};

// ------------------------------------------------------------------------------------------------- 3. Kernel

template <class S, bool PLAIN, template <class, bool> class Pattern>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) sparse_forward_kernel(const SparseArguments a) {
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    using K = Pattern<S, PLAIN>;
    const Rows<S> block(a, K::rows(a));
    flash::forward<S, PLAIN>(a, block, K(a, block), PLAIN ? a.scale * LOG2_E : 1.0f,
                            reinterpret_cast<typename S::T*>(shared_bytes));
}

// ----------------------------------------------------------------------------------------------- 4. Launcher

template <class S, bool PLAIN, template <class, bool> class Pattern>
static void launch(const SparseArguments& a) {
    launch_forward<S>(sparse_forward_kernel<S, PLAIN, Pattern>, a, Pattern<S, PLAIN>::rows(a));
}

// Whether rows see too few keys for blocks of 128 rows, see Band.
static bool is_short(const SparseArguments& a) { return a.window > 0 && (a.causal ? 1 : 2) * a.window <= 1024; }

// With blocks of 96 rows, one of four warps has no rows: it only copies.
template <typename T>
static void forward(const SparseArguments& a) {
    check_row_count(a);
    const bool plain = a.scale > 0 && in_pieces<T>(a);
    const auto run = [&]<int D>() {
        using One = Shape<T, D, 1>;
        using Two = Shape<T, D, 2>;
        using Four = Shape<T, D, 4>;
        if (!plain) return a.block > 0 ? launch<Four, false, Blocks>(a) : launch<Four, false, Band>(a);
        if (a.block == 0) return is_short(a) ? launch<Two, true, Band>(a) : launch<Four, true, Band>(a);
        if (a.block == 32) return launch<One, true, Blocks>(a);
        a.block == 64 ? launch<Two, true, Blocks>(a) : launch<Four, true, Blocks>(a);
    };
    a.head_dim <= 64 ? run.template operator()<64>() : run.template operator()<128>();
}

void sparse_forward_fp16(const SparseArguments& a) { forward<__half>(a); }

void sparse_forward_bf16(const SparseArguments& a) {
    require_bfloat16();
    forward<__nv_bfloat16>(a);
}
