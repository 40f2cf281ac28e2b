// flash_attention_mma_fp16.cu - flash_attention_mma.cuh for float16. One file per type, so that they compile in
// parallel.
#include "common/kernels/flash/flash_attention_mma.cuh"

bool mma_forward_fp16(const FlashArguments& a, bool dry) { return forward_by_mma<__half>(a, dry); }
