// In place of the kernels for other GPUs, where only those for Hopper GPUs are built: what these do not take is an error.
#include <stdexcept>

#include "common/kernels/flash_options/options.h"

[[noreturn]] static void not_built() { throw std::runtime_error("not a problem of the Hopper kernels"); }

void options_forward(const OptionsArguments& a) {
    if (!options_forward_wgmma(a, false)) not_built();
}
int64_t options_workspace(const OptionsGradients& g) {
    return g.forward.type == FloatType::FLOAT16 ? hopper_workspace_fp16(g) : hopper_workspace_bf16(g);
}
void options_backward(const OptionsGradients& g) {
    if (g.workspace == nullptr) not_built();
    g.forward.type == FloatType::FLOAT16 ? hopper_backward_fp16(g) : hopper_backward_bf16(g);
    options_sinks(g);
}
void block_forward(const OptionsArguments&, const BlockLists&) { not_built(); }
void block_backward(const OptionsGradients&, const BlockLists&, int*) { not_built(); }
