// In place of the kernels for other GPUs, where only those for Hopper GPUs are built: what these do not take is an error.
#include <stdexcept>

#include "common/kernels/flash/flash.h"

[[noreturn]] static void not_built() { throw std::runtime_error("not a problem of the Hopper kernels"); }

bool mma_forward_fp16(const FlashArguments&, bool) { not_built(); }
bool mma_forward_bf16(const FlashArguments&, bool) { not_built(); }
void flash_forward_fp32(const FlashArguments&) { not_built(); }
void flash_forward_3xfp16(const FlashArguments&) { not_built(); }
void plain_forward(const FlashArguments&) { not_built(); }
bool mma_backward_fp16(const FlashGradients&, bool) { not_built(); }
bool mma_backward_bf16(const FlashGradients&, bool) { not_built(); }
void flash_backward_fp32(const FlashGradients&) { not_built(); }
void plain_backward(const FlashGradients&) { not_built(); }
void block_forward(const FlashArguments&, const BlockLists&) { not_built(); }
void block_backward(const FlashGradients&, const BlockLists&, int*) { not_built(); }
void flash_merge(const MergeArguments&) { not_built(); }
