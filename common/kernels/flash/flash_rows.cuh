// flash_rows.cuh - shared by the float32 forward kernels: everything except the arithmetic.
//
//   FlashBlock                which rows of which head a block computes, its tensors, which keys its rows see
//   load_rows                 rows of a matrix in global memory -> tile in shared memory
//   load_scaled_rows          load_rows for Q, multiplied by scale * log2(e) on the way
//   for_head_dim              picks the instance of a kernel for head_dim, alignment, mask and key_step
//   launch_rows               launches a kernel
//
// A block computes B_R rows of the output of one head. Scores are in units of log2(e) throughout, so that exponentials
// are in base 2: the factor is folded into Q with the scale, once.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/check.h"
#include "common/cuda/cp_async.cuh"
#include "common/cuda/flash_launch.h"
#include "common/cuda/logarithms.h"
#include "common/cuda/row_pieces.cuh"
#include "common/cuda/seen_row.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_keys.cuh"

// GENERAL: there may be a mask, or a key_step other than 1.
template <int B_R, bool GENERAL>
struct FlashBlock {
    const float* query;  // [rows_left][head_dim], query_strides.row apart
    const float* key;    // [S_k][head_dim], of the key head that this head uses
    const float* value;  // [S_k][head_dim]
    float* out;          // [rows_left][head_dim]
    float* lse;          // [rows_left] or nullptr
    const FlashArguments& a;
    int64_t q_start;     // the first row
    int64_t position;    // its position, in the keys' coordinates
    int rows_left;       // how many of the B_R rows exist
    int keys_end;        // no row sees a key from here on
    AttentionMask mask;  // starts at this head and the first row

    // Block x of batch * heads * ceil(S_q / B_R). The blocks of a head are consecutive, so that they find its K and V
    // in the L2 cache; its last rows come first: under a causal mask they take longest.
    __device__ __forceinline__ explicit FlashBlock(const FlashArguments& arguments) : a(arguments) {
        const int64_t q_tiles = ceil_div(a.S_q, int64_t{B_R});
        const int64_t batch_head = blockIdx.x / q_tiles, batch = batch_head / a.heads, head = batch_head % a.heads;
        const int64_t kv_head = head / (a.heads / a.kv_heads);
        q_start = (q_tiles - 1 - blockIdx.x % q_tiles) * B_R;
        rows_left = static_cast<int>(a.S_q - q_start < B_R ? a.S_q - q_start : B_R);
        query = static_cast<const float*>(a.query) + batch * a.query_strides.batch + head * a.query_strides.head +
                q_start * a.query_strides.row;
        key = static_cast<const float*>(a.key) + batch * a.key_strides.batch + kv_head * a.key_strides.head;
        value = static_cast<const float*>(a.value) + batch * a.value_strides.batch + kv_head * a.value_strides.head;
        out = static_cast<float*>(a.out) + (batch_head * a.S_q + q_start) * a.head_dim;
        lse = a.lse ? a.lse + batch_head * a.S_q + q_start : nullptr;
        position = position_of(a, q_start);
        keys_end = seen(rows_left - 1);
        mask = mask_from(a.mask, batch, head, q_start);
    }

    // The number of keys (the first ones) that row `row` of the block may see, apart from the mask tensor.
    __device__ __forceinline__ int seen(int row) const { return keys_seen<!GENERAL>(a, position + row); }

    // Whether some row from `row` on may not see some key of [k_start, k_start + keys), or not all of them exist.
    __device__ __forceinline__ bool hides(int row, int64_t k_start, int keys) const {
        return mask.kind != MaskKind::NONE || k_start + keys > seen(row);
    }

    // The end of the keys from k_start on that row `row` may see, apart from the mask tensor, counted from k_start; a
    // row that does not exist sees none.
    __device__ __forceinline__ int visible(int row, int64_t k_start) const {
        return row < rows_left ? static_cast<int>(seen(row) - k_start) : 0;
    }

    // Applies the mask to the score of a visible pair. `row` is counted from the block's first.
    __device__ __forceinline__ float masked(float score, int row, int64_t k) const {
        const float bias = masked_score(0.0f, mask, 0, row, k);
        return bias == -INFINITY ? bias : score + in_log2(bias);
    }

    // Whether any pair of a row and a key is hidden, in any block.
    __device__ __forceinline__ bool hides_keys() const { return a.causal || mask.kind != MaskKind::NONE; }
    // The whole warp recomputes row `row` of the output: see seen_row.cuh.
    __device__ __forceinline__ void compute_again(int row) const {
        if (row >= rows_left) return;
        attention::SeenRow<float> again(query + row * a.query_strides.row, a.head_dim);
        const int end = seen(row);
        NO_UNROLL
        for (int64_t k = 0; k < end && !again.lost(); ++k) {
            const float score = again.product(key + k * a.key_strides.row) * a.scale;
            again.add(masked_score(score, mask, 0, row, k), value + k * a.value_strides.row);
        }
        again.write(out + static_cast<int64_t>(row) * a.head_dim);
    }
};

// tile[r][d] = source[r][d] where r < rows and d < head_dim, 0 elsewhere, so that no other code has to handle short
// tiles or head_dim < D. All THREADS threads call; the copies belong to the group that the caller commits. VECTOR:
// source and row_stride are multiples of 16 bytes, head_dim of 4 floats.
//
//   tile [ROWS][STRIDE], shared      source [rows][head_dim], rows row_stride apart, global
template <int ROWS, int D, int STRIDE, int THREADS, bool VECTOR>
__device__ __forceinline__ void load_rows(float* tile, const float* source, int64_t row_stride, int64_t rows,
                                          int head_dim) {
    constexpr int WIDTH = VECTOR ? 4 : 1, PER_ROW = D / WIDTH, LANES = PER_ROW < 32 ? PER_ROW : 32;  // LANES per row
    constexpr int AT_ONCE = THREADS / LANES;
    const int first = threadIdx.x / LANES, col = threadIdx.x % LANES * WIDTH;
    const int rows_left = rows < ROWS ? static_cast<int>(rows) : ROWS;
    if (THREADS % LANES != 0 && first >= AT_ONCE) return;
    const float* from = source + first * row_stride + col;
    UNROLL
    for (int i = 0; i < ceil_div(ROWS, AT_ONCE); ++i) {
        const int row = first + i * AT_ONCE;
        if (ROWS % AT_ONCE != 0 && row >= ROWS) return;
        for (int j = 0; j < D; j += LANES * WIDTH)
            cp_async_zfill<4 * WIDTH>(tile + row * STRIDE + col + j, from + j, row < rows_left && col + j < head_dim);
        from += AT_ONCE * row_stride;
    }
}

// load_rows for Q, multiplied by `factor`; by ordinary loads.
template <int ROWS, int D, int STRIDE, int THREADS, bool VECTOR>
__device__ __forceinline__ void load_scaled_rows(float* tile, const float* source, int64_t row_stride, int rows,
                                                 int head_dim, float factor) {
    for (int i = threadIdx.x; i < ROWS * D / 4; i += THREADS) {
        const int row = i / (D / 4), col = i % (D / 4) * 4;
        const float4 x = read_four<VECTOR>(source + row * row_stride + col, row < rows ? head_dim - col : 0);
        *reinterpret_cast<float4*>(tile + row * STRIDE + col) =
            make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
    }
}

// Calls f<D, VECTOR, GENERAL>() with D = head_dim rounded up to 32, 64, 96 or 128 and GENERAL as in FlashBlock. Calls
// without VECTOR are always GENERAL, which saves an instance.
template <typename F>
void for_head_dim(const FlashArguments& a, F f) {
    const auto call = [&]<int D>() {
        if (!in_pieces<float>(a)) return f.template operator()<D, false, true>();
        if (a.mask.kind != MaskKind::NONE || a.key_step != 1) return f.template operator()<D, true, true>();
        f.template operator()<D, true, false>();
    };
    a.head_dim <= 32   ? call.template operator()<32>()
    : a.head_dim <= 64 ? call.template operator()<64>()
    : a.head_dim <= 96 ? call.template operator()<96>()
                       : call.template operator()<128>();
}

// One block of `threads` threads for every B_R rows of every head.
inline void launch_rows(void (*kernel)(FlashArguments), int B_R, int threads, int shared_bytes,
                        const FlashArguments& a) {
    check_row_count(a);
    const unsigned blocks = grid_blocks(a.batch * a.heads * ceil_div(a.S_q, int64_t{B_R}), "query");
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    kernel<<<blocks, threads, shared_bytes, a.stream>>>(a);
    CUDA_CHECK_LAUNCH();
}
