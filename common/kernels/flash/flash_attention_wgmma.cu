// flash_attention_wgmma.cu - dense attention, forward, float16 and bfloat16, for Hopper GPUs: the instances of
// flash_attention_wgmma.cuh.
//
//   wgmma_forward_dense     launcher
//
// Which shape for which problem: hopper_forward_shapes.cuh. Measurements: README.md; what didn't work: notes/.
#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
#include "common/kernels/flash/flash.h"

bool wgmma_forward_dense(const FlashArguments&, bool) { return false; }  // not in this build
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/check.h"
#include "common/cuda/flash_launch.h"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_attention_wgmma.cuh"
#include "common/kernels/flash/hopper_forward_shapes.cuh"
#include "common/kernels/flash/hopper_forward_work.cuh"

// False, with nothing done, if the kernel does not support the problem or is not built for this GPU.
template <class S>
static bool launch(const FlashArguments& a, bool dry) {
    ForwardProblem p = {};
    const hopper::RowShape rows = {a.batch, a.heads, a.S_q, a.head_dim};
    const hopper::RowShape keys = {a.batch, a.kv_heads, a.S_k, a.head_dim};
    if (!make_maps<S, DensePolicy>(p, a, rows, keys)) return false;
    if (!dry) launch_wgmma<S, DensePolicy>(p, set_work(p, a, S::B_r), a.stream);
    return true;
}

template <typename T>
static bool forward(const FlashArguments& a, bool dry) {
    constexpr int64_t MANY = int64_t{1} << 28;
    if (!a.is_dense() || a.mask.kind != MaskKind::NONE || a.head_dim > MAX_DENSE_HEAD_DIM || a.key_step != 1 || !(a.scale > 0) || !in_pieces<T>(a)) return false;
    if (std::max({a.S_q, a.S_k, a.batch * a.heads * ceil_div(a.S_q, int64_t{64}), std::abs(a.diagonal)}) > MANY)
        return false;
    if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
    return with_shape<T>({a.batch * a.heads, a.S_q, a.S_k, a.head_dim, a.causal},
                         [&]<class S>() { return launch<S>(a, dry); });
}

bool wgmma_forward_dense(const FlashArguments& a, bool dry) {
    return a.type == FloatType::FLOAT16 ? forward<__half>(a, dry) : forward<__nv_bfloat16>(a, dry);
}
#endif
