// flash_attention_mma.cu - FlashAttention-2, forward, float16 and bfloat16 on tensor cores.
//
//   1. Masks        apply_mask              the mask tensor
//   2. Keys         FirstKeys               which tiles of keys a block goes through, and what is hidden in them
//   3. Kernel       flash_forward_kernel
//   4. Launcher     flash_forward_fp16, flash_forward_bf16
//
//   common/cuda/    flash_forward.cuh: the body of the kernel, which sparse attention shares: fragments, products, the
//                   loop over tiles; flash_tiles.cuh: tiles in shared memory; flash_softmax.cuh: the online softmax on
//                   fragments
//
// The algorithm is that of the taught kernel of task 4, and so are the names. What is different:
//
//   1. Tensor cores. A warp owns 32 rows and computes S and O by mma.sync m16n8k16; scores, softmax and sums are float.
//      P goes from the accumulators of S to the operand of P V without leaving the registers.
//   2. Tiles are copied by cp.async while others are computed, 16 bytes at a time, and swizzled, so that ldmatrix reads
//      them without bank conflicts. A tile is waited for a whole tile after it was asked for: one barrier per tile of
//      D > 64, one per two of D = 64.
//   3. Q K^T of the next tile stands beside softmax and P V of the present one, with no branch between them. They do
//      not depend on each other, so the compiler mixes them: the tensor cores work while powers are computed.
//   4. A power is one instruction (exp2.cuh); scale, log2(e) and maximum are one multiply-add before it.
//   5. The output is rescaled only when the maximum has grown by much, and until then lanes exchange nothing but a vote
//      per tile (flash_softmax.cuh).
//   6. Under a causal mask a warp stops at its own last tile, not at the block's. Only tiles that hold a hidden key, on
//      the diagonal or at the ragged end, are masked; one comparison per tile decides.
//
// Measured, what is in the way of more, and what was tried: README.md.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/check.h"
#include "common/cuda/flash_forward.cuh"
#include "common/cuda/flash_launch.h"
#include "common/cuda/logarithms.h"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_keys.cuh"

using namespace flash;  // M, B_c, Scores, Rows, Shape, hide_outside, launch_forward
using namespace mma;    // by_row

// -------------------------------------------------------------------------------------------------- 1. Masks

// s -> scale * s with the mask tensor applied, in units of log2(e).
__device__ __forceinline__ void apply_mask(Scores& s, const FlashArguments& a, const AttentionMask& mask, int first_row,
                                           int first_key) {
    const int lane = threadIdx.x % 32;
    UNROLL
    for (int i = 0; i < M * B_c / 2; ++i) {  // tile by tile
        const int m = i / (B_c / 2), n = i / 4 % (B_c / 8), r = 2 * m + i % 4 / 2, c = 2 * n + i % 2;
        const int row = first_row + mma::row(lane, r), key = first_key + mma::col(lane, c);
        float& score = by_row(s)(r, c);
        float x = score * a.scale;
        if (row < a.S_q && key < a.S_k) x = masked_score(x, mask, 0, row, key);
        score = in_log2(x);
    }
}

// -------------------------------------------------------------------------------------------------- 2. Keys
//
// What flash::forward asks: a row sees the first keys of its head, up to the diagonal under a causal mask. So do a warp
// and the block, and their tiles from first_masked on need a mask.
//
// PLAIN: no mask tensor, a positive scale, rows in pieces of 16 bytes (see TileLoader). NEXT: key_step is 1. The
// instance that is neither takes all.

template <class S, bool PLAIN, bool NEXT>
struct FirstKeys {
    static constexpr bool BEGINS_LATE = false, JUMPS = false;
    static constexpr int first = 0, begin = 0;
    const FlashArguments& a;
    const AttentionMask mask;  // of this head
    const int row_start, keys, tiles, end, first_masked;

    __device__ __forceinline__ FirstKeys(const FlashArguments& arguments, const Rows<S>& block)
        : a(arguments),
          mask(mask_from(a.mask, block.batch, block.head)),
          row_start(block.warp_start),
          keys(seen(block.start + block.count - 1)),
          tiles(ceil_div(keys, B_c)),
          end(block.warp_count > 0 ? ceil_div(seen(row_start + block.warp_count - 1), B_c) : 0),
          first_masked(PLAIN ? seen(row_start) / B_c : 0) {}

    // How many keys a row of the head may see.
    __device__ __forceinline__ int seen(int row) const { return keys_seen<NEXT>(a, position_of(a, row)); }

    __device__ __forceinline__ int left(int t) const { return keys - t * B_c; }
    __device__ __forceinline__ bool masked(int t) const { return t >= first_masked; }
    __device__ __forceinline__ void hide(Scores& s, int t) const {
        if constexpr (!PLAIN) apply_mask(s, a, mask, row_start, t * B_c);
        hide_outside(s, [&](int row) { return KeyRange{0, seen(row_start + row) - t * B_c}; });
    }

    __device__ __forceinline__ bool hides_keys() const { return a.causal || mask.kind != MaskKind::NONE; }
    template <typename F>
    __device__ __forceinline__ void for_each_seen(int row, F f) const {
        const int end = seen(row);
        for (int key = 0; key < end; ++key) f(key);
    }
    __device__ __forceinline__ float masked(float score, int row, int key) const {
        return masked_score(score, mask, 0, row, key);
    }
};

// ------------------------------------------------------------------------------------------------- 3. Kernel

template <class S, bool PLAIN, bool NEXT>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) flash_forward_kernel(const FlashArguments a) {
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    const Rows<S> block(a);
    flash::forward<S, PLAIN>(a, block, FirstKeys<S, PLAIN, NEXT>(a, block), PLAIN ? a.scale * LOG2_E : 1.0f,
                            reinterpret_cast<typename S::T*>(shared_bytes));
}

// ----------------------------------------------------------------------------------------------- 4. Launcher

template <typename T>
static void forward(const FlashArguments& a) {
    check_row_count(a);
    const bool plain = a.mask.kind == MaskKind::NONE && a.scale > 0 && in_pieces<T>(a);
    const auto run = [&]<int D>() {
        using S = Shape<T, D, 4>;
        const auto kernel = !plain              ? flash_forward_kernel<S, false, false>
                            : a.key_step == 1 ? flash_forward_kernel<S, true, true>
                                              : flash_forward_kernel<S, true, false>;
        launch_forward<S>(kernel, a);
    };
    a.head_dim <= 64   ? run.template operator()<64>()
    : a.head_dim <= 96 ? run.template operator()<96>()
                       : run.template operator()<128>();
}

void flash_forward_fp16(const FlashArguments& a) { forward<__half>(a); }

void flash_forward_bf16(const FlashArguments& a) {
    require_bfloat16();
    forward<__nv_bfloat16>(a);
}
