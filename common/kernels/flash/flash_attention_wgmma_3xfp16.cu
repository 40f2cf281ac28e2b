// flash_attention_wgmma_3xfp16.cu - float32 on the tensor cores of Hopper GPUs, forward (sm_90a).
//
//   1. Shapes       Shape, Barriers      a CTA's shared memory
//   2. Producer     produce              issues TMA loads
//   3. Consumers    consume              compute
//   4. Kernel       flash_3xfp16_wgmma_kernel
//   5. Launcher     hopper_takes_fp32, hopper_forward_fp32
//
//   hopper_split_kernel.cuh: query, key and value -> halves, before the kernel   hopper_split.h: the workspace
//   flash_split.cuh: the sum of two halves                hopper_forward_work.cuh: work tiles and their order
//
// flash_attention_wgmma.cuh for a type that wgmma does not support: every number is the sum of two halves, big and
// small, and three products replace one (flash_split.cuh). Roles, pipeline stages and loop order are those of that
// file; read it first. Differences:
//
//   1. TMA loads halves. A kernel that runs before this one splits each row once, for all CTAs; it reads and writes
//      every number once, which is cheap compared with S_q * S_k products. So only TMA writes the shared memory that
//      the tensor cores read, never the warps.
//   2. Rows have scales, powers of two. A row of Q has one number per work tile; the scales of a tile of K or V are
//      loaded along with it. S is multiplied by K's before its maximum is taken, the weights by V's before they are
//      split.
//   3. O is not accumulated by the tensor cores, which truncate where float arithmetic would round: the errors of
//      thousands of keys would add up. P V of a tile is a separate GEMM, added to O by ordinary additions, with the
//      scale of its row of weights. The addition overlaps with the next scores.
#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
#include "common/kernels/flash/flash.h"

bool hopper_takes_fp32(const FlashArguments&) { return false; }  // not in this build
void hopper_forward_fp32(const FlashArguments&, void*) {}
#else
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/check.h"
#include "common/cuda/empty_rows.cuh"
#include "common/cuda/exp2.cuh"
#include "common/cuda/flash_launch.h"
#include "common/cuda/flash_softmax.cuh"
#include "common/cuda/hopper_rows.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/mma.cuh"
#include "common/cuda/row_pieces.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_split.cuh"
#include "common/kernels/flash/hopper_forward_work.cuh"
#include "common/kernels/flash/hopper_split.h"
#include "common/kernels/flash/hopper_split_kernel.cuh"

namespace hopper_fp32 {

// ------------------------------------------------------------------------------------------------- 1. Shapes
//
// GROUPS warpgroups of 64 rows make up the B_r rows of a CTA. A stage of K or V has B_c keys, big and small.

template <int D_>
struct Shape {
    static constexpr int D = D_, GROUPS = 2, STAGES = 2, Q_STAGES = D == 64 ? 2 : 1;
    static constexpr Order ORDER = Order::FOLDED;
    static constexpr int B_r = hopper::GROUP_ROWS * GROUPS, B_c = split_tile(D);
    static constexpr int THREADS = hopper::GROUP_THREADS * (1 + GROUPS), CONSUMER_WARPS = 4 * GROUPS;
    using Registers = hopper::RegisterShares<GROUPS>;
    // Shared memory, in bytes: Q [2][Q_STAGES][B_r][D], K [2][STAGES][B_c][D], V [2][STAGES][B_c][D]; big, then small
    using Q = hopper::Tile<B_r, D>;
    using K = hopper::Tile<B_c, D>;
    static constexpr int Q_SMALL = Q_STAGES * Q::BYTES, K_SMALL = STAGES * K::BYTES;
    static constexpr int K_AT = 2 * Q_SMALL, V_AT = K_AT + 2 * K_SMALL;
    static constexpr int BYTES = V_AT + 2 * K_SMALL + hopper::ALIGNMENT;
    static_assert(BYTES <= hopper::MAX_SHARED + 512 - 2048);
    // A group sees at most this many tiles fewer than another one of the CTA, see consume().
    static_assert(STAGES > ceil_div(B_r - hopper::GROUP_ROWS, B_c));
};

struct SplitProblem : ForwardProblem {
    const float *query_scales, *key_scales, *value_scales;  // scales of 2^14 Q, 2^-14 K and V
    int query_rows, key_rows;                               // rows per head of these
};

template <class S>
struct Barriers {
    alignas(16) float k_scales[S::STAGES][S::B_c];
    alignas(16) float v_scales[S::STAGES][S::B_c];
    hopper::Stages<S::Q_STAGES> q;
    hopper::Stages<S::STAGES> k, v;

    // `full` gets two arrivals: for the big and for the small tile.
    __device__ void init() {
        q.init(S::CONSUMER_WARPS, 2), k.init(S::CONSUMER_WARPS, 2), v.init(S::CONSUMER_WARPS, 2);
        hopper::mbarrier_init_done();
    }
};

// ----------------------------------------------------------------------------------------------- 2. Producer

// As in flash_attention_wgmma.cuh; a tensor map's "batch" is 0 for the big halves and 1 for the small ones.
template <class S>
__device__ __forceinline__ void produce(const SplitProblem& a, Barriers<S>& barriers, unsigned char* shared) {
    using namespace hopper;
    using K = typename S::K;
    Ring<S::Q_STAGES> q;
    Ring<S::STAGES> kv;
    TileScheduler<S> scheduler(a);
    for (WorkTile work; scheduler.take(work);) {
        const int batch = work.batch_head / a.heads, head = work.batch_head % a.heads;
        const int kv_head = batch * (a.heads / a.group) + head / a.group;
        wait_until_empty(barriers.q, q);
        fill<typename S::Q>(barriers.q, q, shared, a.query, work.q_start, work.batch_head, 0);
        fill<typename S::Q>(barriers.q, q, shared + S::Q_SMALL, a.query, work.q_start, work.batch_head, 1);
        q.advance();
        const auto fill_split = [&](auto& stages, int at, const CUtensorMap& map, auto& numbers, const float* scales,
                                    int first_key) {
            wait_until_empty(stages, kv);
            fill<K>(stages, kv, shared + at, map, first_key, kv_head, 0, numbers,
                    scales + int64_t{kv_head} * a.key_rows + first_key);
            fill<K>(stages, kv, shared + at + S::K_SMALL, map, first_key, kv_head, 1);
        };
        NO_UNROLL
        for (int t = 0; t < work.tiles; ++t) {
            const int first_key = (work.first + t) * S::B_c;
            fill_split(barriers.k, S::K_AT, a.key, barriers.k_scales, a.key_scales, first_key);
            fill_split(barriers.v, S::V_AT, a.value, barriers.v_scales, a.value_scales, first_key);
            kv.advance();
        }
    }
}

// ---------------------------------------------------------------------------------------------- 3. Consumers
//
// [half]: row lane / 4 + 8 half of the warp's 16, as in hopper_rows.cuh.

// d [64][B_c] = Q K^T, the small products first: 64 rows of Q, B_c of K, each followed by its small parts
template <class S>
__device__ __forceinline__ void start_split_scores(float (&d)[S::B_c / 8][4], hopper::KMajor q, hopper::KMajor k) {
    using namespace hopper;
    constexpr int STEPS = S::D / 16;
    wgmma_begin();
    UNROLL
    for (int i = 0; i < 3 * STEPS; ++i) {
        const int column = i % STEPS;
        const KMajor a = q.plus((i / STEPS == 0 ? S::Q_SMALL : 0) + columns_at<typename S::Q>(column));
        const KMajor b = k.plus((i / STEPS == 1 ? S::K_SMALL : 0) + columns_at<typename S::K>(column));
        wgmma<__half>(d, a, b, i > 0);
    }
}

// d [64][D] = P V, the small products first
template <class S>
__device__ __forceinline__ void start_split_output(float (&d)[S::D / 8][4], const unsigned (&big)[S::B_c / 16][4],
                                                   const unsigned (&small)[S::B_c / 16][4], hopper::MnMajor v) {
    using namespace hopper;
    constexpr int STEPS = S::B_c / 16;
    wgmma_begin();
    UNROLL
    for (int i = 0; i < 3 * STEPS; ++i) {
        const int key = i % STEPS;
        const MnMajor b = v.plus((i / STEPS == 1 ? S::K_SMALL : 0) + key * 16 * S::K::ROW_BYTES);
        wgmma<__half>(d, i / STEPS == 0 ? small[key] : big[key], b, i > 0);
    }
}

template <class S>
__device__ __forceinline__ void consume(const SplitProblem& a, Barriers<S>& barriers, unsigned char* shared,
                                        int group) {
    using namespace hopper;
    using Q = typename S::Q;
    using K = typename S::K;
    constexpr int B_c = S::B_c, D = S::D;
    const int group_row = GROUP_ROWS * group, warp_row = group_row + threadIdx.x / 32 % 4 * 16;
    const KMajor q_at = k_major<Q>(shared, group_row), k_at = k_major<K>(shared + S::K_AT);
    const MnMajor v_at = mn_major<K>(shared + S::V_AT);
    Ring<S::Q_STAGES> q;
    Ring<S::STAGES> k, v, v_scale;  // v_scale: the tile whose scales come next; v: the one being multiplied
    const auto release = [](auto& stages, auto& ring) {
        __syncwarp();  // all lanes have read their scales
        release_stage(stages, ring.stage());
        ring.advance();
    };
    float s[1][B_c / 8][4];                                // S [64][B_c], then exponentials, then scaled weights
    unsigned p_big[B_c / 16][4], p_small[B_c / 16][4];     // P [64][B_c]
    float part[1][D / 8][4], o[1][D / 8][4];               // P V of a tile, O [64][D]

    const auto wait_for_work_tile = [&] {
        wait_for(barriers.q, q);
        wait_for(barriers.k, k);
    };
    const auto start_scores = [&] {  // K has already been waited for
        start_split_scores<S>(s[0], q_at.plus(q.stage() * Q::BYTES), k_at.plus(k.stage() * K::BYTES));
        wgmma_commit();
    };
    const auto start_output = [&] {  // V and its scales have already been waited for
        start_split_output<S>(part[0], p_big, p_small, v_at.plus(v.stage() * K::BYTES));
        wgmma_commit();
    };
    // Call after waiting for the last GEMM that reads p.
    const auto split_weights = [&] {
        keep_order(s[0]);
        UNROLL
        for (int i = 0; i < B_c / 16 * 4; ++i) {  // as in accumulators_as_a() of mma.cuh
            const float(&from)[4] = s[0][i / 4 * 2 + i % 4 / 2];
            split(from[i % 2 * 2], from[i % 2 * 2 + 1], p_big[i / 4][i % 4], p_small[i / 4][i % 4]);
        }
    };
    mma::clear(part);

    bool nan = false;  // in this lane's part of any work tile's output: see seen_row.cuh
    TileScheduler<S> scheduler(a);
    WorkTile next;
    if (!scheduler.take(next)) return;
    wait_for_work_tile();
    start_scores();
    for (bool more = true; more;) {
        const WorkTile work = next;
        const int first_row = work.q_start + warp_row, group_start = work.q_start + group_row;
        const int all_see = keys_seen(a, group_start);  // keys before this one need no mask
        const int tiles = min(max(ceil_div(keys_seen(a, group_start + GROUP_ROWS - 1), B_c), 1), work.tiles);
        flash::RowState<1> rows;
        float factor[2];        // for this lane's rows of S
        float ratio[2];         // what a raised row_max multiplies the output by
        float p_scale[2];       // for this lane's rows of P in s, then in p_big and p_small
        float part_scale[2];    // for the P that `part` was computed from
        UNROLL
        for (int half = 0; half < 2; ++half) {
            const int row = min(first_row + mma::d_row(threadIdx.x % 32, 2 * half), a.query_rows - 1);
            factor[half] = a.query_scales[int64_t{work.batch_head} * a.query_rows + row];
        }
        mma::clear(o);
        // Scores -> exponentials -> weights for P V, in s. Releases K. True if the output must be scaled by `ratio`
        // before the next product is added.
        const auto softmax = [&](int t) {
            scale_by_key(s[0], barriers.k_scales[k.stage()]);
            release(barriers.k, k);
            const int key = (work.first + t) * B_c;
            if (key + B_c > all_see) {
                const int row = first_row + mma::d_row(threadIdx.x % 32, 0);
                hide_from(s, {keys_seen(a, row) - key, keys_seen(a, row + 8) - key});
            }
            float top[2];
            row_maxima(top, s[0]);
            bool exceeded = false;
            UNROLL
            for (int half = 0; half < 2; ++half)
                exceeded |= (top[half] *= factor[half]) - rows.row_max[half] > flash::SLACK;
            const bool raise = __any_sync(FULL_WARP, exceeded);
            if (raise) flash::raise_row_max(ratio, rows, top, 1.0f);
            UNROLL
            for (int i = 0; i < B_c / 8 * 4; ++i) {
                float& x = s[0][i / 4][i % 4];
                x = exp2_approx(x * factor[i % 4 / 2] - rows.row_max[i % 4 / 2]);
                rows.sum[i % 4 / 2] += x;
            }
            wait_for(barriers.v, v_scale);
            scale_by_key(s[0], barriers.v_scales[v_scale.stage()]);
            v_scale.advance();
            row_maxima(top, s[0]);
            UNROLL
            for (int half = 0; half < 2; ++half) {
                const PowerOfTwo power(quad_max(top[half]));
                p_scale[half] = power.inverse;
                UNROLL
                for (int i = 0; i < B_c / 8 * 2; ++i) s[0][i / 2][2 * half + i % 2] *= power.factor;
            }
            return raise;
        };
        const auto add_part = [&] {
            keep_order(part[0]);
            UNROLL
            for (int i = 0; i < D / 8 * 4; ++i) o[0][i / 4][i % 4] += part[0][i / 4][i % 4] * part_scale[i % 4 / 2];
        };

        wgmma_wait<0>();
        keep_order(s[0]);
        softmax(0);
        split_weights();
        if (tiles > 1) wait_for(barriers.k, k);
        NO_UNROLL
        for (int t = 1; t < tiles; ++t) {
            part_scale[0] = p_scale[0], part_scale[1] = p_scale[1];
            start_scores();
            start_output();
            wgmma_wait<1>();
            keep_order(s[0]);
            const bool raised = softmax(t);
            // The compiler would sink most exponentials below P V, since it may move arithmetic across wgmma_wait, but
            // not across a wait that depends on the scales. (No scale is negative.)
            const bool never = p_scale[0] < 0 || p_scale[1] < 0;
            if (t + 1 < tiles) mbarrier_wait(barriers.k.full[k.stage()], k.parity() ^ never);
            wgmma_wait<0>();
            add_part();
            release(barriers.v, v);
            if (raised) flash::scale_output(o, ratio);
            split_weights();
        }
        release(barriers.q, q);
        part_scale[0] = p_scale[0], part_scale[1] = p_scale[1];
        start_output();
        // Skips the tiles that only later rows of the CTA see: see flash_attention_wgmma.cuh.
        NO_UNROLL
        for (int t = tiles; t < work.tiles; ++t) {
            wait_for(barriers.k, k);
            release(barriers.k, k);
        }
        more = scheduler.take(next);
        if (more) wait_for_work_tile();
        start_scores();  // after the last work tile, too, on stale data: the compiler needs straight-line code
        wgmma_wait<1>();
        add_part();
        release(barriers.v, v);
        NO_UNROLL
        for (int t = tiles; t < work.tiles; ++t) {
            wait_for(barriers.v, v);
            release(barriers.v, v);
            v_scale.advance();
        }
        const int64_t at = int64_t{work.batch_head} * a.S_q + first_row;
        UNROLL
        for (int half = 0; half < 2; ++half) {
            const int row = mma::d_row(threadIdx.x % 32, 2 * half), column = mma::d_col(threadIdx.x % 32, 0);
            const float sum = quad_sum(rows.sum[half]), inverse = inverse_of(sum);
            if (first_row + row >= a.S_q) continue;
            float* out = static_cast<float*>(a.out) + (at + row) * a.head_dim + column;
            UNROLL
            for (int n = 0; n < D / 8; ++n)
                store_two<true>(out + 8 * n, o[0][n][2 * half] * inverse, o[0][n][2 * half + 1] * inverse,
                                a.head_dim - column - 8 * n);
            if (a.lse != nullptr && threadIdx.x % 4 == 0)
                a.lse[at + row] = sum == 0 ? -INFINITY : (rows.row_max[half] + log2f(sum)) * LN_2;
        }
        nan |= attention::has_nan(o[0]);
    }
    wgmma_wait<0>();
    keep_order(s[0]);
    if (!__any_sync(FULL_WARP, nan)) return;  // infinities that all rows see also produce NaN
    TileScheduler<S> same(a);
    for (WorkTile work; same.take(work);) {
        const int first_row = work.q_start + warp_row;
        const int64_t at = int64_t{work.batch_head} * a.S_q + first_row;
        const int batch = work.batch_head / a.heads, head = work.batch_head % a.heads;
        compute_nan_again(a.sources, static_cast<float*>(a.out) + at * a.head_dim, batch, head, head / a.group,
                          first_row, a.S_q - first_row, a.head_dim, a.head_dim, [&](int row, auto f) {
                              const int end = keys_seen(a, row);
                              for (int key = 0; key < end; ++key) f(key);
                          });
    }
}

// ------------------------------------------------------------------------------------------------- 4. Kernel

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1) flash_3xfp16_wgmma_kernel(const __grid_constant__ SplitProblem a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char bytes[];
    __shared__ Barriers<S> barriers;
    unsigned char* shared = hopper::aligned(bytes);
    if (threadIdx.x == 0) barriers.init();
    __syncthreads();
    const int group = hopper::role_of_warpgroup();
    if (group == hopper::PRODUCER) {
        hopper::fewer_registers<S::Registers::OF_PRODUCER>();
        if (threadIdx.x == 0) produce<S>(a, barriers, shared);
    } else {
        hopper::more_registers<S::Registers::OF_CONSUMER>();
        consume<S>(a, barriers, shared, group);
    }
#endif
}

// ----------------------------------------------------------------------------------------------- 5. Launcher

// Problems with fewer queries or keys go to flash_attention_3xfp16.cu, since splitting costs an extra launch. INT64_MAX
// here would send all of them there.
constexpr int64_t LEAST_ROWS = 256;

static bool takes(const FlashArguments& a) {
    constexpr int64_t MANY = int64_t{1} << 28;
    if (a.mask.kind != MaskKind::NONE || a.key_step != 1 || !in_pieces<float>(a)) return false;
    if (std::min(a.S_q, a.S_k) < LEAST_ROWS) return false;
    if (std::max({a.S_q, a.S_k, a.batch * a.heads * ceil_div(std::max(a.S_q, a.S_k), int64_t{16}),
                  std::abs(a.diagonal)}) > MANY)
        return false;
    return device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
           hopper::is_built(flash_3xfp16_wgmma_kernel<Shape<64>>) && hopper::tensor_map_encoder() != nullptr;
}

template <int D>
static void forward(const FlashArguments& a, char* workspace) {
    using S = Shape<D>;
    const SplitSpace space(a);
    const auto halves = [&](int64_t at) { return reinterpret_cast<__half*>(workspace + at); };
    const auto floats = [&](int64_t at) { return reinterpret_cast<float*>(workspace + at); };
    const SplitArguments split = {
        {{static_cast<const float*>(a.query), a.query_strides, a.heads, a.S_q, space.query_rows, space.query_heads,
          halves(space.query_at), floats(space.query_scales_at), a.scale * LOG2_E, 0x1p14f},
         {static_cast<const float*>(a.key), a.key_strides, a.kv_heads, a.S_k, space.key_rows, space.key_heads,
          halves(space.key_at), floats(space.key_scales_at), 1, 0x1p-14f},
         {static_cast<const float*>(a.value), a.value_strides, a.kv_heads, a.S_k, space.key_rows, space.key_heads,
          halves(space.value_at), floats(space.value_scales_at), 1, 1}},
        a.head_dim};
    const int64_t rows = std::max(space.query_heads * space.query_rows, space.key_heads * space.key_rows);
    split_kernel<D><<<static_cast<unsigned>(3 * rows / SPLIT_ROWS), SPLIT_THREADS, 0, a.stream>>>(split);
    CUDA_CHECK_LAUNCH();

    SplitProblem p = {};
    const auto map = [&](CUtensorMap& to, int64_t at, int64_t heads, int64_t rows, int box) {
        if (!hopper::make_tensor_map<__half>(to, halves(at), {2, heads, rows, D}, {heads * rows * D, rows * D, D}, box))
            throw std::runtime_error("TMA cannot address the workspace of float32 attention");
    };
    map(p.query, space.query_at, space.query_heads, space.query_rows, S::B_r);
    map(p.key, space.key_at, space.key_heads, space.key_rows, S::B_c);
    map(p.value, space.value_at, space.key_heads, space.key_rows, S::B_c);
    p.query_scales = floats(space.query_scales_at);
    p.key_scales = floats(space.key_scales_at);
    p.value_scales = floats(space.value_scales_at);
    p.query_rows = static_cast<int>(space.query_rows), p.key_rows = static_cast<int>(space.key_rows);
    const int blocks = set_work(p, a, S::B_r);
    const auto kernel = flash_3xfp16_wgmma_kernel<S>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
    kernel<<<blocks, S::THREADS, S::BYTES, a.stream>>>(p);
    CUDA_CHECK_LAUNCH();
}

}  // namespace hopper_fp32

bool hopper_takes_fp32(const FlashArguments& a) { return hopper_fp32::takes(a); }

void hopper_forward_fp32(const FlashArguments& a, void* workspace) {
    using hopper_fp32::forward;
    a.head_dim <= 64 ? forward<64>(a, static_cast<char*>(workspace)) : forward<128>(a, static_cast<char*>(workspace));
}
#endif
