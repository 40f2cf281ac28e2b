// binding.cpp - the operators of task 7: check the arguments, allocate the outputs, call the launchers.
//
//   layernorm(x, residual, weight, bias, eps) -> (out, sum)      x, residual, out, sum [rows, width]; residual may be
//                                                                None; weight, bias [width]
//   bias_gelu(x, bias) -> out                                    x, out [rows, width], bias [width]
#include <cmath>
#include <optional>
#include <tuple>

#include "common/cuda/binding.h"
#include "task7/given/gpt2_kernels.h"

namespace {

constexpr const char* COLUMN_NUMBERS = "columns are counted by 32-bit integers";

void check_columns(const Tensor& vector, const char* name, const Tensor& x) {
    check_tensor(vector, name, {"width"});
    check_same_size(vector, name, 0, x, "x", 1);
    check_same_device(vector, name, x, "x");
}

std::tuple<Tensor, Tensor> layernorm_operator(const Tensor& x, const std::optional<Tensor>& residual,
                                              const Tensor& weight, const Tensor& bias, double eps) {
    check_tensor(x, "x", {"rows", "width"});
    check(x.size(0) <= MAX_ROWS, "x has shape ", shape_of(x), "; at most ", MAX_ROWS, " rows are supported");
    check_at_most(x.size(1), INT32_MAX, "width", x, "x", COLUMN_NUMBERS);
    if (residual) {
        check_tensor(*residual, "residual", {"rows", "width"});
        for (int64_t i : {0, 1}) check_same_size(*residual, "residual", i, x, "x", i);
        check_same_device(*residual, "residual", x, "x");
    }
    check_columns(weight, "weight", x);
    check_columns(bias, "bias", x);
    check(std::isfinite(eps) && eps >= 0, "eps is ", eps, "; it must be 0 or more");
    DeviceScope device(x);
    Tensor out = new_output(x, "out", {x.size(0), x.size(1)});
    Tensor sum = new_output(x, "sum", {x.size(0), x.size(1)});
    layernorm(data<float>(x), residual ? data<float>(*residual) : nullptr, data<float>(weight), data<float>(bias),
              data<float>(out), data<float>(sum), x.size(0), static_cast<int>(x.size(1)), static_cast<float>(eps),
              current_stream(x));
    return {out, sum};
}

Tensor bias_gelu_operator(const Tensor& x, const Tensor& bias) {
    check_tensor(x, "x", {"rows", "width"});
    check(x.size(0) <= MAX_ELEMENTS / x.size(1), "x has shape ", shape_of(x), "; at most ", MAX_ELEMENTS,
          " elements are supported");
    check_at_most(x.size(1), INT32_MAX, "width", x, "x", COLUMN_NUMBERS);
    check_columns(bias, "bias", x);
    DeviceScope device(x);
    Tensor out = new_output(x, "out", {x.size(0), x.size(1)});
    bias_gelu(data<float>(x), data<float>(bias), data<float>(out), x.size(0), static_cast<int>(x.size(1)),
              current_stream(x));
    return out;
}

}  // namespace

TASK_OPERATORS(m) {
    m.def("layernorm(Tensor x, Tensor? residual, Tensor weight, Tensor bias, float eps) -> (Tensor, Tensor)");
    m.def("bias_gelu(Tensor x, Tensor bias) -> Tensor");
}

TASK_KERNELS(m) {
    m.impl("layernorm", TORCH_BOX(&layernorm_operator));
    m.impl("bias_gelu", TORCH_BOX(&bias_gelu_operator));
}
