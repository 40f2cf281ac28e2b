// In place of the kernels for other GPUs, where only sparse_attention_wgmma.cu is built: what that does not take is an
// error.
#include <stdexcept>

#include "common/kernels/sparse/sparse.h"

[[noreturn]] static void not_built() { throw std::runtime_error("not a problem of the Hopper kernel"); }

void sparse_forward_fp16(const SparseArguments&) { not_built(); }
void sparse_forward_bf16(const SparseArguments&) { not_built(); }
