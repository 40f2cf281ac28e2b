// binding.cpp - the operators of dense attention, forward and backward.
//
//   flash_attention(query, key, value, causal, scale, lower_right, mask, tensor_cores, key_step, key_offset) -> out
//   flash_attention_forward(... the same ...) -> (out, lse)
//   flash_attention_kernel(... the same ...) -> "wgmma", "mma", "wgmma 3xfp16", "3xfp16" or "fp32": which kernel
//       these would run
//   flash_attention_backward(grad_out, query, key, value, out, lse, causal, scale, lower_right, mask, key_step,
//       key_offset, deterministic) -> (grad_query, grad_key, grad_value)
//   flash_attention_backward_kernel(... the same ...) -> "wgmma", "mma" or "fp32"
//   flash_merge(out, lse, part, part_lse)      results over two sets of keys -> one, written to out and lse
//
//   query, out, grad_out, grad_query           [batch, heads, S_q, head_dim]
//   key, value, grad_key, grad_value           [batch, kv_heads, S_k, head_dim]; heads is a multiple of kv_heads
//   lse                                        [batch, heads, S_q], float32: log(sum over keys of exp(score))
//   mask                                       bool or float32, broadcasts to [batch, heads, S_q, S_k]
//
// The dtype chooses the kernels: float16, bfloat16 (tensor cores; Hopper GPUs have a kernel of their own, which takes
// what it can and leaves the rest to the one that takes all), float32 (tensor cores by 3xFP16, or without them if
// tensor_cores is false). Inputs may have any strides as long as their rows are contiguous; results are contiguous.
// The forward operators take `deterministic` for their gradients alone.
// With causal, query i sees key j when key_offset + j * key_step <= i (+ S_k - S_q with lower_right).
#include <string>
#include <tuple>

#include "common/cuda/attention_binding.h"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_host.h"
#include "common/kernels/flash/hopper_split.h"

namespace {

using torch::headeronly::ScalarType;

// Everything but the outputs. Call it before new_output(), so that nothing is allocated for bad arguments.
FlashArguments checked_arguments(const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
                                 std::optional<double> scale, bool lower_right, const std::optional<Tensor>& mask,
                                 int64_t key_step, int64_t key_offset) {
    FlashArguments arguments = attention_arguments<FlashArguments>(query, key, value, causal, scale, MAX_HEAD_DIM);
    check(key_step >= 1 && key_step <= MAX_POSITION, "key_step is ", key_step, "; it must be 1 .. ", MAX_POSITION);
    const int64_t least_offset = query.size(2) - MAX_POSITION;
    check(key_offset >= least_offset && key_offset <= MAX_POSITION, "key_offset is ", key_offset,
          "; it must be S_q - ", MAX_POSITION, " = ", least_offset, " .. ", MAX_POSITION);
    check(!lower_right || (key_step == 1 && key_offset == 0), "lower_right is true, key_step ", key_step,
          " and key_offset ", key_offset,
          "; lower_right aligns the last key, key_step and key_offset say where every key stands: give one of both");
    arguments.diagonal = lower_right ? key.size(2) - query.size(2) : -key_offset;
    arguments.key_step = causal ? static_cast<int>(key_step) : 1;
    arguments.mask = attention_mask(mask, query, key);
    return arguments;
}

void launch_fp32(const FlashArguments& arguments, const Tensor& query, bool tensor_cores) {
    if (!tensor_cores) return flash_forward_fp32(arguments);
    if (!hopper_takes_fp32(arguments)) return flash_forward_3xfp16(arguments);
    Tensor workspace = new_output(query, "split", {SplitSpace(arguments).bytes / 4}, ScalarType::Float);
    hopper_forward_fp32(arguments, workspace.data_ptr());
}

void launch_forward(const FlashArguments& arguments, const Tensor& query, bool tensor_cores) {
    const ScalarType dtype = query.scalar_type();
    if (dtype == ScalarType::Float) return launch_fp32(arguments, query, tensor_cores);
    const bool bfloat16 = dtype == ScalarType::BFloat16;
    if (hopper_forward(arguments, bfloat16)) return;
    bfloat16 ? flash_forward_bf16(arguments) : flash_forward_fp16(arguments);
}

Tensor flash_attention(const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
                       std::optional<double> scale, bool lower_right, std::optional<Tensor> mask, bool tensor_cores,
                       int64_t key_step, int64_t key_offset, bool /*deterministic*/) {
    FlashArguments arguments =
        checked_arguments(query, key, value, causal, scale, lower_right, mask, key_step, key_offset);
    DeviceScope device(query);
    Tensor out = new_like(query, "out");
    arguments.out = out.data_ptr();
    launch_forward(arguments, query, tensor_cores);
    return out;
}

std::tuple<Tensor, Tensor> flash_attention_forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                                   bool causal, std::optional<double> scale, bool lower_right,
                                                   std::optional<Tensor> mask, bool tensor_cores, int64_t key_step,
                                                   int64_t key_offset, bool /*deterministic*/) {
    FlashArguments arguments =
        checked_arguments(query, key, value, causal, scale, lower_right, mask, key_step, key_offset);
    DeviceScope device(query);
    Tensor out = new_like(query, "out");
    Tensor lse = new_output(query, "lse", {query.size(0), query.size(1), query.size(2)}, ScalarType::Float);
    arguments.out = out.data_ptr();
    arguments.lse = data<float>(lse);
    launch_forward(arguments, query, tensor_cores);
    return {out, lse};
}

std::string flash_attention_kernel(const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
                                   std::optional<double> scale, bool lower_right, std::optional<Tensor> mask,
                                   bool tensor_cores, int64_t key_step, int64_t key_offset, bool /*deterministic*/) {
    const FlashArguments arguments =
        checked_arguments(query, key, value, causal, scale, lower_right, mask, key_step, key_offset);
    DeviceScope device(query);
    const ScalarType dtype = query.scalar_type();
    if (dtype == ScalarType::Float)
        return !tensor_cores ? "fp32" : hopper_takes_fp32(arguments) ? "wgmma 3xfp16" : "3xfp16";
    return hopper_takes(arguments, dtype == ScalarType::BFloat16) ? "wgmma" : "mma";
}

// Everything but results and workspaces.
FlashGradients checked_gradients(const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
                                 const Tensor& out, const Tensor& lse, bool causal, std::optional<double> scale,
                                 bool lower_right, const std::optional<Tensor>& mask, int64_t key_step,
                                 int64_t key_offset, bool deterministic) {
    FlashGradients gradients = {};
    gradients.forward = checked_arguments(query, key, value, causal, scale, lower_right, mask, key_step, key_offset);
    const ScalarType dtype = query.scalar_type();
    check_rows(grad_out, "grad_out", {"batch", "heads", "S_q", "head_dim"}, dtype);
    check_tensor(out, "out", {"batch", "heads", "S_q", "head_dim"}, dtype);
    check_tensor(lse, "lse", {"batch", "heads", "S_q"}, ScalarType::Float);
    check_same_device(query, "query", grad_out, "grad_out");
    check_same_device(query, "query", out, "out");
    check_same_device(query, "query", lse, "lse");
    for (int64_t i = 0; i < 4; ++i) check_same_size(grad_out, "grad_out", i, query, "query", i);
    for (int64_t i = 0; i < 4; ++i) check_same_size(out, "out", i, query, "query", i);
    for (int64_t i = 0; i < 3; ++i) check_same_size(lse, "lse", i, query, "query", i);
    gradients.forward.out = out.data_ptr();
    gradients.forward.lse = data<float>(lse);
    gradients.grad_out = grad_out.data_ptr();
    gradients.grad_out_strides = row_strides(grad_out);
    gradients.deterministic = deterministic;
    return gradients;
}

bool takes_hopper_backward(const FlashGradients& gradients, ScalarType dtype) {
    return dtype != ScalarType::Float && hopper_backward_takes(gradients, dtype == ScalarType::BFloat16);
}

std::tuple<Tensor, Tensor, Tensor> flash_attention_backward(const Tensor& grad_out, const Tensor& query,
                                                            const Tensor& key, const Tensor& value, const Tensor& out,
                                                            const Tensor& lse, bool causal,
                                                            std::optional<double> scale, bool lower_right,
                                                            std::optional<Tensor> mask, int64_t key_step,
                                                            int64_t key_offset, bool deterministic) {
    FlashGradients gradients = checked_gradients(grad_out, query, key, value, out, lse, causal, scale, lower_right,
                                                 mask, key_step, key_offset, deterministic);
    DeviceScope device(query);
    const ScalarType dtype = query.scalar_type();
    const bool hopper = takes_hopper_backward(gradients, dtype);
    Tensor grad_query = new_like(query, "grad_query");
    Tensor grad_key = new_like(key, "grad_key");
    Tensor grad_value = new_like(value, "grad_value");
    gradients.grad_query = grad_query.data_ptr();
    gradients.grad_key = grad_key.data_ptr();
    gradients.grad_value = grad_value.data_ptr();
    Tensor delta =
        new_output(query, "delta", {row_number_elements(gradients.forward, hopper)}, ScalarType::Float);
    gradients.delta = data<float>(delta);
    std::optional<Tensor> sum, turns;
    if (dtype != ScalarType::Float) {
        sum = new_output(query, "grad_query_sum", {query_sum_elements(gradients.forward, hopper)}, ScalarType::Float);
        gradients.grad_query_sum = data<float>(*sum);
        turns = new_output(query, "turns", {turn_elements(gradients.forward, hopper, deterministic)}, ScalarType::Int);
        gradients.turns = data<int>(*turns);
    }
    if (hopper)
        hopper_backward(gradients, dtype == ScalarType::BFloat16);
    else if (dtype == ScalarType::Half)
        flash_backward_fp16(gradients);
    else if (dtype == ScalarType::BFloat16)
        flash_backward_bf16(gradients);
    else
        flash_backward_fp32(gradients);
    return {grad_query, grad_key, grad_value};
}

std::string flash_attention_backward_kernel(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                            const Tensor& value, const Tensor& out, const Tensor& lse, bool causal,
                                            std::optional<double> scale, bool lower_right, std::optional<Tensor> mask,
                                            int64_t key_step, int64_t key_offset, bool deterministic) {
    const FlashGradients gradients = checked_gradients(grad_out, query, key, value, out, lse, causal, scale,
                                                       lower_right, mask, key_step, key_offset, deterministic);
    DeviceScope device(query);
    if (query.scalar_type() == ScalarType::Float) return "fp32";
    return takes_hopper_backward(gradients, query.scalar_type()) ? "wgmma" : "mma";
}

void merge(const Tensor& out, const Tensor& lse, const Tensor& part, const Tensor& part_lse) {
    const std::initializer_list<const char*> dims = {"batch", "heads", "rows", "head_dim"};
    const ScalarType dtype = out.scalar_type();
    check_float_type(part, "part");
    check(dtype == ScalarType::Float || dtype == part.scalar_type(), "out has dtype ", torch::headeronly::toString(dtype),
          "; it must be Float or that of part, ", torch::headeronly::toString(part.scalar_type()));
    check_rows(out, "out", dims, dtype);
    check_but_layout(lse, "lse", {"batch", "heads", "rows"}, ScalarType::Float);
    tell_checker_of_any(lse, "lse");
    check_tensor(part, "part", dims, part.scalar_type());
    check_tensor(part_lse, "part_lse", {"batch", "heads", "rows"}, ScalarType::Float);
    check_same_device(part, "part", out, "out");
    check_same_device(lse, "lse", out, "out");
    check_same_device(part_lse, "part_lse", out, "out");
    for (int64_t i = 0; i < 4; ++i) check_same_size(part, "part", i, out, "out", i);
    for (int64_t i = 0; i < 3; ++i) check_same_size(lse, "lse", i, out, "out", i);
    for (int64_t i = 0; i < 3; ++i) check_same_size(part_lse, "part_lse", i, out, "out", i);
    DeviceScope device(out);
    MergeArguments a = {};
    a.out = out.data_ptr(), a.out_strides = row_strides(out);
    a.lse = data<float>(lse), a.lse_strides = {stride_of(lse, 0), stride_of(lse, 1), stride_of(lse, 2)};
    a.part = part.data_ptr(), a.part_lse = data<float>(part_lse);
    a.batch = out.size(0), a.heads = out.size(1), a.rows = out.size(2), a.head_dim = static_cast<int>(out.size(3));
    a.out_type = float_type(out, "out"), a.part_type = float_type(part, "part");
    a.stream = current_stream(out);
    flash_merge(a);
}

}  // namespace

TASK_OPERATORS(m) {
    m.def(
        "flash_attention(Tensor query, Tensor key, Tensor value, bool causal, float? scale=None, "
        "bool lower_right=False, Tensor? mask=None, bool tensor_cores=True, int key_step=1, int key_offset=0, "
        "bool deterministic=False) -> Tensor");
    m.def(
        "flash_attention_forward(Tensor query, Tensor key, Tensor value, bool causal, float? scale=None, "
        "bool lower_right=False, Tensor? mask=None, bool tensor_cores=True, int key_step=1, int key_offset=0, "
        "bool deterministic=False) -> (Tensor, Tensor)");
    m.def(
        "flash_attention_kernel(Tensor query, Tensor key, Tensor value, bool causal, float? scale=None, "
        "bool lower_right=False, Tensor? mask=None, bool tensor_cores=True, int key_step=1, int key_offset=0, "
        "bool deterministic=False) -> str");
    m.def(
        "flash_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, "
        "bool causal, float? scale=None, bool lower_right=False, Tensor? mask=None, int key_step=1, "
        "int key_offset=0, bool deterministic=False) -> (Tensor, Tensor, Tensor)");
    m.def(
        "flash_attention_backward_kernel(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor "
        "lse, bool causal, float? scale=None, bool lower_right=False, Tensor? mask=None, int key_step=1, "
        "int key_offset=0, bool deterministic=False) -> str");
    m.def("flash_merge(Tensor(a!) out, Tensor(b!) lse, Tensor part, Tensor part_lse) -> ()");
}

TASK_KERNELS(m) {
    m.impl("flash_attention", TORCH_BOX(&flash_attention));
    m.impl("flash_attention_forward", TORCH_BOX(&flash_attention_forward));
    m.impl("flash_attention_kernel", TORCH_BOX(&flash_attention_kernel));
    m.impl("flash_attention_backward", TORCH_BOX(&flash_attention_backward));
    m.impl("flash_attention_backward_kernel", TORCH_BOX(&flash_attention_backward_kernel));
    m.impl("flash_merge", TORCH_BOX(&merge));
}
