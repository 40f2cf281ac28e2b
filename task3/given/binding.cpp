// binding.cpp - the operators of task 3: check the arguments, allocate the outputs, call the launchers.
//
//   online_softmax(x) -> (y, lse)                x, y [rows, cols], lse [rows]
//   merge_states(outs, lse) -> (out, merged_lse)
//       outs [parts, rows, head_dim], lse [parts, rows]; out [rows, head_dim], merged_lse [rows]
#include <tuple>

#include "common/cuda/binding.h"
#include "task3/given/online_softmax.h"

namespace {

constexpr const char* GRID_BLOCKS = "a grid has no more blocks";

std::tuple<Tensor, Tensor> online_softmax_operator(const Tensor& x) {
    check_tensor(x, "x", {"rows", "cols"});
    const int64_t rows = x.size(0), cols = x.size(1);
    check_at_most(rows, MAX_SOFTMAX_ROWS, "rows", x, "x", GRID_BLOCKS);
    DeviceScope device(x);
    Tensor y = new_output(x, "y", {rows, cols});
    Tensor lse = new_output(x, "lse", {rows});
    online_softmax(data<float>(x), data<float>(y), data<float>(lse), rows, cols, current_stream(x));
    return {y, lse};
}

std::tuple<Tensor, Tensor> merge_states_operator(const Tensor& outs, const Tensor& lse) {
    check_tensor(outs, "outs", {"parts", "rows", "head_dim"});
    check_tensor(lse, "lse", {"parts", "rows"});
    check_same_device(outs, "outs", lse, "lse");
    for (int64_t i : {0, 1}) check_same_size(lse, "lse", i, outs, "outs", i);
    const int64_t parts = outs.size(0), rows = outs.size(1), head_dim = outs.size(2);
    check_at_most(rows, MAX_MERGE_ROWS, "rows", outs, "outs", GRID_BLOCKS);
    check_at_most(head_dim, MAX_MERGE_HEAD_DIM, "head_dim", outs, "outs", GRID_BLOCKS);
    DeviceScope device(outs);
    Tensor out = new_output(outs, "out", {rows, head_dim});
    Tensor merged_lse = new_output(outs, "merged_lse", {rows});
    merge_states(data<float>(outs), data<float>(lse), data<float>(out), data<float>(merged_lse), parts, rows,
                 head_dim, current_stream(outs));
    return {out, merged_lse};
}

}  // namespace

TASK_OPERATORS(m) {
    m.def("online_softmax(Tensor x) -> (Tensor, Tensor)");
    m.def("merge_states(Tensor outs, Tensor lse) -> (Tensor, Tensor)");
}

TASK_KERNELS(m) {
    m.impl("online_softmax", TORCH_BOX(&online_softmax_operator));
    m.impl("merge_states", TORCH_BOX(&merge_states_operator));
}
