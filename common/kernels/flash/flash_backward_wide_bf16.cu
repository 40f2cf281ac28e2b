// flash_backward_wide_bf16.cu - flash_backward_wgmma.cuh for bfloat16, head_dim 129 ... 256. Separate files compile in
// parallel. For other targets, and in the simulator unless built for sm_90a, it refuses every call.
#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
#include "common/kernels/flash/flash.h"

bool wgmma_backward_wide_bf16(const FlashGradients&, bool) { return false; }
#else
#include "common/kernels/flash/flash_backward_wgmma.cuh"

bool wgmma_backward_wide_bf16(const FlashGradients& g, bool dry) {
    return backward_by_wgmma<__nv_bfloat16, true>(g, dry);
}
#endif
