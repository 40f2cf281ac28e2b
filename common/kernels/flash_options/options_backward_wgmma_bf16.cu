// options_backward_wgmma_bf16.cu - the gradients of attention with options of bfloat16 on Hopper GPUs:
// options_backward_wgmma.cuh. For other targets, and in the simulator unless it runs code for sm_90a, it takes nothing.
#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
#include "common/kernels/flash_options/options.h"

int64_t hopper_workspace_bf16(const OptionsGradients&) { return 0; }
const int* hopper_backward_bf16(const OptionsGradients&) { return nullptr; }
#else
#include <cuda_bf16.h>

#include "common/kernels/flash_options/options_backward_wgmma.cuh"

int64_t hopper_workspace_bf16(const OptionsGradients& g) { return workspace_of<__nv_bfloat16>(g); }
const int* hopper_backward_bf16(const OptionsGradients& g) { return gradients_by_wgmma<__nv_bfloat16>(g); }
#endif
