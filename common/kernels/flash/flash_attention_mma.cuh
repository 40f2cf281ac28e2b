// flash_attention_mma.cuh - FlashAttention-2, forward, float16 and bfloat16 on tensor cores.
//
//   1. Scores       cap_and_mask            softcap and mask tensor
//   2. Keys         SequenceKeys            which tiles of keys a block visits, what is hidden in them, the options
//   3. Kernel       flash_forward_kernel
//   4. Launcher     forward_by_mma          flash_attention_mma_fp16.cu and _bf16.cu instantiate it
//
//   common/cuda/    flash_forward.cuh: the body of the kernel, shared with sparse attention: fragments, matmuls, the
//                   loop over tiles; flash_tiles.cuh: tiles in shared memory; flash_softmax.cuh: the online softmax on
//                   fragments
//
// Algorithm and names are those of the kernel taught in task 4. Differences:
//
//   1. Tensor cores. A warp owns 32 rows and computes S and O with mma.sync m16n8k16; scores, softmax and sums are
//      float. P goes from the accumulators of S to the operand of P V without leaving the registers.
//   2. Tiles are copied by cp.async while others are computed, 16 bytes at a time, and swizzled, so that ldmatrix reads
//      them without bank conflicts. A tile is issued a whole iteration before it is waited for: one barrier per tile
//      for D > 64, one per two tiles for D = 64.
//   3. Q K^T of the next tile is next to softmax and P V of the current one, with no branch in between. They are
//      independent, so the compiler interleaves them: the tensor cores work while exponentials are computed.
//   4. An exponential is one instruction (exp2.cuh); scale, log2(e) and running max are one FMA before it.
//   5. The output is rescaled only when the maximum has grown by much; until then lanes exchange only one vote per tile
//      (flash_softmax.cuh).
//   6. A warp computes only tiles that its own rows see part of. Only tiles with a hidden key, on the diagonal, at the
//      end of a window or at the ragged end, are masked; one comparison per tile decides.
//
// Measurements and bottlenecks: README.md; what didn't work: notes/.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/check.h"
#include "common/cuda/flash_forward.cuh"
#include "common/cuda/flash_launch.h"
#include "common/cuda/logarithms.h"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/attention_policies.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_sequences.cuh"

// ------------------------------------------------------------------------------------------------- 1. Scores

// q.k -> scores in units of log2(e), with softcap and mask tensor.   mask: of this head, see mask_from
template <int M, int N>
__device__ __forceinline__ void cap_and_mask(float (&s)[M][N][4], const FlashArguments& a, const AttentionMask& mask,
                                             const Sequence& sequence, int first_row, int first_key) {
    const bool masked = mask.kind != MaskKind::NONE;
    const float unit = masked ? 1.0f : LOG2_E;
    if (a.softcap > 0) {
        const float inside = a.scale / a.softcap, outside = a.softcap * unit;
        UNROLL
        for (int i = 0; i < 4 * M * N; ++i) {
            float& x = s[i / (4 * N)][i / 4 % N][i % 4];
            x = outside * tanh_of(x * inside);
        }
    } else {
        const float factor = a.scale * unit;
        UNROLL
        for (int i = 0; i < 4 * M * N; ++i) s[i / (4 * N)][i / 4 % N][i % 4] *= factor;
    }
    if (!masked) return;
    const int lane = threadIdx.x % 32;
    UNROLL
    for (int i = 0; i < 4 * M * N; ++i) {
        float& x = s[i / (4 * N)][i / 4 % N][i % 4];
        const int row = first_row + i / (4 * N) * 16 + mma::d_row(lane, i % 4);
        const int key = first_key + i / 4 % N * 8 + mma::d_col(lane, i % 4);
        x = row < sequence.rows && key < sequence.keys ? in_log2(masked_score(x, mask, 0, row, key)) : -INFINITY;
    }
}

// -------------------------------------------------------------------------------------------------- 2. Keys
//
// Implements the concept of flash::forward. A block visits tiles 0 ... tiles - 1, the first starting at key `first`. A
// warp computes begin ... end - 1 of them, and all its rows see all of full_begin ... full_end - 1. Packed sequences,
// windows, both alignments of a causal mask, strided keys and sinks cost branches only at the ends of a row or a warp's
// tiles.
//
// OPTIONS: a softcap, a mask tensor, dropout, a scale that is not positive.

template <class S, bool OPTIONS>
struct SequenceKeys {
    static constexpr bool BEGINS_LATE = true, JUMPS = false;
    static constexpr int B_c = S::B_c;
    const FlashArguments& a;
    const Sequence& sequence;
    const AttentionMask mask;  // this head's
    const int head, warp_start;
    const int64_t seed, dropout_head;
    int first, end_key, tiles, begin, end, full_begin, full_end;

    __device__ __forceinline__ SequenceKeys(const FlashArguments& arguments, const flash::Rows<S>& block, const Sequence& s)
        : a(arguments),
          sequence(s),
          mask(OPTIONS ? mask_from(a.mask, block.batch, block.head) : AttentionMask()),
          head(static_cast<int>(block.head)),
          warp_start(block.warp_start),
          seed(seed_of<OPTIONS>(a.dropout)),
          dropout_head(s.number * a.heads + block.head) {
        first = s.first_key_of(block.start) / B_c * B_c, end_key = s.end_of_keys(block.start + block.count - 1);
        tiles = end_key > first ? ceil_div(end_key - first, B_c) : 0;
        begin = tiles + 1, end = full_begin = full_end = 0;
        if (block.warp_count <= 0) return;
        const int last = warp_start + block.warp_count - 1;
        const int from = s.first_key_of(warp_start), to = s.end_of_keys(last);
        if (from >= to) return;
        begin = (from - first) / B_c, end = ceil_div(to - first, B_c);
        full_begin = ceil_div(s.first_key_of(last) - first, B_c);
        full_end = max(s.end_of_keys(warp_start) - first, 0) / B_c;
    }

    __device__ __forceinline__ int left(int t) const { return end_key - first - t * B_c; }
    __device__ __forceinline__ bool masked(int t) const { return OPTIONS || t < full_begin || t >= full_end; }
    __device__ __forceinline__ void hide(flash::Scores<S>& s, int t) const {
        const int start = first + t * B_c;
        if constexpr (OPTIONS) cap_and_mask(s, a, mask, sequence, warp_start, start);
        if (OPTIONS && t >= full_begin && t < full_end) return;
        flash::hide_outside(s, [&](int row) {
            return flash::KeyRange{sequence.first_key_of(warp_start + row) - start,
                                   sequence.end_of_keys(warp_start + row) - start};
        });
    }
    __device__ __forceinline__ void drop(flash::Weights<S>& p, int t) const
        requires OPTIONS
    {
        if (a.dropout.seed == nullptr) return;
        UNROLL
        for (int i = 0; i < B_c / 16 * S::M; ++i) {
            const int k = i / S::M, m = i % S::M;
            const Kept<false> kept =
                keep_tile(a.dropout, seed, dropout_head, warp_start / 16 + m, (first + t * B_c) / 16 + k);
            UNROLL
            for (int at = 0; at < 4; ++at) p[k][m][at] &= kept.mask(at / 2, at % 2);
        }
    }
    __device__ __forceinline__ RowEnd end_of_row(float row_max, float sum) const {
        return ::end_of_row(a.sinks == nullptr ? nullptr : a.sinks + head, a.dropout.factor, row_max, sum);
    }

    __device__ __forceinline__ bool hides_keys() const {
        return a.causal || a.window_left >= 0 || a.window_right >= 0 || mask.kind != MaskKind::NONE;
    }
    template <typename F>
    __device__ __forceinline__ void for_each_seen(int row, F f) const {
        const int last = sequence.end_of_keys(row);
        for (int key = sequence.first_key_of(row); key < last; ++key) f(key);
    }
    __device__ __forceinline__ float masked(float score, int row, int key) const {
        if (a.softcap > 0) score = a.softcap * tanh_of(score / a.softcap);
        return masked_score(score, mask, 0, row, key);
    }
    __device__ __forceinline__ bool takes(int row, int key) const {
        return !OPTIONS || a.dropout.seed == nullptr || keep_weight(a.dropout, seed, dropout_head, row, key);
    }
    template <class Row, typename T>
    __device__ __forceinline__ void finish(Row& again, T* out) const {
        if (a.sinks != nullptr) again.add(a.sinks[head], nullptr);
        again.write(out, a.dropout.factor);
    }
};

// ------------------------------------------------------------------------------------------------- 3. Kernel

template <class S, bool OPTIONS>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) flash_forward_kernel(const FlashArguments a) {
    using T = typename S::T;
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    const Place place = place_of_block(a.cu_seqlens_q, a.S_q, a.batch, a.heads, S::B_r, true);
    if (place.number < 0) return;
    const Sequence sequence(a, place.number);
    const int kv_head = place.head / static_cast<int>(a.heads / a.kv_heads);
    flash::Rows<S> block(place.number, place.head, place.start, min(sequence.rows - place.start, S::B_r));
    const int64_t first_row = sequence.first_row + place.start;
    block.query = row_at(static_cast<const T*>(a.query), a.query_strides, place.number, place.head, first_row);
    block.key = row_at(static_cast<const T*>(a.key), a.key_strides, place.number, kv_head, sequence.first_key);
    block.value = row_at(static_cast<const T*>(a.value), a.value_strides, place.number, kv_head, sequence.first_key);
    block.out = row_at(static_cast<T*>(a.out), a.out_strides, place.number, place.head,
                       sequence.first_row + block.warp_start);
    block.out_row = a.out_strides.row;
    block.lse = a.lse == nullptr ? nullptr : a.lse + number_at(a, sequence, place.head, block.warp_start);
    flash::forward<S, true>(a, block, SequenceKeys<S, OPTIONS>(a, block, sequence), OPTIONS ? 1.0f : a.scale * LOG2_E,
                            reinterpret_cast<T*>(shared_bytes));
}

// ----------------------------------------------------------------------------------------------- 4. Launcher

// Whether it supports the call: rows in 16-byte pieces, and enough shared memory. For head_dim 256 that is 192 KB,
// which only large GPUs have.
template <typename T>
bool forward_by_mma(const FlashArguments& a, bool dry) {
    if (!in_pieces<T>(a)) return false;
    check_row_count(a);
    const bool options = a.mask.kind != MaskKind::NONE || a.softcap > 0 || a.dropout.seed != nullptr || !(a.scale > 0);
    const auto run = [&]<class S>() {
        if (S::BYTES > device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) return false;
        if (dry) return true;
        const auto kernel = options ? flash_forward_kernel<S, true> : flash_forward_kernel<S, false>;
        const int64_t blocks = a.heads * tiles_of(a.batch, a.S_q, a.packed(), S::B_r);
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
        kernel<<<grid_blocks(blocks, "query"), S::THREADS, S::BYTES, a.stream>>>(a);
        CUDA_CHECK_LAUNCH();
        return true;
    };
    return a.head_dim <= 64    ? run.template operator()<flash::Shape<T, 64, 4>>()
           : a.head_dim <= 96  ? run.template operator()<flash::Shape<T, 96, 4>>()
           : a.head_dim <= 128 ? run.template operator()<flash::Shape<T, 128, 4>>()
                               : run.template operator()<flash::Shape<T, 256, 8, 1, 64>>();
}
