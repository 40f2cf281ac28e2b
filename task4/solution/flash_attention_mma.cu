// flash_attention_mma.cu - FlashAttention-2, forward, float16 and bfloat16 on tensor cores.
//
//   1. Shapes       Shape                       what a block, a warp and a thread own
//   2. Products     multiply_qk, multiply_pv    S = Q K^T, O += P V by mma.sync
//   3. Masks        keys_seen, hide, apply_mask
//   4. Kernel       flash_forward_kernel
//   5. Launcher     flash_forward_fp16, flash_forward_bf16
//
//   flash_tiles.cuh      tiles in shared memory: cp.async, swizzle, ldmatrix
//   flash_softmax.cuh    the online softmax on fragments
//
// The algorithm is that of the taught kernel (flash_attention.cu), and so are the names. What is different:
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
// Printed by `python -m task4.benchmark --dtype bf16` (NVIDIA H200, torch 2.11, CUDA 13.0; 16,384 tokens, hidden 2048):
//
//   TFLOP/s            D = 64                causal                 D = 128               causal
//     S =              512   2048  16384      512   2048  16384      512   2048  16384      512   2048  16384
//   this file          291    351    362      198    300    356      328    372    391      227    323    374
//   SDPA flash         267    300    300      155    265    297      308    339    349      185    282    323
//   SDPA cuDNN         388    456    478      262    400    472      532    612    650      335    492    637
//
// Over SDPA's FlashAttention-2 1.15 times as fast in the geometric mean over S = 512 ... 16384, 1.07 at least.
//
// What is in the way of more: the tensor cores are busy somewhat over half of the time. With D = 64
// there are three other instructions for every mma, and registers allow no more than two warps per scheduler. Hopper's
// wgmma, which reads shared memory itself and is issued once for a whole tile, is the next step.
//
// Tried on the H200 and left out, because they were slower or gained nothing: 16 rows per warp (twice the reads from
// shared memory), three blocks per multiprocessor or tiles of 64 keys (registers are spilled), 8 warps per block, steps
// of 16 keys with the weights computed one step ahead, parts of Q in registers for D = 128.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cfloat>
#include <cstdint>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/check.h"
#include "common/cuda/cp_async.cuh"
#include "common/cuda/exp2.cuh"
#include "common/cuda/ldmatrix.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "task4/solution/flash_host.h"
#include "common/cuda/flash_softmax.cuh"
#include "common/cuda/flash_tiles.cuh"
#include "task4/solution/tuned.h"

// ------------------------------------------------------------------------------------------------- 1. Shapes
//
//     block: B_r = 128 rows of Q        warp: 32 rows, M = 2 blocks of 16        tile of K or V: B_c = 32 keys
//
// Why 32 rows per warp: the B operand of an mma, 16 x 8 elements of K or V, is 256 bytes of shared memory, and a warp
// uses it M times. The four tensor cores of a multiprocessor take four operands in about six cycles, 1024 bytes; shared
// memory delivers 128 a cycle. So M = 1 would wait for shared memory, and M = 2 has some to spare.
//
// What that costs: a thread holds M D / 2 floats of O, 16 M of S, half as many registers of P, and M D / 4 registers of
// Q. For D > 64 this is too much: there Q is read again for every tile.
//
// Shared memory: Q [B_r][D], then SLOTS tiles of K and SLOTS of V, [B_c][D] each; half of the slots are being read,
// half being filled. 48 KB for D = 64 and 96, 64 KB for D = 128, which is what a block may have on Turing (sm_75).

constexpr int M = 2, WARPS = 4, THREADS = 32 * WARPS;
constexpr int WARP_ROWS = 16 * M, B_r = WARPS * WARP_ROWS, B_c = 32;

template <typename T_, int D_>
struct Shape {
    using T = T_;
    static constexpr int D = D_, SLOTS = D <= 64 ? 4 : 2;
    static constexpr bool HOLDS_Q = D <= 64;
    static constexpr int TILE = B_c * D, K_AT = B_r * D, V_AT = K_AT + SLOTS * TILE;  // in elements
    static constexpr int BYTES = (V_AT + SLOTS * TILE) * sizeof(T);
};

// Fragments: one lane's registers. Lanes and rows as in common/cuda/mma.cuh.
using Scores = float[M][B_c / 8][4];
using Weights = unsigned[B_c / 16][M][4];
template <int D>
using Output = float[M][D / 8][4];
template <int D>
using Query = unsigned[D / 16][M][4];

// ----------------------------------------------------------------------------------------------- 2. Products
//
// `shared` is the beginning of the block's shared memory; *_at: lane_start (or lane_start_b) of a tile in it.

// Columns 16 i ... 16 i + 15 of the warp's rows of Q.
template <int D, typename T>
__device__ __forceinline__ void load_query(unsigned (&q)[M][4], const T* shared, unsigned q_at, int i) {
    UNROLL
    for (int m = 0; m < M; ++m)
        ldmatrix_x4(q[m][0], q[m][1], q[m][2], q[m][3], shared + block_at<D>(q_at, m, i));
}

// s = Q K^T for one tile of K.
template <class S>
__device__ __forceinline__ void multiply_qk(Scores& s, Query<S::D>& query, const typename S::T* shared, unsigned q_at,
                                            unsigned k_at) {
    UNROLL
    for (int i = 0; i < S::D / 16; ++i) {
        auto& q = query[i];
        if constexpr (!S::HOLDS_Q) load_query<S::D>(q, shared, q_at, i);
        UNROLL
        for (int g = 0; g < B_c / 16; ++g) {
            unsigned k[2][2];
            ldmatrix_x4(k[0][0], k[0][1], k[1][0], k[1][1], shared + block_at<S::D>(k_at, g, i));
            UNROLL
            for (int j = 0; j < 2 * M; ++j) {
                float(&d)[4] = s[j % M][2 * g + j / M];
                if (i == 0) d[0] = d[1] = d[2] = d[3] = 0;
                mma_m16n8k16<typename S::T>(d, q[j % M], k[j / M]);
            }
        }
    }
}

// o += P V for one tile of V.
template <class S>
__device__ __forceinline__ void multiply_pv(Output<S::D>& o, const Weights& p, const typename S::T* shared,
                                            unsigned v_at) {
    UNROLL
    for (int i = 0; i < S::D / 16; ++i) {
        UNROLL
        for (int g = 0; g < B_c / 16; ++g) {
            unsigned v[2][2];
            ldmatrix_x4_trans(v[0][0], v[0][1], v[1][0], v[1][1], shared + block_at<S::D>(v_at, g, i));
            UNROLL
            for (int j = 0; j < 2 * M; ++j)
                mma_m16n8k16<typename S::T>(o[j % M][2 * i + j / M], p[g][j % M], v[j / M]);
        }
    }
}

// -------------------------------------------------------------------------------------------------- 3. Masks

// How many keys row `row` may see, the mask tensor aside: the first ones.
__device__ __forceinline__ int keys_seen(const FlashArguments& a, int row) {
    const int64_t keys = a.causal ? a.diagonal + row + 1 : a.S_k;
    return static_cast<int>(keys < 0 ? 0 : keys < a.S_k ? keys : a.S_k);
}

// s = -infinity for the keys that a row may not see.   first_row, first_key: where the tile of scores begins
__device__ __forceinline__ void hide(Scores& s, const FlashArguments& a, int first_row, int first_key) {
    const int lane = threadIdx.x % 32;
    UNROLL
    for (int i = 0; i < 2 * M; ++i) {
        const int m = i / 2, half = i % 2;
        const int seen = keys_seen(a, first_row + 16 * m + mma_d_row(lane, 2 * half)) - first_key;
        UNROLL
        for (int j = 0; j < B_c / 4; ++j)
            if (8 * (j / 2) + mma_d_col(lane, j % 2) >= seen) s[m][j / 2][2 * half + j % 2] = -INFINITY;
    }
}

// s -> scale * s with the mask tensor applied, in units of log2(e). Models mask with the smallest float, too; it must
// stay finite, since a row of nothing else has a mean.
__device__ __forceinline__ void apply_mask(Scores& s, const FlashArguments& a, const AttentionMask& mask, int first_row,
                                           int first_key) {
    const int lane = threadIdx.x % 32;
    UNROLL
    for (int i = 0; i < M * B_c / 2; ++i) {
        const int m = i / (B_c / 2), n = i / 4 % (B_c / 8), e = i % 4;
        const int row = first_row + 16 * m + mma_d_row(lane, e), key = first_key + 8 * n + mma_d_col(lane, e);
        float x = s[m][n][e] * a.scale;
        if (row < a.S_q && key < a.S_k) x = masked_score(x, mask, 0, row, key);
        const float y = x * LOG2_E;
        s[m][n][e] = y == -INFINITY && x != -INFINITY ? -FLT_MAX : y;
    }
}

// ------------------------------------------------------------------------------------------------- 4. Kernel
//
// A block computes B_r rows of one head. The blocks of a head are neighbours, so that they find its K and V in the L2
// cache, its last rows first: under a causal mask they have the longest way to go. Heads that share K and V are
// neighbours, too.
//
// One pass of the loop, SLOTS = 2:   ask for K of tile t + 2 and V of tile t + 1
//                                    P = weights of tile t;   S = Q K^T of tile t + 1;   O += P V of tile t
//                                    mask S, raise the maximum if S asks for it
//
// PLAIN: no mask tensor, a positive scale, rows in pieces of 16 bytes (see TileLoader). The other instance takes all.

template <class S, bool PLAIN>
__global__ void __launch_bounds__(THREADS, 2) flash_forward_kernel(const FlashArguments a) {
    using T = typename S::T;
    constexpr int D = S::D, SLOTS = S::SLOTS, AHEAD = SLOTS / 2;
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    T* shared = reinterpret_cast<T*>(shared_bytes);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    const unsigned q_blocks = static_cast<unsigned>(ceil_div(a.S_q, int64_t{B_r}));
    const unsigned batch_head = blockIdx.x / q_blocks, heads = static_cast<unsigned>(a.heads);
    const unsigned batch = batch_head / heads, head = batch_head % heads;
    const unsigned kv_head = head / static_cast<unsigned>(a.heads / a.kv_heads);
    const int q_start = static_cast<int>(q_blocks - 1 - blockIdx.x % q_blocks) * B_r;
    const int block_rows = static_cast<int>(a.S_q - q_start < B_r ? a.S_q - q_start : B_r);
    const T* query = static_cast<const T*>(a.query) + batch * a.query_strides.batch + head * a.query_strides.head +
                     q_start * a.query_strides.row;
    const T* key = static_cast<const T*>(a.key) + batch * a.key_strides.batch + kv_head * a.key_strides.head;
    const T* value = static_cast<const T*>(a.value) + batch * a.value_strides.batch + kv_head * a.value_strides.head;
    AttentionMask mask = a.mask;  // of this head
    if constexpr (!PLAIN) {
        const int64_t offset = batch * mask.batch_stride + head * mask.head_stride;
        mask.data = static_cast<const char*>(mask.data) + offset * (mask.kind == MaskKind::FLOAT ? sizeof(float) : 1);
        mask.heads = 1;
    }

    // The block's keys and tiles, and those of this warp; its tiles from first_masked on need a mask.
    const int row_start = q_start + warp * WARP_ROWS;
    const int own_rows = min(block_rows - warp * WARP_ROWS, WARP_ROWS);
    const int keys = keys_seen(a, q_start + block_rows - 1), tiles = ceil_div(keys, B_c);
    const int own_tiles = own_rows > 0 ? ceil_div(keys_seen(a, row_start + own_rows - 1), B_c) : 0;
    const int first_masked = PLAIN ? keys_seen(a, row_start) / B_c : 0;
    const float factor = PLAIN ? a.scale * LOG2_E : 1.0f;

    using Loader = TileLoader<T, D, THREADS, PLAIN>;
    Loader k_loader(key, a.key_strides.row, a.head_dim), v_loader(value, a.value_strides.row, a.head_dim);
    const auto load_k = [&](int t) {
        k_loader.template load<B_c>(shared + S::K_AT + t % SLOTS * S::TILE, keys - t * B_c);
    };
    const auto load_v = [&](int t) {
        v_loader.template load<B_c>(shared + S::V_AT + t % SLOTS * S::TILE, keys - t * B_c);
    };
    Loader(query, a.query_strides.row, a.head_dim).template load<B_r>(shared, block_rows);
    load_k(0);
    cp_async_commit();
    UNROLL
    for (int i = 0; i < AHEAD; ++i) load_k(i + 1), load_v(i);
    cp_async_commit();

    const unsigned q_at = warp * WARP_ROWS * D + lane_start<D>();
    const unsigned k_at = S::K_AT + lane_start_b<D>(), v_at = S::V_AT + lane_start<D>();
    RowState<M> rows;
    Scores s;
    Weights p;
    Query<D> q;
    Output<D> o;
    UNROLL
    for (int i = 0; i < M * D / 2; ++i) o[i / (D / 2)][i / 4 % (D / 8)][i % 4] = 0;

    const auto prepare = [&](int t) {  // s, just computed, for weigh()
        float top[M][2];
        bool exceeded = needs_rescale(top, rows, s, factor);
        if (t >= first_masked) {
            if constexpr (!PLAIN) apply_mask(s, a, mask, row_start, t * B_c);
            hide(s, a, row_start, t * B_c);
            exceeded = needs_rescale(top, rows, s, factor);
        }
        if (exceeded) rescale(rows, o, top, factor);
    };

    cp_async_wait<1>();  // Q and the first tile of K
    __syncthreads();
    if constexpr (S::HOLDS_Q) {
        UNROLL
        for (int i = 0; i < D / 16; ++i) load_query<D>(q[i], shared, q_at, i);
    }
    if (own_tiles > 0) {
        multiply_qk<S>(s, q, shared, q_at, k_at);
        prepare(0);
    }
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
        if (t % AHEAD == 0) {  // the next AHEAD tiles have arrived, and all warps are done with the AHEAD before
            cp_async_wait<0>();
            __syncthreads();
            UNROLL
            for (int i = 0; i < AHEAD; ++i) load_k(t + AHEAD + 1 + i), load_v(t + AHEAD + i);
            cp_async_commit();
        }
        const unsigned k_next = k_at + (t + 1) % SLOTS * S::TILE, v_now = v_at + t % SLOTS * S::TILE;
        if (t + 1 < own_tiles) {
            weigh<T>(p, rows, s, factor);
            multiply_qk<S>(s, q, shared, q_at, k_next);
            multiply_pv<S>(o, p, shared, v_now);
            prepare(t + 1);
        } else if (t < own_tiles) {
            weigh<T>(p, rows, s, factor);
            multiply_pv<S>(o, p, shared, v_now);
        }
    }

    // The output goes through the warp's own rows of the Q tile, so that it is written 16 bytes at a time.
    T* tile = shared + warp * WARP_ROWS * D;
    UNROLL
    for (int i = 0; i < 2 * M; ++i) {
        const int m = i / 2, half = i % 2, row = 16 * m + mma_d_row(lane, 2 * half);
        const float sum = add_lanes(rows.sum[m][half]), inverse = sum == 0 ? 0.0f : __fdividef(1.0f, sum);
        if (a.lse != nullptr && lane % 4 == 0 && row < own_rows)
            a.lse[batch_head * a.S_q + row_start + row] =
                sum == 0 ? -INFINITY : (rows.shift[m][half] + __log2f(sum)) * LN_2;
        UNROLL
        for (int n = 0; n < D / 8; ++n)
            *reinterpret_cast<unsigned*>(swizzled<D>(tile, row, n) + mma_d_col(lane, 0)) =
                pack<T>(o[m][n][2 * half] * inverse, o[m][n][2 * half + 1] * inverse);
    }
    __syncwarp();
    T* out = static_cast<T*>(a.out) + (batch_head * a.S_q + row_start) * a.head_dim;
    UNROLL
    for (int i = 0; i < WARP_ROWS * D / 8; i += 32) {
        const int row = (i + lane) / (D / 8), chunk = (i + lane) % (D / 8);
        if (row >= own_rows || chunk * 8 >= a.head_dim) continue;
        const T* from = swizzled<D>(tile, row, chunk);
        T* to = out + row * a.head_dim + chunk * 8;
        if constexpr (PLAIN) {
            *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
        } else {
            for (int d = 0; d < 8 && chunk * 8 + d < a.head_dim; ++d) to[d] = from[d];
        }
    }
}

// ----------------------------------------------------------------------------------------------- 5. Launcher

template <class S, bool PLAIN>
static void launch(const FlashArguments& a) {
    const unsigned blocks = grid_of(a.batch * a.heads * ceil_div(a.S_q, int64_t{B_r}));
    const auto kernel = flash_forward_kernel<S, PLAIN>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
    kernel<<<blocks, THREADS, S::BYTES, a.stream>>>(a);
    CUDA_CHECK_LAUNCH();
}

template <typename T>
static void forward(const FlashArguments& a) {
    check_row_count(a);
    const bool plain = a.mask.kind == MaskKind::NONE && a.scale > 0 && in_pieces<T>(a);
    const auto run = [&]<int D>() { plain ? launch<Shape<T, D>, true>(a) : launch<Shape<T, D>, false>(a); };
    a.head_dim <= 64   ? run.template operator()<64>()
    : a.head_dim <= 96 ? run.template operator()<96>()
                       : run.template operator()<128>();
}

void flash_forward_fp16(const FlashArguments& a) { forward<__half>(a); }

void flash_forward_bf16(const FlashArguments& a) {
    require_bfloat16();
    forward<__nv_bfloat16>(a);
}
