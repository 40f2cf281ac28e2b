// no_attention.cpp - PyTorch's own attention raises, in every way that leads to an operator, once this is loaded.
//
// no_attention.py writes the operators' names to OPERATORS. A dispatch mode, getattr, torch.ops: all of them end in the
// dispatcher, and there the last kernel that was registered counts. Nothing in Python holds these registrations.
#include <torch/csrc/stable/c/shim.h>

#include <stdexcept>

namespace {

void refuse(StableIValue*, uint64_t, uint64_t) {
    throw std::runtime_error("the attention is PyTorch's own, and is to be written here");
}

const char* const KEYS[] = {"CPU", "AutogradCPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "Meta"};
const char* const NAMES[] = {
#include OPERATORS
};

const bool registered = [] {
    for (const char* key : KEYS) {
        TorchLibraryHandle library = nullptr;
        aoti_torch_library_init_impl("aten", key, __FILE__, __LINE__, &library);
        for (const char* name : NAMES) torch_library_impl(library, name, refuse, TORCH_ABI_VERSION);
    }
    return true;
}();

}  // namespace
