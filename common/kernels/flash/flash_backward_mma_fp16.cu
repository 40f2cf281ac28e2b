// flash_backward_mma_fp16.cu - flash_backward_mma.cuh for float16. One file per type, so that they compile in parallel.
#include "common/kernels/flash/flash_backward_mma.cuh"

bool mma_backward_fp16(const FlashGradients& g, bool dry) { return backward_by_mma<__half>(g, dry); }
