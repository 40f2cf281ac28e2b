// options_backward_bf16.cu - the gradients of attention with options of bfloat16 rows in pieces:
// options_backward_mma.cuh. A file of its own for each type, so that they are compiled beside each other.
#include "common/kernels/flash_options/options_backward_mma.cuh"

bool options_backward_bf16(const OptionsGradients& g) { return gradients_in_fragments<__nv_bfloat16>(g); }
