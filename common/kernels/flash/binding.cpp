// binding.cpp - the attention operators, forward and backward; README.md documents their arguments and results.
//
//   flash_attention, flash_attention_forward, flash_attention_backward    [batch, heads, rows, head_dim]
//   packed_attention, packed_attention_backward                           [rows, heads, head_dim], cu_seqlens
//   block_attention, block_attention_backward                             listed blocks of keys
//   flash_attention_kernel, flash_attention_backward_kernel, packed_attention_kernel    which kernel these would run
//   flash_merge       merges the results over two sets of keys into out and lse
//   dropout_mask      which weights a forward pass keeps
//
// In forward operators, `deterministic` only affects the gradients. tensor_cores: for float32 without options.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "common/cuda/attention_binding.h"
#include "common/cuda/pattern_arguments.h"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/hopper_split.h"

namespace {

using torch::headeronly::ScalarType;
using OptionalTensor = std::optional<Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// The trailing arguments of an operator.
struct Options {
    double softcap = 0;
    const OptionalTensor& sinks;
    double dropout_p = 0;
    const OptionalTensor& seed;
    int64_t window_left = -1, window_right = -1;
};

Dropout checked_dropout(double dropout_p, const OptionalTensor& seed, const Tensor& other, const char* other_name) {
    check(dropout_p >= 0 && dropout_p < 1, "dropout_p is ", dropout_p, "; it must be 0 or more and less than 1");
    if (dropout_p == 0) return {nullptr, 0, 1.0f};
    check(seed.has_value(), "dropout_p is ", dropout_p, " and seed is None; dropout needs a seed");
    check_tensor(*seed, "seed", {"1"}, ScalarType::Long);
    check(seed->size(0) == 1, "seed has shape ", shape_of(*seed), "; it must be [1]");
    check_same_device(*seed, "seed", other, other_name);
    return dropout_of(dropout_p, data<int64_t>(*seed));
}

// The arguments that all calls have.
void add_options(FlashArguments& a, const Tensor& query, bool lower_right, const Options& options) {
    check_between(options.window_left, -1, MAX_POSITION, "window_left");
    check_between(options.window_right, -1, MAX_POSITION, "window_right");
    a.window_left = options.window_left, a.window_right = options.window_right;
    check(options.softcap >= 0 && options.softcap <= std::numeric_limits<float>::max(), "softcap is ", options.softcap,
          "; it must be 0 (none) or positive and finite");
    a.softcap = static_cast<float>(options.softcap);
    a.lower_right = lower_right;
    a.key_step = 1;
    if (const OptionalTensor& sinks = options.sinks) {
        check_tensor(*sinks, "sinks", {"heads"}, ScalarType::Float);
        check_same_size(*sinks, "sinks", 0, query, "query", 1);
        check_same_device(*sinks, "sinks", query, "query");
        a.sinks = data<float>(*sinks);
    }
    a.dropout = checked_dropout(options.dropout_p, options.seed, query, "query");
    a.type = float_type(query, "query");
}

FlashArguments dense_arguments(const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
                               std::optional<double> scale, bool lower_right, const OptionalTensor& mask,
                               bool tensor_cores, int64_t key_step, int64_t key_offset, const Options& options) {
    auto a = attention_arguments<FlashArguments>(query, key, value, causal, scale, MAX_HEAD_DIM);
    add_options(a, query, lower_right, options);
    check(key_step >= 1 && key_step <= MAX_POSITION, "key_step is ", key_step, "; it must be 1 .. ", MAX_POSITION);
    const int64_t least_offset = query.size(2) - MAX_POSITION;
    check(key_offset >= least_offset && key_offset <= MAX_POSITION, "key_offset is ", key_offset,
          "; it must be S_q - ", MAX_POSITION, " = ", least_offset, " .. ", MAX_POSITION);
    const bool apart = key_step != 1 || key_offset != 0;
    check(!lower_right || !apart, "lower_right is true, key_step ", key_step, " and key_offset ", key_offset,
          "; lower_right aligns the last key, key_step and key_offset say where every key stands: give one of both");
    check(!apart || (a.window_left < 0 && a.window_right < 0), "key_step is ", key_step, ", key_offset ", key_offset,
          " and there is a window; windows are for keys that are next to each other");
    a.diagonal = lower_right ? a.S_k - a.S_q : -key_offset;
    if (causal) a.key_step = static_cast<int>(key_step);
    a.tensor_cores = tensor_cores;
    a.mask = attention_mask(mask, query, key);
    a.out_strides = {a.heads * a.S_q * a.head_dim, a.S_q * a.head_dim, a.head_dim};
    return a;
}

RowStrides packed_strides(const Tensor& x) { return {0, stride_of(x, 1), stride_of(x, 0)}; }

const int* checked_boundaries(const Tensor& x, const char* name, const Tensor& rows, const char* rows_name) {
    check_tensor(x, name, {"batch + 1"}, ScalarType::Int);
    check_same_device(x, name, rows, rows_name);
    check(x.size(0) >= 2, name, " has shape ", shape_of(x), "; it must be [batch + 1], at least [2]");
    return data<int>(x);
}

FlashArguments packed_arguments(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& cu_seqlens_q,
                                const Tensor& cu_seqlens_k, bool causal, std::optional<double> scale, bool lower_right,
                                const Options& options) {
    const ScalarType dtype = query.scalar_type();
    check_float_type(query, "query");
    check_rows(query, "query", {"total_q", "heads", "head_dim"}, dtype);
    check_rows(key, "key", {"total_k", "kv_heads", "head_dim"}, dtype);
    check_rows(value, "value", {"total_k", "kv_heads", "head_dim"}, dtype);
    check_same_device(query, "query", key, "key");
    check_same_device(query, "query", value, "value");
    check_same_size(key, "key", 2, query, "query", 2);
    for (int64_t i = 0; i < 3; ++i) check_same_size(value, "value", i, key, "key", i);
    check(query.size(1) % key.size(1) == 0, "query has ", query.size(1), " heads, shape ", shape_of(query),
          ", and key ", key.size(1), ", shape ", shape_of(key),
          "; the number of heads of query must be a multiple of key's");
    const int64_t head_dim = query.size(2);
    check(head_dim <= MAX_HEAD_DIM, "query has head_dim = ", head_dim, ", shape ", shape_of(query), "; it must be 1 .. ",
          MAX_HEAD_DIM);
    FlashArguments a = {};
    a.cu_seqlens_q = checked_boundaries(cu_seqlens_q, "cu_seqlens_q", query, "query");
    a.cu_seqlens_k = checked_boundaries(cu_seqlens_k, "cu_seqlens_k", key, "key");
    check_same_size(cu_seqlens_k, "cu_seqlens_k", 0, cu_seqlens_q, "cu_seqlens_q", 0);
    a.query = query.data_ptr(), a.key = key.data_ptr(), a.value = value.data_ptr();
    a.query_strides = packed_strides(query), a.key_strides = packed_strides(key);
    a.value_strides = packed_strides(value);
    a.batch = cu_seqlens_q.size(0) - 1, a.heads = query.size(1), a.kv_heads = key.size(1);
    a.S_q = query.size(0), a.S_k = key.size(0), a.head_dim = static_cast<int>(head_dim);
    a.scale = attention_scale(scale, head_dim);
    a.causal = causal;
    a.stream = current_stream(query);
    add_options(a, query, lower_right, options);
    a.out_strides = {0, a.head_dim, a.heads * a.head_dim};
    return a;
}

FlashArguments block_arguments(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& counts,
                               const Tensor& columns, int64_t block, bool causal, std::optional<double> scale,
                               BlockLists& lists) {
    check(query.dim() != 4 || query.size(3) <= MAX_BLOCK_HEAD_DIM, "query has head_dim = ", query.size(3), ", shape ",
          shape_of(query), "; it must be 1 .. ", MAX_BLOCK_HEAD_DIM);
    const OptionalTensor none;
    const auto a = dense_arguments(query, key, value, causal, scale, false, none, true, 1, 0, {0, none, 0, none});
    check_blocks(counts, columns, block, query, key);
    lists = {data<int>(counts), data<int>(columns), static_cast<int>(block)};
    return a;
}

// ---- forward

// run(a): the forward pass.
template <typename Run>
std::tuple<Tensor, Tensor> forward(FlashArguments& a, const Tensor& query, Run run) {
    DeviceScope device(query);
    Tensor out = new_like(query, "out");
    const auto sizes = a.packed() ? std::vector<int64_t>{a.heads, a.S_q} : std::vector<int64_t>{a.batch, a.heads, a.S_q};
    Tensor lse = new_output(query, "lse", sizes, ScalarType::Float);
    a.out = out.data_ptr(), a.lse = data<float>(lse);
    run(a);
    return {out, lse};
}

void run_forward(const FlashArguments& a, const Tensor& query) {
    std::optional<Tensor> workspace;
    if (a.type == FloatType::FLOAT32 && forward_kernel(a) == ForwardKernel::WGMMA_3XFP16)
        workspace = new_output(query, "split", {SplitSpace(a).bytes / 4}, ScalarType::Float);
    flash_forward(a, workspace ? workspace->data_ptr() : nullptr);
}

std::string kernel_name(const FlashArguments& a, const Tensor& query) {
    DeviceScope device(query);
    switch (forward_kernel(a)) {
        case ForwardKernel::WGMMA: return "wgmma";
        case ForwardKernel::MMA: return "mma";
        case ForwardKernel::WGMMA_3XFP16: return "wgmma 3xfp16";
        case ForwardKernel::SPLIT_FP16: return "3xfp16";
        case ForwardKernel::FP32: return "fp32";
        default: return "plain";
    }
}

Tensor flash_attention(const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
                       std::optional<double> scale, bool lower_right, OptionalTensor mask, bool tensor_cores,
                       int64_t key_step, int64_t key_offset, bool /*deterministic*/) {
    const OptionalTensor none;
    auto a = dense_arguments(query, key, value, causal, scale, lower_right, mask, tensor_cores, key_step, key_offset,
                             {0, none, 0, none});
    DeviceScope device(query);
    Tensor out = new_like(query, "out");
    a.out = out.data_ptr();
    run_forward(a, query);
    return out;
}

// Returns [batch, S_q, heads, head_dim], which a linear layer can read without a transpose
Tensor flash_attention_rows(const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
                            std::optional<double> scale) {
    const OptionalTensor none;
    auto a = dense_arguments(query, key, value, causal, scale, false, none, true, 1, 0, {0, none, 0, none});
    check(a.type != FloatType::FLOAT32, "query is float32; flash_attention_rows takes float16 and bfloat16");
    DeviceScope device(query);
    Tensor out = new_output(query, "out", {a.batch, a.S_q, a.heads, a.head_dim});
    a.out = out.data_ptr(), a.out_strides = {a.S_q * a.heads * a.head_dim, a.head_dim, a.heads * a.head_dim};
    run_forward(a, query);
    return out;
}

#define OPTION_PARAMETERS                                                                            \
    double softcap, OptionalTensor sinks, double dropout_p, OptionalTensor seed, int64_t window_left, \
        int64_t window_right
#define OPTIONS {softcap, sinks, dropout_p, seed, window_left, window_right}

std::tuple<Tensor, Tensor> flash_attention_forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                                   bool causal, std::optional<double> scale, bool lower_right,
                                                   OptionalTensor mask, bool tensor_cores, int64_t key_step,
                                                   int64_t key_offset, bool /*deterministic*/, OPTION_PARAMETERS) {
    auto a = dense_arguments(query, key, value, causal, scale, lower_right, mask, tensor_cores, key_step, key_offset,
                             OPTIONS);
    return forward(a, query, [&](const FlashArguments& given) { run_forward(given, query); });
}

std::string flash_attention_kernel(const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
                                   std::optional<double> scale, bool lower_right, OptionalTensor mask,
                                   bool tensor_cores, int64_t key_step, int64_t key_offset, bool /*deterministic*/,
                                   OPTION_PARAMETERS) {
    return kernel_name(dense_arguments(query, key, value, causal, scale, lower_right, mask, tensor_cores, key_step,
                                       key_offset, OPTIONS),
                       query);
}

std::tuple<Tensor, Tensor> packed_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                            const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k, bool causal,
                                            std::optional<double> scale, bool lower_right, bool /*deterministic*/,
                                            OPTION_PARAMETERS) {
    auto a = packed_arguments(query, key, value, cu_seqlens_q, cu_seqlens_k, causal, scale, lower_right, OPTIONS);
    return forward(a, query, [&](const FlashArguments& given) { run_forward(given, query); });
}

std::string packed_attention_kernel(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k, bool causal,
                                    std::optional<double> scale, bool lower_right, bool /*deterministic*/,
                                    OPTION_PARAMETERS) {
    return kernel_name(
        packed_arguments(query, key, value, cu_seqlens_q, cu_seqlens_k, causal, scale, lower_right, OPTIONS), query);
}

std::tuple<Tensor, Tensor> block_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                           const Tensor& counts, const Tensor& columns, int64_t block, bool causal,
                                           std::optional<double> scale) {
    BlockLists lists;
    auto a = block_arguments(query, key, value, counts, columns, block, causal, scale, lists);
    return forward(a, query, [&](const FlashArguments& given) { block_forward(given, lists); });
}

// ---- backward

// Everything but results and workspace.
FlashGradients gradients_of(const FlashArguments& a, const Tensor& grad_out, const Tensor& query, const Tensor& out,
                            const Tensor& lse, bool deterministic) {
    const ScalarType dtype = query.scalar_type();
    if (a.packed()) {
        check_rows(grad_out, "grad_out", {"total_q", "heads", "head_dim"}, dtype);
        check_tensor(out, "out", {"total_q", "heads", "head_dim"}, dtype);
        check_tensor(lse, "lse", {"heads", "total_q"}, ScalarType::Float);
        for (int64_t i : {0, 1}) check_same_size(lse, "lse", i, query, "query", 1 - i);
    } else {
        check_rows(grad_out, "grad_out", {"batch", "heads", "S_q", "head_dim"}, dtype);
        check_tensor(out, "out", {"batch", "heads", "S_q", "head_dim"}, dtype);
        check_tensor(lse, "lse", {"batch", "heads", "S_q"}, ScalarType::Float);
        for (int64_t i = 0; i < 3; ++i) check_same_size(lse, "lse", i, query, "query", i);
    }
    for (int64_t i = 0; i < query.dim(); ++i) check_same_size(grad_out, "grad_out", i, query, "query", i);
    for (int64_t i = 0; i < query.dim(); ++i) check_same_size(out, "out", i, query, "query", i);
    check_same_device(query, "query", grad_out, "grad_out");
    check_same_device(query, "query", out, "out");
    check_same_device(query, "query", lse, "lse");
    FlashGradients g = {};
    g.forward = a;
    g.forward.out = out.data_ptr(), g.forward.lse = data<float>(lse);
    g.grad_out = grad_out.data_ptr();
    g.grad_out_strides = a.packed() ? packed_strides(grad_out) : row_strides(grad_out);
    g.grad_key_strides = {a.kv_heads * a.S_k * a.head_dim, a.S_k * a.head_dim, a.head_dim};
    if (a.packed()) g.grad_key_strides = {0, a.head_dim, a.kv_heads * a.head_dim};
    g.deterministic = deterministic;
    return g;
}

// run(g): the backward pass using `kernel`.
template <typename Run>
Gradients backward(FlashGradients g, const Tensor& query, const Tensor& key, BackwardKernel kernel, Run run) {
    Tensor grad_query = new_like(query, "grad_query"), grad_key = new_like(key, "grad_key");
    Tensor grad_value = new_like(key, "grad_value");
    Tensor grad_sinks = new_output(query, "grad_sinks", {g.forward.heads}, ScalarType::Float);
    Tensor workspace = new_output(query, "workspace", {backward_workspace(g, kernel)}, ScalarType::Float);
    g.grad_query = grad_query.data_ptr();
    g.grad_key = grad_key.data_ptr(), g.grad_value = grad_value.data_ptr();
    g.grad_sinks = data<float>(grad_sinks), g.workspace = data<float>(workspace);
    run(g);
    return {grad_query, grad_key, grad_value, grad_sinks};
}

Gradients run_backward(const FlashArguments& a, const Tensor& grad_out, const Tensor& query, const Tensor& key,
                       const Tensor& out, const Tensor& lse, bool deterministic) {
    const FlashGradients g = gradients_of(a, grad_out, query, out, lse, deterministic);
    DeviceScope device(query);
    const BackwardKernel kernel = backward_kernel(g);
    return backward(g, query, key, kernel, [&](const FlashGradients& given) { flash_backward(given, kernel); });
}

Gradients flash_attention_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
                                   const Tensor& out, const Tensor& lse, bool causal, std::optional<double> scale,
                                   bool lower_right, OptionalTensor mask, int64_t key_step, int64_t key_offset,
                                   bool deterministic, OPTION_PARAMETERS) {
    const auto a =
        dense_arguments(query, key, value, causal, scale, lower_right, mask, true, key_step, key_offset, OPTIONS);
    return run_backward(a, grad_out, query, key, out, lse, deterministic);
}

std::string flash_attention_backward_kernel(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                            const Tensor& value, const Tensor& out, const Tensor& lse, bool causal,
                                            std::optional<double> scale, bool lower_right, OptionalTensor mask,
                                            int64_t key_step, int64_t key_offset, bool deterministic,
                                            OPTION_PARAMETERS) {
    const auto a =
        dense_arguments(query, key, value, causal, scale, lower_right, mask, true, key_step, key_offset, OPTIONS);
    const FlashGradients g = gradients_of(a, grad_out, query, out, lse, deterministic);
    DeviceScope device(query);
    switch (backward_kernel(g)) {
        case BackwardKernel::WGMMA: return "wgmma";
        case BackwardKernel::MMA: return "mma";
        case BackwardKernel::FP32: return "fp32";
        default: return "plain";
    }
}

Gradients packed_attention_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
                                    const Tensor& out, const Tensor& lse, const Tensor& cu_seqlens_q,
                                    const Tensor& cu_seqlens_k, bool causal, std::optional<double> scale,
                                    bool lower_right, bool deterministic, OPTION_PARAMETERS) {
    const auto a = packed_arguments(query, key, value, cu_seqlens_q, cu_seqlens_k, causal, scale, lower_right, OPTIONS);
    return run_backward(a, grad_out, query, key, out, lse, deterministic);
}

std::tuple<Tensor, Tensor, Tensor> block_attention_backward(const Tensor& grad_out, const Tensor& query,
                                                            const Tensor& key, const Tensor& value, const Tensor& out,
                                                            const Tensor& lse, const Tensor& counts,
                                                            const Tensor& columns, int64_t block, bool causal,
                                                            std::optional<double> scale) {
    BlockLists lists;
    const auto a = block_arguments(query, key, value, counts, columns, block, causal, scale, lists);
    const FlashGradients g = gradients_of(a, grad_out, query, out, lse, false);
    DeviceScope device(query);
    const int64_t numbers = a.heads * (a.S_k / block) * (1 + a.S_q / block);
    const auto [of_query, of_key, of_value, none] =
        backward(g, query, key, BackwardKernel::PLAIN, [&](const FlashGradients& given) {
            Tensor transposed = new_output(query, "transposed", {numbers}, ScalarType::Int);
            block_backward(given, lists, data<int>(transposed));
        });
    return {of_query, of_key, of_value};
}

// ---- others

void merge(const Tensor& out, const Tensor& lse, const Tensor& part, const Tensor& part_lse) {
    const std::initializer_list<const char*> dims = {"batch", "heads", "rows", "head_dim"};
    const ScalarType dtype = out.scalar_type();
    check_float_type(part, "part");
    check(dtype == ScalarType::Float || dtype == part.scalar_type(), "out has dtype ", torch::headeronly::toString(dtype),
          "; it must be Float or that of part, ", torch::headeronly::toString(part.scalar_type()));
    check_rows(out, "out", dims, dtype);
    check_but_layout(lse, "lse", {"batch", "heads", "rows"}, ScalarType::Float);
    register_strided_with_checker(lse, "lse");
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

Tensor dropout_mask_operator(const Tensor& seed, double dropout_p, int64_t batch, int64_t heads, int64_t S_q,
                             int64_t S_k) {
    const char* names[] = {"batch", "heads", "S_q", "S_k"};
    int i = 0;
    for (int64_t size : {batch, heads, S_q, S_k}) check_between(size, 1, MAX_POSITION, names[i++]);
    check(dropout_p > 0, "dropout_p is ", dropout_p, "; it must be more than 0 and less than 1");
    const Dropout dropout = checked_dropout(dropout_p, seed, seed, "seed");
    DeviceScope device(seed);
    Tensor kept = new_output(seed, "kept", {batch, heads, S_q, S_k}, ScalarType::Bool);
    dropout_mask({static_cast<bool*>(kept.data_ptr()), batch, heads, S_q, S_k, dropout, current_stream(seed)});
    return kept;
}

}  // namespace

// Arguments shared by several operators.
#define INPUTS "Tensor query, Tensor key, Tensor value, "
#define RESULTS "Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, "
#define DENSE                                                                                               \
    "bool causal, float? scale=None, bool lower_right=False, Tensor? mask=None, bool tensor_cores=True, "   \
    "int key_step=1, int key_offset=0, bool deterministic=False"
#define DENSE_BACKWARD                                                                                  \
    "bool causal, float? scale=None, bool lower_right=False, Tensor? mask=None, int key_step=1, "       \
    "int key_offset=0, bool deterministic=False"
#define PACKED                                                                                                   \
    "Tensor cu_seqlens_q, Tensor cu_seqlens_k, bool causal, float? scale=None, bool lower_right=True, "          \
    "bool deterministic=False"
#define BLOCKS "Tensor counts, Tensor columns, int block, bool causal=False, float? scale=None"
#define WITH_OPTIONS                                                                                         \
    ", float softcap=0.0, Tensor? sinks=None, float dropout_p=0.0, Tensor? seed=None, int window_left=-1, " \
    "int window_right=-1) -> "

TASK_OPERATORS(m) {
    m.def("flash_attention(" INPUTS DENSE ") -> Tensor");
    m.def("flash_attention_rows(" INPUTS "bool causal, float? scale=None) -> Tensor");
    m.def("flash_attention_forward(" INPUTS DENSE WITH_OPTIONS "(Tensor, Tensor)");
    m.def("flash_attention_kernel(" INPUTS DENSE WITH_OPTIONS "str");
    m.def("flash_attention_backward(" RESULTS DENSE_BACKWARD WITH_OPTIONS "(Tensor, Tensor, Tensor, Tensor)");
    m.def("flash_attention_backward_kernel(" RESULTS DENSE_BACKWARD WITH_OPTIONS "str");
    m.def("packed_attention(" INPUTS PACKED WITH_OPTIONS "(Tensor, Tensor)");
    m.def("packed_attention_kernel(" INPUTS PACKED WITH_OPTIONS "str");
    m.def("packed_attention_backward(" RESULTS PACKED WITH_OPTIONS "(Tensor, Tensor, Tensor, Tensor)");
    m.def("block_attention(" INPUTS BLOCKS ") -> (Tensor, Tensor)");
    m.def("block_attention_backward(" RESULTS BLOCKS ") -> (Tensor, Tensor, Tensor)");
    m.def("flash_merge(Tensor(a!) out, Tensor(b!) lse, Tensor part, Tensor part_lse) -> ()");
    m.def("dropout_mask(Tensor seed, float dropout_p, int batch, int heads, int S_q, int S_k) -> Tensor");
}

TASK_KERNELS(m) {
    m.impl("flash_attention", TORCH_BOX(&flash_attention));
    m.impl("flash_attention_rows", TORCH_BOX(&flash_attention_rows));
    m.impl("flash_attention_forward", TORCH_BOX(&flash_attention_forward));
    m.impl("flash_attention_kernel", TORCH_BOX(&flash_attention_kernel));
    m.impl("flash_attention_backward", TORCH_BOX(&flash_attention_backward));
    m.impl("flash_attention_backward_kernel", TORCH_BOX(&flash_attention_backward_kernel));
    m.impl("packed_attention", TORCH_BOX(&packed_attention));
    m.impl("packed_attention_kernel", TORCH_BOX(&packed_attention_kernel));
    m.impl("packed_attention_backward", TORCH_BOX(&packed_attention_backward));
    m.impl("block_attention", TORCH_BOX(&block_attention));
    m.impl("block_attention_backward", TORCH_BOX(&block_attention_backward));
    m.impl("flash_merge", TORCH_BOX(&merge));
    m.impl("dropout_mask", TORCH_BOX(&dropout_mask_operator));
}
