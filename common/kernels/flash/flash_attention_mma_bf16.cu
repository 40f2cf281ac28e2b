// flash_attention_mma_bf16.cu - flash_attention_mma.cuh for bfloat16. One file per type, so that they compile in
// parallel.
#include "common/kernels/flash/flash_attention_mma.cuh"

bool mma_forward_bf16(const FlashArguments& a, bool dry) { return forward_by_mma<__nv_bfloat16>(a, dry); }
