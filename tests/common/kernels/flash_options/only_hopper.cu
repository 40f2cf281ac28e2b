// In place of the kernels for other GPUs, where only those for Hopper GPUs are built: what these do not take is an error.
#include <stdexcept>

#include "common/kernels/flash_options/options.h"

[[noreturn]] static void not_built() { throw std::runtime_error("not a problem of the Hopper kernels"); }

void options_forward(const OptionsArguments& a) {
    if (!options_forward_wgmma(a, false)) not_built();
}
int64_t options_workspace(const OptionsGradients&) { return 0; }
void options_backward(const OptionsGradients&) { not_built(); }
void block_forward(const OptionsArguments&, const BlockLists&) { not_built(); }
void block_backward(const OptionsGradients&, const BlockLists&, int*) { not_built(); }
