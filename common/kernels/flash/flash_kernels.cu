// flash_kernels.cu - chooses the kernel for a call, the fastest first.
//
//   forward_kernel, flash_forward
//   backward_kernel, backward_workspace, flash_backward
//
// Host code only.
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>

#include "common/cuda/check.h"
#include "common/cuda/flash_launch.h"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_host.h"

static bool by_wgmma(const FlashArguments& a, bool dry) {
    if (wgmma_forward_dense(a, dry)) return true;
    return a.type == FloatType::FLOAT16 ? wgmma_forward_fp16(a, dry) : wgmma_forward_bf16(a, dry);
}
static bool by_mma(const FlashArguments& a, bool dry) {
    return a.type == FloatType::FLOAT16 ? mma_forward_fp16(a, dry) : mma_forward_bf16(a, dry);
}

ForwardKernel forward_kernel(const FlashArguments& a) {
    if (a.type == FloatType::FLOAT32) {
        if (!a.is_dense() || a.head_dim > MAX_DENSE_HEAD_DIM) return ForwardKernel::PLAIN;
        if (!a.tensor_cores) return ForwardKernel::FP32;
        return hopper_takes_fp32(a) ? ForwardKernel::WGMMA_3XFP16 : ForwardKernel::SPLIT_FP16;
    }
    if (by_wgmma(a, true)) return ForwardKernel::WGMMA;
    if (a.type == FloatType::BFLOAT16) require_bfloat16();
    return by_mma(a, true) ? ForwardKernel::MMA : ForwardKernel::PLAIN;
}

void flash_forward(const FlashArguments& a, void* workspace) {
    const bool half = a.type != FloatType::FLOAT32;
    if (half && by_wgmma(a, false)) return;
    if (a.packed()) {  // rows that belong to no sequence are zeros
        const size_t rows = a.S_q * a.heads;
        CUDA_CHECK(cudaMemsetAsync(a.out, 0, rows * a.head_dim * (half ? 2 : 4), a.stream));
        CUDA_CHECK(cudaMemsetAsync(a.lse, 0, rows * sizeof(float), a.stream));
    }
    if (a.type == FloatType::BFLOAT16) require_bfloat16();
    if (half) return by_mma(a, false) ? void() : plain_forward(a);
    switch (forward_kernel(a)) {
        case ForwardKernel::WGMMA_3XFP16: return hopper_forward_fp32(a, workspace);
        case ForwardKernel::SPLIT_FP16: return flash_forward_3xfp16(a);
        case ForwardKernel::FP32: return flash_forward_fp32(a);
        default: return plain_forward(a);
    }
}

static bool by_wgmma(const FlashGradients& g, bool dry) {
    if (g.forward.type == FloatType::FLOAT16) return wgmma_backward_fp16(g, dry) || wgmma_backward_wide_fp16(g, dry);
    return wgmma_backward_bf16(g, dry) || wgmma_backward_wide_bf16(g, dry);
}
static bool by_mma(const FlashGradients& g, bool dry) {
    return g.forward.type == FloatType::FLOAT16 ? mma_backward_fp16(g, dry) : mma_backward_bf16(g, dry);
}

BackwardKernel backward_kernel(const FlashGradients& g) {
    const FlashArguments& a = g.forward;
    if (a.type == FloatType::FLOAT32)
        return a.is_dense() && a.head_dim <= MAX_DENSE_HEAD_DIM ? BackwardKernel::FP32 : BackwardKernel::PLAIN;
    if (by_wgmma(g, true)) return BackwardKernel::WGMMA;
    if (a.type == FloatType::BFLOAT16) require_bfloat16();
    return by_mma(g, true) ? BackwardKernel::MMA : BackwardKernel::PLAIN;
}

int64_t backward_workspace(const FlashGradients& g, BackwardKernel kernel) { return BackwardSpace(g, kernel).words(); }

void flash_backward(const FlashGradients& g, BackwardKernel kernel) {
    switch (kernel) {
        case BackwardKernel::WGMMA: by_wgmma(g, false); break;
        case BackwardKernel::MMA: by_mma(g, false); break;
        case BackwardKernel::FP32: flash_backward_fp32(g); break;
        case BackwardKernel::PLAIN: plain_backward(g); break;
    }
}
