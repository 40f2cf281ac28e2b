// flash_backward_wgmma.cu - the gradients of dense attention, float16 and bfloat16, for Hopper GPUs (sm_90a).
//
//   hopper_backward.cuh           the kernel
//   flash_backward.cuh            launch_row_numbers: delta and lse, a kernel that runs before
//   flash_query_sum.cuh           launch_convert_sum: dQ in 16 bits, a kernel that runs after
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

#include "common/cuda/check.h"
#include "common/cuda/flash_launch.h"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_backward.cuh"
#include "common/kernels/flash/flash_host.h"
#include "common/kernels/flash/flash_query_sum.cuh"
#include "common/kernels/flash/flash_seen_gradients.cuh"
#include "common/kernels/flash/hopper_backward.cuh"

// False, with nothing done, if the kernel does not take the problem or is not built for this GPU.
template <class Shape>
static bool launch(const FlashGradients& g, bool dry) {
    using S = Instance<Shape, DenseKeys, Scores::PLAIN>;
    using T = typename S::T;
    const FlashArguments& a = g.forward;
    Problem p = {};
    if (!make_problem<S>(p, a, a.batch, g.grad_out, g.grad_out_strides)) return false;
    if (dry) return true;
    const RowNumbers numbers = row_numbers(g);
    p.lse = numbers.lse, p.delta = numbers.delta, p.rows = static_cast<int>(numbers.rows);
    p.grad_query_sum = g.grad_query_sum;
    p.grad_key = g.grad_key, p.grad_value = g.grad_value;
    p.counter = g.turns, p.turns = g.deterministic ? g.turns + 1 : nullptr;
    p.causal = a.causal, p.diagonal = static_cast<int>(a.diagonal);
    if (a.causal) p.section = heads_in_cache(a.S_q, p.group, S::D);

    const Zeros zeros = {reinterpret_cast<float4*>(g.grad_query_sum), query_sum_elements(a, true) / 4, g.turns,
                         turn_elements(a, true, g.deterministic)};
    launch_row_numbers<T>(g, numbers, zeros, true);
    launch_backward<S>(p, a.stream);
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
