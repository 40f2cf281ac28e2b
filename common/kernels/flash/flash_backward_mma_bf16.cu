// flash_backward_mma_bf16.cu - flash_backward_mma.cuh for bfloat16. One file per type, so that they compile in
// parallel.
#include "common/kernels/flash/flash_backward_mma.cuh"

bool mma_backward_bf16(const FlashGradients& g, bool dry) { return backward_by_mma<__nv_bfloat16>(g, dry); }
