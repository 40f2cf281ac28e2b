// In place of the kernels for other GPUs, where only those for Hopper GPUs are built: what these do not take is an error.
#include <stdexcept>

#include "common/kernels/flash/flash.h"

[[noreturn]] static void not_built() { throw std::runtime_error("not a problem of the Hopper kernels"); }

void flash_forward_fp32(const FlashArguments&) { not_built(); }
void flash_forward_3xfp16(const FlashArguments&) { not_built(); }
void flash_forward_fp16(const FlashArguments&) { not_built(); }
void flash_forward_bf16(const FlashArguments&) { not_built(); }
void flash_backward_fp32(const FlashGradients&) { not_built(); }
void flash_backward_fp16(const FlashGradients&) { not_built(); }
void flash_backward_bf16(const FlashGradients&) { not_built(); }
void flash_merge(const MergeArguments&) { not_built(); }
