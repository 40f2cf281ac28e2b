// flash_backward_wgmma.cu - the gradients of attention, float16 and bfloat16, for Hopper GPUs (sm_90a).
//
//   1. Shapes       Shape, Barriers      what a block has in shared memory
//   2. Work         Problem, Items       which keys and tiles a block has, and in which order
//   3. Producer     produce              asks for tiles
//   4. Adder        add_up               adds dQ up in global memory
//   5. Consumers    consume              compute
//   6. Kernel       flash_backward_wgmma_kernel
//   7. Launcher     hopper_backward_takes, hopper_backward
//
#ifdef CUDA_SIMULATOR
#include "common/kernels/flash/flash.h"

bool hopper_backward_takes(const FlashGradients&, bool) { return false; }  // the simulator has no wgmma
bool hopper_backward(const FlashGradients&, bool) { return false; }
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/check.h"
#include "common/cuda/exp2.cuh"
#include "common/cuda/float_conversion.cuh"
#include "common/cuda/flash_launch.h"
#include "common/cuda/hopper_rows.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/mma.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_backward.cuh"
#include "common/kernels/flash/flash_host.h"
#include "common/kernels/flash/flash_query_sum.cuh"

// ------------------------------------------------------------------------------------------------- 1. Shapes

enum class Order { FOLDED, SNAKE };

template <typename T_, int D_, bool K_IN_REGISTERS_, bool V_IN_REGISTERS_, int DS_SLOTS_, Order ORDER_>
struct Shape {
    using T = T_;
    static constexpr int D = D_, GROUPS = 2, STEPS = 128 / D, B_r = 64 * STEPS, B_c = hopper::GROUP_ROWS * GROUPS;
    static constexpr int SLOTS = 2, DS_SLOTS = DS_SLOTS_;
    static constexpr bool K_IN_REGISTERS = K_IN_REGISTERS_, V_IN_REGISTERS = V_IN_REGISTERS_;
    static constexpr Order ORDER = ORDER_;
    static constexpr int THREADS = hopper::GROUP_THREADS * (1 + GROUPS), CONSUMER_WARPS = 4 * GROUPS;
    using Registers = hopper::RegisterShares<GROUPS>;
    using Q = hopper::Tile<B_r, D>;     // and dO
    using K = hopper::Tile<B_c, D>;     // and V
    using dS = hopper::Tile<B_c, B_r>;  // dS^T
    static constexpr int PIECE = 64 * 64;  // of dQ, floats
    static_assert(B_r * D == GROUPS * PIECE);
    static constexpr int K_AT = 0, V_AT = K_AT + K::BYTES, Q_AT = V_AT + K::BYTES, DO_AT = Q_AT + SLOTS * Q::BYTES,
                         DS_AT = DO_AT + SLOTS * Q::BYTES, DQ_AT = DS_AT + DS_SLOTS * dS::BYTES,
                         BYTES = DQ_AT + GROUPS * PIECE * 4 + hopper::ALIGNMENT;
    static_assert(BYTES + 4096 <= hopper::MAX_SHARED);
};

template <class S>
struct Barriers {
    hopper::Slots<1> k, v;
    hopper::Slots<S::SLOTS> q, grad_out;
    hopper::Slots<S::DS_SLOTS> ds;
    hopper::Slots<1> dq[S::GROUPS];

    __device__ void init() {
        k.init(S::CONSUMER_WARPS), v.init(S::CONSUMER_WARPS), q.init(S::CONSUMER_WARPS);
        grad_out.init(S::CONSUMER_WARPS);
        ds.init(S::CONSUMER_WARPS, S::CONSUMER_WARPS);
        for (auto& piece : dq) piece.init(1, 4);
        mbarrier_init_done();
    }
};

template <class S>
struct RowNumbers {
    alignas(16) float lse[S::SLOTS][S::B_r], delta[S::SLOTS][S::B_r];
};

// --------------------------------------------------------------------------------------------------- 2. Work

struct Problem {
    CUtensorMap query, key, value, grad_out;
    const float *lse, *delta;  // [batch, heads, rows]
    float* grad_query_sum;     // [batch, heads, rows / 64, D / 64, 8, 128, 4]
    void *grad_key, *grad_value;
    int* turns;                // [batch, heads, rows / 64, D / 64] or nullptr
    float factor, scale;
    int S_q, S_k, rows, head_dim, kv_heads, group;
    bool causal;
    int diagonal;
    int batch_kv, k_blocks;
};

// B_c keys of a K/V head, and the tiles of rows that see one of them, in each of the `group` query heads
struct Item {
    int batch_kv, k_block, k_start, first, tiles;
};

// The tiles of an item: those of the first of its query heads, then the second's, ...
struct Walk {
    int head = 0, number, left;
    __device__ __forceinline__ Walk(const Item& item, int group) : number(item.first), left(item.tiles * group) {}
    __device__ __forceinline__ bool advance(const Item& item) {
        if (++number == item.first + item.tiles) number = item.first, ++head;
        return --left > 0;
    }
};

template <class S>
class Items {
  public:
    __device__ __forceinline__ explicit Items(const Problem& problem) : a(problem) {}

    __device__ __forceinline__ bool take(Item& item) {
        int k_block;
        const int last = a.k_blocks - 1;
        if (!a.causal) {
            const int number = round * gridDim.x + blockIdx.x;
            item.batch_kv = number / a.k_blocks, k_block = number % a.k_blocks;
        } else if (S::ORDER == Order::FOLDED && a.turns == nullptr) {
            const int pairs = (a.k_blocks + 1) / 2, pair = round / 2 * gridDim.x + blockIdx.x;
            const int i = pair % pairs;
            item.batch_kv = pair / pairs, k_block = round % 2 == 0 ? i : last - i;
            if (round % 2 == 0 && i == last - i) ++round;
        } else {
            const int place = round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
            const int number = round * gridDim.x + place;
            item.batch_kv = number % a.batch_kv, k_block = number / a.batch_kv;
        }
        ++round;
        if (item.batch_kv >= a.batch_kv || k_block > last) return false;
        item.k_block = k_block, item.k_start = k_block * S::B_c;
        const int end = ceil_div(a.S_q, S::B_r), sees = a.causal ? max(item.k_start - a.diagonal, 0) / S::B_r : 0;
        item.first = min(sees, end - 1), item.tiles = end - item.first;
        return true;
    }

  private:
    const Problem& a;
    int round = 0;
};

// ----------------------------------------------------------------------------------------------- 3. Producer

template <class S>
__device__ __forceinline__ void produce(const Problem& a, Barriers<S>& barriers, RowNumbers<S>& numbers,
                                        unsigned char* shared) {
    using namespace hopper;
    Ring<1> kv;
    Ring<S::SLOTS> ring;
    Items<S> items(a);
    for (Item item; items.take(item);) {
        const int batch = item.batch_kv / a.kv_heads, kv_head = item.batch_kv % a.kv_heads;
        Walk tile(item, a.group);
        const auto fill_q = [&] {
            wait_until_empty(barriers.q, ring);
            fill<typename S::Q>(barriers.q, ring, shared + S::Q_AT, a.query, tile.number * S::B_r,
                                kv_head * a.group + tile.head, batch, numbers.lse,
                                a.lse + (item.batch_kv * a.group + tile.head) * a.rows + tile.number * S::B_r);
        };
        const auto fill_grad_out = [&] {
            wait_until_empty(barriers.grad_out, ring);
            fill<typename S::Q>(barriers.grad_out, ring, shared + S::DO_AT, a.grad_out, tile.number * S::B_r,
                                kv_head * a.group + tile.head, batch, numbers.delta,
                                a.delta + (item.batch_kv * a.group + tile.head) * a.rows + tile.number * S::B_r);
            ring.advance();
        };
        wait_until_empty(barriers.k, kv);
        fill<typename S::K>(barriers.k, kv, shared + S::K_AT, a.key, item.k_start, kv_head, batch);
        fill_q();
        wait_until_empty(barriers.v, kv);
        fill<typename S::K>(barriers.v, kv, shared + S::V_AT, a.value, item.k_start, kv_head, batch);
        fill_grad_out();
        kv.advance();
#pragma unroll 1
        while (tile.advance(item)) fill_q(), fill_grad_out();
    }
}

// -------------------------------------------------------------------------------------------------- 4. Adder

__device__ __forceinline__ void wait_for_turn(const int* turn, int mine) {
    int now;
    do asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
    while (now != mine);
    asm volatile("fence.proxy.async.global;" ::: "memory");
}
__device__ __forceinline__ void give_turn(int* turn, int next) {
    asm volatile("fence.proxy.async.global;\nst.release.gpu.global.b32 [%0], %1;" ::"l"(turn), "r"(next) : "memory");
}

template <class S>
__device__ __forceinline__ void add_up(const Problem& a, Barriers<S>& barriers, const unsigned char* shared, int group) {
    using namespace hopper;
    const unsigned char* piece = shared + S::DQ_AT + group * S::PIECE * 4;
    Ring<1> ring;
    Items<S> items(a);
    for (Item item; items.take(item);) {
        Walk tile(item, a.group);
#pragma unroll 1
        do {
            const int number =
                ((item.batch_kv * a.group + tile.head) * (a.rows / S::B_r) + tile.number) * S::GROUPS + group;
            wait_for(barriers.dq[group], ring);
            if (a.turns != nullptr) wait_for_turn(a.turns + number, item.k_block);
            bulk_add(a.grad_query_sum + int64_t{number} * S::PIECE, piece, S::PIECE * 4);
            if (a.turns != nullptr) {
                bulk_done();
                give_turn(a.turns + number, item.k_block + 1);
            } else {
                bulk_read_done();
            }
            mbarrier_arrive(barriers.dq[group].empty[0]);
            ring.advance();
        } while (tile.advance(item));
    }
    bulk_done();
}

// ---------------------------------------------------------------------------------------------- 5. Consumers

template <class S>
__device__ __forceinline__ void consume(const Problem& a, Barriers<S>& barriers, const RowNumbers<S>& numbers,
                                        unsigned char* shared, int group) {
    using namespace hopper;
    using T = typename S::T;
    using Q = typename S::Q;
    using K = typename S::K;
    using dS = typename S::dS;
    constexpr int B_r = S::B_r, D = S::D, STEPS = S::STEPS;
    const int lane = threadIdx.x % 32, warp_key = GROUP_ROWS * group + threadIdx.x / 32 % 4 * 16;
    const int column = mma_d_col(lane, 0);
    const KMajor k_at = k_major<K>(shared + S::K_AT, GROUP_ROWS * group), v_at = k_major<K>(shared + S::V_AT, GROUP_ROWS * group);
    const KMajor q_at = k_major<Q>(shared + S::Q_AT), do_at = k_major<Q>(shared + S::DO_AT);
    const MnMajor q_rows_at = mn_major<Q>(shared + S::Q_AT), do_rows_at = mn_major<Q>(shared + S::DO_AT);
    // A piece of dQ: 64 rows of 64 columns. B_r = 128: the group's rows; 64: the group's columns.
    const MnMajor ds_at = mn_major<dS>(shared + S::DS_AT + (STEPS == 2 ? group * dS::BOX_BYTES : 0));
    const MnMajor k_columns_at = mn_major<K>(shared + S::K_AT + (STEPS == 2 ? 0 : group * K::BOX_BYTES));
    float4* dq_to = reinterpret_cast<float4*>(shared + S::DQ_AT + group * S::PIECE * 4) + threadIdx.x % GROUP_THREADS;

    Ring<1> kv, dq_ring;
    Ring<S::SLOTS> ring, next;
    Ring<S::DS_SLOTS> ds_ring;
    unsigned k_rows[S::K_IN_REGISTERS ? D / 16 : 1][4], v_rows[S::V_IN_REGISTERS ? D / 16 : 1][4];
    float dk[D / 8][4], dv[D / 8][4];      // [64][D]
    float s[8][4], dp[8][4];   // S^T, dP^T [64][64]
    unsigned p[4][4], ds[4][4];
    float dq[8][4];

    const auto start_scores = [&](const Ring<S::SLOTS>& at, int half) {
        if (half == 0) wait_for(barriers.q, at);
        const KMajor query = q_at.plus(at.slot() * Q::BYTES + half * 64 * Q::ROW_BYTES);
        if constexpr (S::K_IN_REGISTERS)
            start_rows_by_rows<T, Q>(s, k_rows, query);
        else
            start_rows_by_rows<T, K, Q>(s, k_at, query);
        wgmma_commit();
    };
    const auto start_dp = [&](const Ring<S::SLOTS>& at, int half) {
        if (half == 0) wait_for(barriers.grad_out, at);
        const KMajor grad_out = do_at.plus(at.slot() * Q::BYTES + half * 64 * Q::ROW_BYTES);
        if constexpr (S::V_IN_REGISTERS)
            start_rows_by_rows<T, Q>(dp, v_rows, grad_out);
        else
            start_rows_by_rows<T, K, Q>(dp, v_at, grad_out);
        wgmma_commit();
    };

    Items<S> items(a);
    for (Item item; items.take(item);) {
        const int first_key = item.k_start + warp_key, group_key = item.k_start + GROUP_ROWS * group;
        const bool ragged = group_key + GROUP_ROWS > a.S_k;
        const int all_see = a.causal ? group_key + GROUP_ROWS - 1 - a.diagonal : 0;  // rows from this one on see all keys
        const auto weigh = [&](int tile, int slot, int half) {
            const int row = tile * B_r + half * 64;
            if (ragged || row < all_see) {
                int begin[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int key = first_key + mma_d_row(lane, 2 * i);
                    begin[i] = key >= a.S_k ? 64 : a.causal ? key - a.diagonal - row : 0;
                }
                hide_before(s, begin);
            }
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                const float2 lse = *reinterpret_cast<const float2*>(&numbers.lse[slot][64 * half + 8 * n + column]);
#pragma unroll
                for (int e = 0; e < 4; ++e) s[n][e] = exp2_approx(s[n][e] * a.factor - (e % 2 ? lse.y : lse.x));
            }
        };
        // No power has a sign; see below.
        const auto round_powers = [&] {
            unsigned all = 0;
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                accumulators_as_a<T>(p[k], s[2 * k], s[2 * k + 1]);
                all |= p[k][0] | p[k][1] | p[k][2] | p[k][3];
            }
            return (all & 0x80008000u) != 0;
        };

        int tile = item.first;
        wait_for(barriers.k, kv);
        if constexpr (S::K_IN_REGISTERS) load_rows<K>(k_rows, shared + S::K_AT, warp_key);
        start_scores(next, 0);
        wait_for(barriers.v, kv);
        if constexpr (S::V_IN_REGISTERS) {
            load_rows<K>(v_rows, shared + S::V_AT, warp_key);
            __syncwarp();
            give_back(barriers.v, 0);
        }
        wgmma_wait<0>();
        keep_order(s);
        weigh(tile, next.slot(), 0);
        round_powers();
        start_dp(next, 0);
        next.advance();

        const auto step = [&](auto half_, auto is_last, bool add) {
            constexpr int half = decltype(half_)::value, next_half = (half + 1) % STEPS;
            constexpr bool TILE_DONE = next_half == 0, LAST = TILE_DONE && decltype(is_last)::value;
            const int slot = ring.slot();
            const auto& at = TILE_DONE ? next : ring;
            const unsigned rows_at = slot * Q::BYTES + half * 64 * Q::ROW_BYTES;
            wgmma_wait<0>();
            keep_order(dp);
            if constexpr (LAST && !S::V_IN_REGISTERS) give_back(barriers.v, 0);
            if constexpr (!LAST) start_scores(at, next_half);
            start_weights_by_rows<T, Q>(dv, p, do_rows_at.plus(rows_at), add);
            wgmma_commit();
            if (half == 0) wait_until_empty(barriers.ds, ds_ring);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {  // as in accumulators_as_a
                    const int n = 2 * k + i / 2, j = i % 2 * 2;
                    const float2 delta =
                        *reinterpret_cast<const float2*>(&numbers.delta[slot][64 * half + 8 * n + column]);
                    const float2 w = unpack<T>(p[k][i]);
                    ds[k][i] = pack<T>(w.x * (dp[n][j] - delta.x), w.y * (dp[n][j + 1] - delta.y));
                }
                store_rows<dS>(shared + S::DS_AT + ds_ring.slot() * dS::BYTES, warp_key, 4 * half + k, ds[k]);
            }
            if (TILE_DONE) hand_over(barriers.ds, ds_ring.slot());
            start_weights_by_rows<T, Q>(dk, ds, q_rows_at.plus(rows_at), add);
            wgmma_commit();
            bool never = false;
            if constexpr (!LAST) {
                wgmma_wait<2>();
                keep_order(s);
                if (TILE_DONE && ++tile == item.first + item.tiles) tile = item.first;  // the next head
                weigh(tile, at.slot(), next_half);
                wgmma_wait<1>();
                if (TILE_DONE) give_back(barriers.grad_out, slot);
                never = round_powers();
            }
            if constexpr (TILE_DONE) {
                // The compiler would put the powers off: it may move arithmetic across wgmma_wait, but not across a
                // wait that they decide about. (No power has a sign.)
                mbarrier_wait(barriers.ds.full[ds_ring.slot()], ds_ring.parity() ^ never);
                start_columns_by_rows<T, S::B_c>(dq, ds_at.plus(ds_ring.slot() * dS::BYTES), k_columns_at);
                wgmma_commit();
                wgmma_wait<1>();
                give_back(barriers.q, slot);
                if constexpr (LAST) {
                    give_back(barriers.grad_out, slot);
                    wgmma_wait<0>();
                } else {
                    start_dp(next, 0);
                    next.advance();
                    wgmma_wait<1>();
                }
                keep_order(dq);
                give_back(barriers.ds, ds_ring.slot());
                ds_ring.advance();
                if constexpr (LAST) give_back(barriers.k, 0);
                wait_until_empty(barriers.dq[group], dq_ring);
#pragma unroll
                for (int n = 0; n < 8; ++n)
                    dq_to[n * GROUP_THREADS] = make_float4(dq[n][0], dq[n][1], dq[n][2], dq[n][3]);
                hand_over(barriers.dq[group], 0);
                dq_ring.advance();
                ring.advance();
            } else {
                start_dp(ring, next_half);
            }
        };
        const auto steps = [&](auto is_last, bool add) {
            step(std::integral_constant<int, 0>(), is_last, add);
            if constexpr (STEPS == 2) step(std::integral_constant<int, 1>(), is_last, true);
        };
        const int tiles = item.tiles * a.group;
#pragma unroll 1
        for (int t = 0; t < tiles - 1; ++t) steps(std::false_type(), t > 0);
        steps(std::true_type(), tiles > 1);
        kv.advance();
        keep_order(dk);
        keep_order(dv);

        const int64_t at = (int64_t{item.batch_kv} * a.S_k + first_key) * a.head_dim;
        write_rows<T>(static_cast<T*>(a.grad_value) + at, dv, {1, 1}, a.S_k - first_key, a.head_dim);
        write_rows<T>(static_cast<T*>(a.grad_key) + at, dk, {a.scale, a.scale}, a.S_k - first_key, a.head_dim);
    }
}

// ------------------------------------------------------------------------------------------------- 6. Kernel

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1) flash_backward_wgmma_kernel(const __grid_constant__ Problem a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char bytes[];
    __shared__ Barriers<S> barriers;
    __shared__ RowNumbers<S> numbers;
    unsigned char* shared = hopper::aligned(bytes);
    if (threadIdx.x == 0) barriers.init();
    __syncthreads();
    const int group = hopper::role_of_warpgroup();
    if (group == hopper::PRODUCER) {
        fewer_registers<S::Registers::OF_PRODUCER>();
        if (threadIdx.x == 0) produce<S>(a, barriers, numbers, shared);
        if (threadIdx.x % 32 == 0 && threadIdx.x > 0 && threadIdx.x <= 32 * S::GROUPS)
            add_up<S>(a, barriers, shared, static_cast<int>(threadIdx.x) / 32 - 1);
    } else {
        more_registers<S::Registers::OF_CONSUMER>();
        consume<S>(a, barriers, numbers, shared, group);
    }
#endif
}

// ------------------------------------------------------------------------------------------- Before and after

constexpr int ROW_UNIT = 128;
inline int64_t padded_rows(const FlashArguments& a) { return ceil_div(a.S_q, int64_t{ROW_UNIT}) * ROW_UNIT; }

template <typename T>
__global__ void __launch_bounds__(256) rows_kernel(const FlashGradients g, float* lse_to, float* delta_to, int64_t rows, int lanes) {
    constexpr int PIECE = 8;
    const FlashArguments& f = g.forward;
    const int64_t number = (blockIdx.x * int64_t{256} + threadIdx.x) / lanes;
    const int col = threadIdx.x % lanes * PIECE;
    const int64_t q = number % rows, head = number / rows % f.heads, batch = number / rows / f.heads;
    const bool exists = q < f.S_q && number < f.batch * f.heads * rows;
    float sum = 0;
    if (exists && col < f.head_dim) {
        const RowStrides& strides = g.grad_out_strides;
        const T* x = static_cast<const T*>(f.out) + ((batch * f.heads + head) * f.S_q + q) * f.head_dim + col;
        const T* y = static_cast<const T*>(g.grad_out) + batch * strides.batch + head * strides.head + q * strides.row + col;
        const uint4 x_piece = *reinterpret_cast<const uint4*>(x), y_piece = *reinterpret_cast<const uint4*>(y);
        const T *xs = reinterpret_cast<const T*>(&x_piece), *ys = reinterpret_cast<const T*>(&y_piece);
#pragma unroll
        for (int i = 0; i < PIECE; ++i) sum += static_cast<float>(xs[i]) * static_cast<float>(ys[i]);
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, distance);
    if (number < f.batch * f.heads * rows && col == 0) {
        const float lse = exists ? f.lse[(batch * f.heads + head) * f.S_q + q] : -INFINITY;
        lse_to[number] = lse == -INFINITY ? INFINITY : lse * LOG2_E;
        delta_to[number] = sum;
    }
}

template <typename T, int D>
__global__ void __launch_bounds__(256)
    convert_kernel(T* grad_query, const float* sum, int64_t heads, int64_t S_q, int64_t rows, int head_dim, float scale) {
    const int64_t index = blockIdx.x * int64_t{256} + threadIdx.x;  // 8 rows (and those 8 further on) of 8 columns
    const int r = index % 8, n = index / 8 % (D / 8);
    const int64_t block = index / 8 / (D / 8), head = block / (rows / 16), row_block = block % (rows / 16);
    if (head >= heads || 8 * n >= head_dim) return;
    const int64_t piece = (head * (rows / 64) + row_block / 4) * (D / 64) + n / 8;
    const float* tile = sum + piece * 4096 + n % 8 * 512 + row_block % 4 * 128;
    float d[4][4];
    QuerySum<D>::read(d, tile, r);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int64_t row = row_block * 16 + r + 8 * half;
        if (row >= S_q) continue;
        unsigned pairs[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) pairs[j] = pack<T>(d[j][2 * half] * scale, d[j][2 * half + 1] * scale);
        *reinterpret_cast<uint4*>(grad_query + (head * S_q + row) * head_dim + 8 * n) =
            make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
}

// ----------------------------------------------------------------------------------------------- 7. Launcher

template <class S>
static bool launch(const FlashGradients& g, bool dry, float* row_space, int* turns) {
    using T = typename S::T;
    const FlashArguments& a = g.forward;
    Problem p = {};
    const RowShape rows = {a.batch, a.heads, a.S_q, a.head_dim}, keys = {a.batch, a.kv_heads, a.S_k, a.head_dim};
    if (!hopper::is_built(flash_backward_wgmma_kernel<S>) ||
        !make_tensor_map<T>(p.query, a.query, rows, a.query_strides, S::B_r) ||
        !make_tensor_map<T>(p.grad_out, g.grad_out, rows, g.grad_out_strides, S::B_r) ||
        !make_tensor_map<T>(p.key, a.key, keys, a.key_strides, S::B_c) ||
        !make_tensor_map<T>(p.value, a.value, keys, a.value_strides, S::B_c))
        return false;
    if (dry) return true;
    const int64_t padded = padded_rows(a), heads = a.batch * a.heads;
    p.lse = row_space, p.delta = row_space + heads * padded;
    p.grad_query_sum = g.grad_query_sum, p.turns = turns;
    p.grad_key = g.grad_key, p.grad_value = g.grad_value;
    p.factor = a.scale * LOG2_E, p.scale = a.scale;
    p.S_q = static_cast<int>(a.S_q), p.S_k = static_cast<int>(a.S_k), p.head_dim = a.head_dim;
    p.rows = static_cast<int>(padded);
    p.kv_heads = static_cast<int>(a.kv_heads), p.group = static_cast<int>(a.heads / a.kv_heads);
    p.causal = a.causal, p.diagonal = static_cast<int>(a.diagonal);
    p.batch_kv = static_cast<int>(a.batch * a.kv_heads), p.k_blocks = static_cast<int>(ceil_div(a.S_k, int64_t{S::B_c}));

    int lanes = 1;
    while (lanes * 8 < a.head_dim) lanes *= 2;
    rows_kernel<T><<<grid_blocks(ceil_div(heads * padded * lanes, int64_t{256}), "query"), 256, 0, a.stream>>>(
        g, row_space, row_space + heads * padded, padded, lanes);
    CUDA_CHECK_LAUNCH();
    CUDA_CHECK(cudaMemsetAsync(g.grad_query_sum, 0, heads * padded * S::D * sizeof(float), a.stream));
    if (turns) CUDA_CHECK(cudaMemsetAsync(turns, 0, heads * padded / 64 * (S::D / 64) * sizeof(int), a.stream));
    const auto kernel = flash_backward_wgmma_kernel<S>;
    const int blocks = std::min(p.batch_kv * p.k_blocks, device_attribute(cudaDevAttrMultiProcessorCount));
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
    kernel<<<blocks, S::THREADS, S::BYTES, a.stream>>>(p);
    CUDA_CHECK_LAUNCH();
    convert_kernel<T, S::D><<<grid_blocks(ceil_div(heads * padded * S::D / 16, int64_t{256}), "query"), 256, 0, a.stream>>>(
        static_cast<T*>(g.grad_query), g.grad_query_sum, heads, a.S_q, padded, a.head_dim, a.scale);
    CUDA_CHECK_LAUNCH();
    return true;
}
#ifndef A_K
#define A_K true
#endif
#ifndef A_V
#define A_V true
#endif
#ifndef SLOTS_A
#define SLOTS_A 2
#endif
#ifndef SLOTS_B
#define SLOTS_B 2
#endif
#ifndef ITEM_ORDER
#define ITEM_ORDER Order::SNAKE
#endif
#define VARIANT_D64 A_K, A_V, SLOTS_A, ITEM_ORDER
#define VARIANT_D128 false, false, SLOTS_B, ITEM_ORDER
template <typename T>
bool hopper_backward_test(const FlashGradients& g, float* row_space, int* turns) {
    if (g.forward.head_dim <= 64) return launch<Shape<T, 64, VARIANT_D64>>(g, false, row_space, turns);
    return launch<Shape<T, 128, VARIANT_D128>>(g, false, row_space, turns);
}
template bool hopper_backward_test<__nv_bfloat16>(const FlashGradients& g, float* row_space, int* turns);
#endif
