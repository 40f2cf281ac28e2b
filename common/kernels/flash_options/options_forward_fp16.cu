// options_forward_fp16.cu - the forward pass with options of float16 rows in pieces: options_forward_mma.cuh. A file of
// its own for each type, so that they are compiled beside each other.
#include "common/kernels/flash_options/options_forward_mma.cuh"

bool options_forward_fp16(const OptionsArguments& a) { return forward_in_fragments<__half>(a); }
