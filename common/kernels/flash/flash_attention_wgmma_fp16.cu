// flash_attention_wgmma_fp16.cu - flash_attention_wgmma_options.cuh for float16. One file per type, so that they
// compile in parallel. For other targets, and in the simulator unless built for sm_90a, it refuses every call.
#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
#include "common/kernels/flash/flash.h"

bool wgmma_forward_fp16(const FlashArguments&, bool) { return false; }
#else
#include "common/kernels/flash/flash_attention_wgmma_options.cuh"

bool wgmma_forward_fp16(const FlashArguments& a, bool dry) { return forward_by_wgmma<__half>(a, dry); }
#endif
