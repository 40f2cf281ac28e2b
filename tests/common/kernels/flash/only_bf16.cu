// In place of the Hopper kernels of float16, where only those of bfloat16 are built.
#include "common/kernels/flash/flash.h"

bool wgmma_forward_fp16(const FlashArguments&, bool) { return false; }
bool wgmma_backward_fp16(const FlashGradients&, bool) { return false; }
