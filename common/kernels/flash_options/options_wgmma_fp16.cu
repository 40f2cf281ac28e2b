// options_wgmma_fp16.cu - attention with options of float16 on Hopper GPUs: options_wgmma.cuh. A file for each type, so
// that they compile in parallel.
#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
#include "common/kernels/flash_options/options.h"

bool options_forward_wgmma_fp16(const OptionsArguments&, bool) { return false; }  // not built for it
#else
#include "common/kernels/flash_options/options_wgmma.cuh"

bool options_forward_wgmma_fp16(const OptionsArguments& a, bool dry) { return forward_in_wgmma<__half>(a, dry); }
#endif
