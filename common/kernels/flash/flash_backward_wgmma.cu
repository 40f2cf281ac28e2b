// flash_backward_wgmma.cu - the gradients of attention, float16 and bfloat16, for Hopper GPUs (sm_90a).
//
//   1. Consumers    consume                     compute
//   2. Kernel       flash_backward_wgmma_kernel
//   3. Launcher     hopper_backward_takes, hopper_backward
//
//   hopper_backward_work.cuh      which keys a block has, which rows see them; what it has in shared memory
//   hopper_backward_copies.cuh    producer and adders: the roles that ask the copy engine for everything
//   flash_backward.cuh            launch_row_numbers: delta and lse, a kernel that runs before
//   flash_query_sum.cuh           launch_convert_sum: dQ in 16 bits, a kernel that runs after
//   common/cuda/                  hopper_tiles.cuh: tiles, products, slots, roles; hopper_rows.cuh: gradients -> global
//                                 memory; below them wgmma.cuh, tma.cuh, mbarrier.cuh
//
// The algorithm is that of flash_backward_mma.cu, which takes what this kernel does not; who does what comes from
// FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608). A block has 128 keys, each of two groups of four warps 64 of
// them, with their rows of dK and dV in registers to the end. They walk over the rows that see the keys:
//
//   S^T = K Q^T             P^T = 2^(factor S^T - lse)              dV += P^T dO
//   dP^T = V dO^T           dS^T = P^T * (dP^T - delta)             dK += dS^T Q               dQ += dS K
//
//   1. Everything is transposed, so that P^T and dS^T are left in registers just where the products with dO and Q want
//      their first operand. Only dS^T is needed a second time: dQ = dS K goes over the keys of both groups, so that
//      both write their part to shared memory, and each computes a half of dQ: 64 x 64 numbers, a piece.
//   2. A step is 64 rows. With D = 128 it is a tile; with D = 64 a tile is two steps, and dQ is computed after the
//      second, the rows of a step by one group, so that a piece is 64 x 64 there, too.
//   3. The next step's S^T is started before this one's dS^T is computed, and its powers are computed while dK is being
//      worked on: the tensor cores have something to do at all times, also across the end of an item.
//   4. dQ is added up in global memory, in float32, since every block of keys has a part of it. A group leaves its
//      piece in shared memory; a thread of a warp that does nothing else has the copy engine add it.
//   5. Slots as in the forward kernel. An item travels with its K: the producer draws it from a counter, and
//      everybody reads it where it stands beside the slot.
//
//   time ->       tensor cores  S1 dV0 | dK0 |  dQ0  dP1 | S2 dV1 | dK1 |  dQ1  dP2 |     of one group; the other one
//                 warps          dS0   |  powers 1  | dQ0 -> |  dS1  |  powers 2 | ...    fills the gaps
//
// Why sm_90a, and what becomes of other targets and the simulator: flash_attention_wgmma.cu. What was measured, and
// what was tried: README.md.
#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
#include "common/kernels/flash/flash.h"

bool hopper_backward_takes(const FlashGradients&, bool) { return false; }  // not built for it
bool hopper_backward(const FlashGradients&, bool) { return false; }
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "common/cuda/check.h"
#include "common/cuda/exp2.cuh"
#include "common/cuda/flash_launch.h"
#include "common/cuda/hopper_rows.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_backward.cuh"
#include "common/kernels/flash/flash_host.h"
#include "common/kernels/flash/flash_query_sum.cuh"
#include "common/kernels/flash/flash_seen_gradients.cuh"
#include "common/kernels/flash/hopper_backward_copies.cuh"
#include "common/kernels/flash/hopper_backward_work.cuh"

// ---------------------------------------------------------------------------------------------------- 1. Consumers

template <class S>
__device__ __forceinline__ void consume(const Problem& a, Barriers<S>& barriers, const Beside<S>& beside,
                                        unsigned char* shared, int group) {
    using namespace hopper;
    using T = typename S::T;
    using Q = typename S::Q;
    using K = typename S::K;
    using dS = typename S::dS;
    constexpr int D = S::D, STEP = S::STEP, STEPS = S::STEPS;
    constexpr bool KV_IN_REGISTERS = S::KV_IN_REGISTERS;
    const int lane = threadIdx.x % 32, group_key = GROUP_ROWS * group, column = mma::d_col(lane, 0);
    const int warp_key = group_key + threadIdx.x / 32 % 4 * 16;
    const KMajor k_at = k_major<K>(shared, group_key), v_at = k_major<K>(shared + S::V_AT, group_key);
    const KMajor q_at = k_major<Q>(shared + S::Q_AT), do_at = k_major<Q>(shared + S::DO_AT);
    const MnMajor q_rows_at = mn_major<Q>(shared + S::Q_AT), do_rows_at = mn_major<Q>(shared + S::DO_AT);
    // The group's piece of dQ: its columns, or, with two steps to a tile, the rows of one step.
    const MnMajor ds_at = mn_major<dS>(shared + S::DS_AT);
    const MnMajor k_columns_at = mn_major<K>(shared + (STEPS == 1 ? group * K::BOX_BYTES : 0));
    float4* piece = reinterpret_cast<float4*>(shared + S::DQ_AT + group * S::PIECE_BYTES) + threadIdx.x % GROUP_THREADS;

    // next_...: of the step whose scores are started ahead
    Ring<S::K_SLOTS> k, next_k;
    Ring<S::Q_SLOTS> q, next_q;
    Ring<S::DO_SLOTS> grad_out, next_do;
    Ring<S::DS_SLOTS> ds_ring, my_ds;  // my_ds: of the step that dQ is computed from
    Ring<1> v, dq_ring;
    unsigned k_rows[KV_IN_REGISTERS ? D / 16 : 1][4], v_rows[KV_IN_REGISTERS ? D / 16 : 1][4];  // [64][D]
    float dk[D / 8][4], dv[D / 8][4];                                                          // [64][D]
    float s[STEP / 8][4], dp[STEP / 8][4];        // S^T, then its powers; dP^T [64][STEP]
    unsigned p[STEP / 16][4], ds[STEP / 16][4];   // P^T, dS^T [64][STEP]
    float(&dq)[8][4] = s;                         // [64][64]; the powers have been rounded by then

    wait_for(barriers.k, next_k);
    Item next = beside.items[0];
    Walk ahead(next, a.group);
    bool more = true, piece_written = false;

    // A slot with numbers that the lanes have read themselves: all of them are done.
    const auto release = [](auto& slots, int slot) {
        __syncwarp();
        give_back(slots, slot);
    };
    const auto load_k = [&] {
        if constexpr (KV_IN_REGISTERS) load_rows<K>(k_rows, shared + next_k.slot() * K::BYTES, warp_key);
    };
    const auto wait_for_v = [&] {
        wait_for(barriers.v, v);
        v.advance();
        if constexpr (KV_IN_REGISTERS) {
            load_rows<K>(v_rows, shared + S::V_AT, warp_key);
            release(barriers.v, 0);
        }
    };
    const auto start_scores = [&](int slot, int step) {
        const KMajor rows = q_at.plus(slot * Q::BYTES + step * STEP * Q::ROW_BYTES);
        if constexpr (KV_IN_REGISTERS)
            start_rows_by_rows<T, Q>(s, k_rows, rows);
        else
            start_rows_by_rows<T, K, Q>(s, k_at.plus(next_k.slot() * K::BYTES), rows);
        wgmma_commit();
    };
    const auto start_dp = [&](int slot, int step) {
        const KMajor rows = do_at.plus(slot * Q::BYTES + step * STEP * Q::ROW_BYTES);
        if constexpr (KV_IN_REGISTERS)
            start_rows_by_rows<T, Q>(dp, v_rows, rows);
        else
            start_rows_by_rows<T, K, Q>(dp, v_at, rows);
        wgmma_commit();
    };
    // Scores of a step of the tile `ahead` -> powers, where they are
    const auto weigh = [&](int slot, int step) {
        const int row = ahead.tile * S::B_r + step * STEP, end = next.k_start + group_key + GROUP_ROWS;
        if (end > a.S_k || (a.causal && end - 1 > row + a.diagonal)) {
            int begin[2];
            UNROLL
            for (int i = 0; i < 2; ++i) {
                const int key = next.k_start + warp_key + mma::d_row(lane, 2 * i);
                begin[i] = key >= a.S_k ? STEP : a.causal ? key - a.diagonal - row : 0;
            }
            hide_before(s, begin);
        }
        UNROLL
        for (int n = 0; n < STEP / 8; ++n) {
            const float2 lse = *reinterpret_cast<const float2*>(&beside.lse[slot][step * STEP + 8 * n + column]);
            UNROLL
            for (int e = 0; e < 4; ++e) s[n][e] = exp2_approx(s[n][e] * a.factor - (e % 2 ? lse.y : lse.x));
        }
    };
    // True if a power has a sign. None has, see do_step.
    const auto round_powers = [&] {
        unsigned all = 0;
        UNROLL
        for (int i = 0; i < STEP / 16; ++i) {
            mma::accumulators_as_a<T>(p[i], s[2 * i], s[2 * i + 1]);
            all |= p[i][0] | p[i][1] | p[i][2] | p[i][3];
        }
        return (all & 0x80008000u) != 0;
    };
    // dS = P * (dP - delta), rounded, and to shared memory
    const auto grade = [&](int slot, int step) {
        UNROLL
        for (int i = 0; i < STEP / 16; ++i) {
            UNROLL
            for (int r = 0; r < 4; ++r) {  // as in accumulators_as_a
                const int n = 2 * i + r / 2, e = r % 2 * 2;
                const float2 w = mma::unpack<T>(p[i][r]);
                const float2 d = *reinterpret_cast<const float2*>(&beside.delta[slot][step * STEP + 8 * n + column]);
                ds[i][r] = mma::pack<T>(w.x * (dp[n][e] - d.x), w.y * (dp[n][e + 1] - d.y));
            }
            store_rows<dS>(shared + S::DS_AT + ds_ring.slot() * dS::BYTES, warp_key, i, ds[i]);
        }
    };

    // A step whose powers are there, whose dP is under way. first, last: tile of its item
    const auto do_step = [&](auto number, bool first, bool last) {
        constexpr int step = decltype(number)::value, next_step = (step + 1) % STEPS;
        constexpr bool ENDS_TILE = next_step == 0;
        const int rows_at = step * STEP * Q::ROW_BYTES, next_slot = ENDS_TILE ? next_q.slot() : q.slot();
        wgmma_wait<0>();
        keep_order(dp);
        if constexpr (ENDS_TILE) {
            if (last) {
                if constexpr (!KV_IN_REGISTERS) give_back(barriers.v, 0);
                next_k.advance();
                wait_for(barriers.k, next_k);
                next = beside.items[next_k.slot()];
                ahead = Walk(next, a.group);
                more = next.tiles > 0;
                if (more) load_k();
            } else {
                ahead.advance(next);
            }
            if (more) wait_for(barriers.q, next_q);
        }
        // The compiler follows what is under way through straight code only: after the last item this is started all
        // the same, with what is left in the slots, and nobody looks at it.
        start_scores(next_slot, next_step);
        start_weights_by_rows<T, Q>(dv, p, do_rows_at.plus(grad_out.slot() * Q::BYTES + rows_at), !first);
        wgmma_commit();
        // Only now, since the fence in it waits until the piece has been written, and that takes its time.
        if (step == 0 && piece_written) hand_over(barriers.dq[group], 0);
        if constexpr (step == 0) wait_until_empty(barriers.ds, ds_ring);
        grade(grad_out.slot(), step);
        hand_over(barriers.ds, ds_ring.slot());
        if (STEPS == 1 || step == group) my_ds = ds_ring;
        ds_ring.advance();
        start_weights_by_rows<T, Q>(dk, ds, q_rows_at.plus(q.slot() * Q::BYTES + rows_at), !first);
        wgmma_commit();

        wgmma_wait<2>();
        keep_order(s);
        weigh(next_slot, next_step);
        wgmma_wait<1>();
        if constexpr (ENDS_TILE) release(barriers.grad_out, grad_out.slot());
        // The compiler would put most powers off until dP is done, since it may move arithmetic across wgmma_wait, but
        // not across a wait that they decide about.
        const bool never = round_powers();
        if constexpr (!ENDS_TILE) {
            start_dp(grad_out.slot(), next_step);
            mbarrier_wait(barriers.ds.empty[ds_ring.slot()], ds_ring.parity() ^ 1 ^ never);
        } else {
            mbarrier_wait(barriers.ds.full[my_ds.slot()], my_ds.parity() ^ never);
            start_columns_by_rows<T, S::B_c>(dq, ds_at.plus(my_ds.slot() * dS::BYTES),
                                             k_columns_at.plus(k.slot() * K::BYTES));
            wgmma_commit();
            wgmma_wait<1>();
            release(barriers.q, q.slot());
            if (more && last) wait_for_v();
            if (more) wait_for(barriers.grad_out, next_do);
            start_dp(next_do.slot(), 0);
            wgmma_wait<1>();
            keep_order(dq);
            give_back(barriers.ds, my_ds.slot());
            if (last) release(barriers.k, k.slot());
            wait_until_empty(barriers.dq[group], dq_ring);
            UNROLL
            for (int n = 0; n < 8; ++n)
                piece[n * GROUP_THREADS] = make_float4(dq[n][0], dq[n][1], dq[n][2], dq[n][3]);
            piece_written = true;
            dq_ring.advance(), q.advance(), next_q.advance(), grad_out.advance(), next_do.advance();
        }
    };

    load_k();
    wait_for(barriers.q, next_q);
    start_scores(0, 0);
    wait_for_v();
    wait_for(barriers.grad_out, next_do);
    wgmma_wait<0>();
    keep_order(s);
    weigh(0, 0);
    round_powers();
    start_dp(0, 0);
    next_q.advance(), next_do.advance();
    while (more) {
        const int first_key = next.k_start + warp_key, tiles = ahead.left;
        const int64_t at = (int64_t{next.batch_kv} * a.S_k + first_key) * a.head_dim;
        NO_UNROLL
        for (int t = 0; t < tiles; ++t) {
            do_step(std::integral_constant<int, 0>(), t == 0, t == tiles - 1);
            if constexpr (STEPS == 2) do_step(std::integral_constant<int, 1>(), false, t == tiles - 1);
        }
        k.advance();
        keep_order(dk);
        keep_order(dv);
        write_rows<T>(static_cast<T*>(a.grad_value) + at, dv, {1, 1}, a.S_k - first_key, a.head_dim);
        write_rows<T>(static_cast<T*>(a.grad_key) + at, dk, {a.scale, a.scale}, a.S_k - first_key, a.head_dim);
    }
    hand_over(barriers.dq[group], 0);
    wgmma_wait<0>();
    keep_order(dp);
}

// ------------------------------------------------------------------------------------------------------- 2. Kernel

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1) flash_backward_wgmma_kernel(const __grid_constant__ Problem a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char bytes[];
    __shared__ Barriers<S> barriers;
    __shared__ Beside<S> beside;
    unsigned char* shared = hopper::aligned(bytes);
    if (threadIdx.x == 0) barriers.init();
    __syncthreads();
    const int group = hopper::role_of_warpgroup(), warp = threadIdx.x / 32;
    if (group == hopper::PRODUCER) {
        hopper::fewer_registers<S::Registers::OF_PRODUCER>();
        if (threadIdx.x % 32 != 0) return;
        if (warp < S::GROUPS)
            add_up<S>(a, barriers, beside, shared, warp);
        else if (warp == S::GROUPS)
            produce<S>(a, barriers, beside, shared);
    } else {
        hopper::more_registers<S::Registers::OF_CONSUMER>();
        consume<S>(a, barriers, beside, shared, group);
    }
#endif
}

// ----------------------------------------------------------------------------------------------------- 3. Launcher

// How many heads' rows of Q, dO and the sum of dQ the L2 cache holds: 8 bytes for every element.
template <class S>
static int section_of(const FlashArguments& a) {
    constexpr int64_t BYTES = int64_t{32} << 20;
    const int64_t head = a.heads / a.kv_heads * a.S_q * S::D * 8;
    return a.causal ? static_cast<int>(std::max(BYTES / head, int64_t{1})) : 1;
}

// False, with nothing done, if the kernel does not take the problem or is not built for this GPU.
template <class S>
static bool launch(const FlashGradients& g, bool dry) {
    using T = typename S::T;
    const FlashArguments& a = g.forward;
    Problem p = {};
    const hopper::RowShape rows = {a.batch, a.heads, a.S_q, a.head_dim};
    const hopper::RowShape keys = {a.batch, a.kv_heads, a.S_k, a.head_dim};
    if (!hopper::is_built(flash_backward_wgmma_kernel<S>) ||
        !hopper::make_tensor_map<T>(p.query, a.query, rows, a.query_strides, S::B_r) ||
        !hopper::make_tensor_map<T>(p.grad_out, g.grad_out, rows, g.grad_out_strides, S::B_r) ||
        !hopper::make_tensor_map<T>(p.key, a.key, keys, a.key_strides, S::B_c) ||
        !hopper::make_tensor_map<T>(p.value, a.value, keys, a.value_strides, S::B_c))
        return false;
    if (dry) return true;
    const RowNumbers numbers = row_numbers(g);
    p.lse = numbers.lse, p.delta = numbers.delta, p.rows = static_cast<int>(numbers.rows);
    p.grad_query_sum = g.grad_query_sum;
    p.grad_key = g.grad_key, p.grad_value = g.grad_value;
    p.counter = g.turns, p.turns = g.deterministic ? g.turns + 1 : nullptr;
    p.factor = a.scale * LOG2_E, p.scale = a.scale;
    p.S_q = static_cast<int>(a.S_q), p.S_k = static_cast<int>(a.S_k), p.head_dim = a.head_dim;
    p.kv_heads = static_cast<int>(a.kv_heads), p.group = static_cast<int>(a.heads / a.kv_heads);
    p.causal = a.causal, p.diagonal = static_cast<int>(a.diagonal);
    p.batch_kv = static_cast<int>(a.batch * a.kv_heads);
    p.k_blocks = static_cast<int>(ceil_div(a.S_k, int64_t{S::B_c}));
    p.section = section_of<S>(a);

    const Zeros zeros = {reinterpret_cast<float4*>(g.grad_query_sum), query_sum_elements(a, true) / 4, g.turns,
                         turn_elements(a, true, g.deterministic)};
    launch_row_numbers<T>(g, numbers, zeros, true);
    const auto kernel = flash_backward_wgmma_kernel<S>;
    const int blocks = std::min(p.batch_kv * p.k_blocks, device_attribute(cudaDevAttrMultiProcessorCount));
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
    kernel<<<blocks, S::THREADS, S::BYTES, a.stream>>>(p);
    CUDA_CHECK_LAUNCH();
    launch_convert_sum<T, S::D, SumOrder::PIECES>(g, true);
    launch_seen_gradients<T>(g, numbers, nan_flag(g, true));
    return true;
}

template <typename T>
static bool backward(const FlashGradients& g, bool dry) {
    constexpr int64_t MANY = int64_t{1} << 28;
    const FlashArguments& a = g.forward;
    if (a.mask.kind != MaskKind::NONE || a.key_step != 1 || !(a.scale > 0) || !in_pieces<T>(g)) return false;
    if (std::max({a.S_k, std::abs(a.diagonal), a.batch * a.heads * sum_rows(a),
                  a.batch * a.kv_heads * ceil_div(a.S_k, int64_t{128})}) > MANY)
        return false;
    if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
    return a.head_dim <= 64 ? launch<D64<T>>(g, dry) : launch<D128<T>>(g, dry);
}

bool hopper_backward_takes(const FlashGradients& g, bool bfloat16) {
    return bfloat16 ? backward<__nv_bfloat16>(g, true) : backward<__half>(g, true);
}

bool hopper_backward(const FlashGradients& g, bool bfloat16) {
    return bfloat16 ? backward<__nv_bfloat16>(g, false) : backward<__half>(g, false);
}
#endif
