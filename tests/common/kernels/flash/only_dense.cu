// In place of the Hopper kernels of float16 and of options, where only the dense ones of bfloat16 are built.
#include "common/kernels/flash/flash_backward_wgmma.cuh"

bool wgmma_forward_fp16(const FlashArguments&, bool) { return false; }
bool wgmma_forward_bf16(const FlashArguments&, bool) { return false; }
bool wgmma_backward_fp16(const FlashGradients&, bool) { return false; }
bool wgmma_backward_bf16(const FlashGradients& g, bool dry) {
    return backward_by_wgmma<__nv_bfloat16, false, false>(g, dry);
}
bool wgmma_backward_wide_fp16(const FlashGradients&, bool) { return false; }
bool wgmma_backward_wide_bf16(const FlashGradients& g, bool dry) {
    return backward_by_wgmma<__nv_bfloat16, true, false>(g, dry);
}
