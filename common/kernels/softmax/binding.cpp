// binding.cpp - the softmax operator, and its intermediate optimization steps.
//
//   softmax(x) -> y                    x, y [rows, cols]
//   softmax_step(x, step) -> y         the same with the first `step` changes only; see softmax.h
#include "common/cuda/binding.h"
#include "common/kernels/softmax/softmax.h"

namespace {

constexpr const char* TILE_POSITIONS = "positions within a row are 32-bit integers";

Tensor softmax_step_operator(const Tensor& x, int64_t step) {
    check_tensor(x, "x", {"rows", "cols"});
    check_at_most(x.size(1), MAX_COLS, "cols", x, "x", TILE_POSITIONS);
    check_between(step, 1, SOFTMAX_STEPS, "step");
    DeviceScope device(x);
    Tensor y = new_like(x, "y");
    softmax(data<float>(x), data<float>(y), x.size(0), static_cast<int>(x.size(1)), static_cast<int>(step),
            current_stream(x));
    return y;
}

Tensor softmax_operator(const Tensor& x) { return softmax_step_operator(x, SOFTMAX_STEPS); }

}  // namespace

TASK_OPERATORS(m) {
    m.def("softmax(Tensor x) -> Tensor");
    m.def("softmax_step(Tensor x, int step) -> Tensor");
}

TASK_KERNELS(m) {
    m.impl("softmax", TORCH_BOX(&softmax_operator));
    m.impl("softmax_step", TORCH_BOX(&softmax_step_operator));
}
