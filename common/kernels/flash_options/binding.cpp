// binding.cpp - the operators of attention with options, forward and backward.
//
//   options_attention(query, key, value, causal, scale, lower_right, mask, softcap, sinks, dropout_p, seed,
//       window_left, window_right) -> (out, lse)
//   options_attention_kernel(... the same ...) -> "wgmma", "mma" or "fp32": which kernel it would run
//   options_attention_backward(grad_out, query, key, value, out, lse, ... the same ...)
//       -> (grad_query, grad_key, grad_value, grad_sinks)
//   packed_attention(query, key, value, cu_seqlens_q, cu_seqlens_k, causal, scale, lower_right, softcap, sinks,
//       dropout_p, seed, window_left, window_right, deterministic) -> (out, lse)
//   packed_attention_kernel(... the same ...) -> as options_attention_kernel
//   packed_attention_backward(grad_out, query, key, value, out, lse, ... the same ...) -> four gradients, as above
//   block_attention(query, key, value, counts, columns, block, causal, scale) -> (out, lse)
//   block_attention_backward(grad_out, query, key, value, out, lse, ... the same ...)
//       -> (grad_query, grad_key, grad_value), of listed blocks of keys; shapes as of options_attention
//   dropout_mask(seed, dropout_p, batch, heads, S_q, S_k) -> kept
//
//                                       options_attention                    packed_attention
//   query, out, grad_out, grad_query    [batch, heads, S_q, head_dim]        [total_q, heads, head_dim]
//   key, value, grad_key, grad_value    [batch, kv_heads, S_k, head_dim]     [total_k, kv_heads, head_dim]
//   lse, float32                        [batch, heads, S_q]                  [heads, total_q]
//   sinks, grad_sinks                   [heads], float32; the gradient is zeros without sinks
//   mask                                bool or float32, broadcasts to [batch, heads, S_q, S_k]
//   counts, columns, int32              [heads, S_q / block], [heads, S_q / block, S_k / block]: how many blocks of keys
//                                       a block of queries sees, and their numbers, ascending
//   cu_seqlens_q, cu_seqlens_k          [batch + 1], int32: sequence b has the rows cu_seqlens[b] ... cu_seqlens[b + 1]
//   seed                                [1], int64; needed where dropout_p is not 0
//   kept                                [batch, heads, S_q, S_k], bool
//   deterministic                       the gradient of query has the same bits every time
//   window_left, window_right           query i sees the keys i - window_left ... i + window_right, or with lower_right
//                                       as many further on as there are more keys than queries; -1: no such end
//
// Inputs may have any strides as long as their rows are contiguous; results are contiguous.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>

#include "common/cuda/attention_binding.h"
#include "common/cuda/pattern_arguments.h"
#include "common/kernels/flash_options/options.h"

namespace {

using torch::headeronly::ScalarType;
using OptionalTensor = std::optional<Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

Dropout checked_dropout(double dropout_p, const OptionalTensor& seed, const Tensor& beside, const char* beside_name) {
    check(dropout_p >= 0 && dropout_p < 1, "dropout_p is ", dropout_p, "; it must be 0 or more and less than 1");
    if (dropout_p == 0) return {nullptr, 0, 1.0f};
    check(seed.has_value(), "dropout_p is ", dropout_p, " and seed is None; dropout needs a seed");
    check_tensor(*seed, "seed", {"1"}, ScalarType::Long);
    check(seed->size(0) == 1, "seed has shape ", shape_of(*seed), "; it must be [1]");
    check_same_device(*seed, "seed", beside, beside_name);
    return dropout_of(dropout_p, data<int64_t>(*seed));
}

// What both kinds of sequences have.
void add_options(OptionsArguments& a, const Tensor& query, bool lower_right, double softcap, const OptionalTensor& sinks,
                 double dropout_p, const OptionalTensor& seed, int64_t window_left, int64_t window_right) {
    check_between(window_left, -1, MAX_POSITION, "window_left");
    check_between(window_right, -1, MAX_POSITION, "window_right");
    a.window_left = window_left, a.window_right = window_right;
    check(softcap >= 0 && softcap <= std::numeric_limits<float>::max(), "softcap is ", softcap,
          "; it must be 0 (none) or positive and finite");
    a.softcap = static_cast<float>(softcap);
    a.lower_right = lower_right;
    if (sinks) {
        check_tensor(*sinks, "sinks", {"heads"}, ScalarType::Float);
        check_same_size(*sinks, "sinks", 0, query, "query", 1);
        check_same_device(*sinks, "sinks", query, "query");
        a.sinks = data<float>(*sinks);
    }
    a.dropout = checked_dropout(dropout_p, seed, query, "query");
    a.type = float_type(query, "query");
}

OptionsArguments dense_arguments(const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
                                 std::optional<double> scale, bool lower_right, const OptionalTensor& mask,
                                 double softcap, const OptionalTensor& sinks, double dropout_p,
                                 const OptionalTensor& seed, int64_t window_left, int64_t window_right) {
    auto a = attention_arguments<OptionsArguments>(query, key, value, causal, scale, MAX_OPTIONS_HEAD_DIM);
    a.mask = attention_mask(mask, query, key);
    add_options(a, query, lower_right, softcap, sinks, dropout_p, seed, window_left, window_right);
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

OptionsArguments packed_arguments(const Tensor& query, const Tensor& key, const Tensor& value,
                                  const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k, bool causal,
                                  std::optional<double> scale, bool lower_right, double softcap,
                                  const OptionalTensor& sinks, double dropout_p, const OptionalTensor& seed,
                                  int64_t window_left, int64_t window_right) {
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
    check(head_dim <= MAX_OPTIONS_HEAD_DIM, "query has head_dim = ", head_dim, ", shape ", shape_of(query),
          "; it must be 1 .. ", MAX_OPTIONS_HEAD_DIM);
    OptionsArguments a = {};
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
    add_options(a, query, lower_right, softcap, sinks, dropout_p, seed, window_left, window_right);
    a.out_strides = {0, a.head_dim, a.heads * a.head_dim};
    return a;
}

OptionsArguments block_arguments(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& counts,
                                 const Tensor& columns, int64_t block, bool causal, std::optional<double> scale,
                                 BlockLists& lists) {
    auto a = attention_arguments<OptionsArguments>(query, key, value, causal, scale, MAX_BLOCK_HEAD_DIM);
    add_options(a, query, false, 0, {}, 0, {}, -1, -1);
    a.out_strides = {a.heads * a.S_q * a.head_dim, a.S_q * a.head_dim, a.head_dim};
    check_blocks(counts, columns, block, query, key);
    lists = {data<int>(counts), data<int>(columns), static_cast<int>(block)};
    return a;
}

// run(a): the forward pass. lse has lse_sizes.
template <typename Run>
std::tuple<Tensor, Tensor> forward(OptionsArguments& a, const Tensor& query, std::vector<int64_t> lse_sizes, Run run) {
    DeviceScope device(query);
    Tensor out = new_like(query, "out");
    Tensor lse = new_output(query, "lse", lse_sizes, ScalarType::Float);
    a.out = out.data_ptr(), a.lse = data<float>(lse);
    run(a);
    return {out, lse};
}

// run(g): the backward pass.
template <typename Run>
Gradients backward(const OptionsArguments& a, const Tensor& grad_out, const Tensor& query, const Tensor& key,
                   const Tensor& out, const Tensor& lse, RowStrides grad_out_strides, RowStrides grad_key_strides,
                   bool deterministic, Run run) {
    for (int64_t i = 0; i < query.dim(); ++i) check_same_size(grad_out, "grad_out", i, query, "query", i);
    for (int64_t i = 0; i < query.dim(); ++i) check_same_size(out, "out", i, query, "query", i);
    check_same_device(query, "query", grad_out, "grad_out");
    check_same_device(query, "query", out, "out");
    check_same_device(query, "query", lse, "lse");
    DeviceScope device(query);
    Tensor grad_query = new_like(query, "grad_query"), grad_key = new_like(key, "grad_key");
    Tensor grad_value = new_like(key, "grad_value");
    Tensor grad_sinks = new_output(query, "grad_sinks", {a.heads}, ScalarType::Float);
    Tensor delta = new_output(lse, "delta", {static_cast<int64_t>(lse.numel())});
    OptionsGradients g = {};
    g.forward = a;
    g.forward.out = out.data_ptr(), g.forward.lse = data<float>(lse);
    g.grad_out = grad_out.data_ptr(), g.grad_out_strides = grad_out_strides;
    g.grad_query = grad_query.data_ptr();
    g.grad_key = grad_key.data_ptr(), g.grad_value = grad_value.data_ptr(), g.grad_key_strides = grad_key_strides;
    g.grad_sinks = data<float>(grad_sinks), g.delta = data<float>(delta);
    g.deterministic = deterministic;
    run(g);
    return {grad_query, grad_key, grad_value, grad_sinks};
}

// options_backward with the memory that the kernel for Hopper GPUs needs.
void run_backward(OptionsGradients& g, const Tensor& beside) {
    std::optional<Tensor> workspace;
    if (const int64_t words = options_workspace(g)) {
        workspace = new_output(beside, "workspace", {words}, ScalarType::Float);
        g.workspace = data<float>(*workspace);
    }
    options_backward(g);
}

template <typename Run>
Gradients dense_backward(const OptionsArguments& a, const Tensor& grad_out, const Tensor& query, const Tensor& key,
                         const Tensor& out, const Tensor& lse, bool deterministic, Run run) {
    check_rows(grad_out, "grad_out", {"batch", "heads", "S_q", "head_dim"}, query.scalar_type());
    check_tensor(out, "out", {"batch", "heads", "S_q", "head_dim"}, query.scalar_type());
    check_tensor(lse, "lse", {"batch", "heads", "S_q"}, ScalarType::Float);
    for (int64_t i = 0; i < 3; ++i) check_same_size(lse, "lse", i, query, "query", i);
    return backward(a, grad_out, query, key, out, lse, row_strides(grad_out),
                    {a.kv_heads * a.S_k * a.head_dim, a.S_k * a.head_dim, a.head_dim}, deterministic, run);
}

std::string forward_kernel(const OptionsArguments& a, const Tensor& query) {
    DeviceScope device(query);
    if (a.type == FloatType::FLOAT32) return "fp32";
    return options_forward_wgmma(a, true) ? "wgmma" : "mma";
}

std::tuple<Tensor, Tensor> options_attention(const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
                                             std::optional<double> scale, bool lower_right, OptionalTensor mask,
                                             double softcap, OptionalTensor sinks, double dropout_p,
                                             OptionalTensor seed, int64_t window_left, int64_t window_right,
                                             bool /*deterministic*/) {
    auto a = dense_arguments(query, key, value, causal, scale, lower_right, mask, softcap, sinks, dropout_p, seed,
                             window_left, window_right);
    return forward(a, query, {a.batch, a.heads, a.S_q}, options_forward);
}

std::string options_attention_kernel(const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
                                     std::optional<double> scale, bool lower_right, OptionalTensor mask, double softcap,
                                     OptionalTensor sinks, double dropout_p, OptionalTensor seed, int64_t window_left,
                                     int64_t window_right) {
    return forward_kernel(dense_arguments(query, key, value, causal, scale, lower_right, mask, softcap, sinks, dropout_p,
                                          seed, window_left, window_right),
                          query);
}

Gradients options_attention_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                     const Tensor& value, const Tensor& out, const Tensor& lse, bool causal,
                                     std::optional<double> scale, bool lower_right, OptionalTensor mask, double softcap,
                                     OptionalTensor sinks, double dropout_p, OptionalTensor seed, int64_t window_left,
                                     int64_t window_right, bool deterministic) {
    const auto a = dense_arguments(query, key, value, causal, scale, lower_right, mask, softcap, sinks, dropout_p, seed,
                                   window_left, window_right);
    return dense_backward(a, grad_out, query, key, out, lse, deterministic,
                          [&](OptionsGradients& g) { run_backward(g, query); });
}

std::tuple<Tensor, Tensor> packed_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                            const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k, bool causal,
                                            std::optional<double> scale, bool lower_right, double softcap,
                                            OptionalTensor sinks, double dropout_p, OptionalTensor seed,
                                            int64_t window_left, int64_t window_right,
                                            bool /*deterministic*/) {
    auto a = packed_arguments(query, key, value, cu_seqlens_q, cu_seqlens_k, causal, scale, lower_right, softcap, sinks,
                              dropout_p, seed, window_left, window_right);
    return forward(a, query, {a.heads, a.S_q}, options_forward);
}

std::string packed_attention_kernel(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k, bool causal,
                                    std::optional<double> scale, bool lower_right, double softcap, OptionalTensor sinks,
                                    double dropout_p, OptionalTensor seed, int64_t window_left, int64_t window_right) {
    return forward_kernel(packed_arguments(query, key, value, cu_seqlens_q, cu_seqlens_k, causal, scale, lower_right,
                                           softcap, sinks, dropout_p, seed, window_left, window_right),
                          query);
}

Gradients packed_attention_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
                                    const Tensor& out, const Tensor& lse, const Tensor& cu_seqlens_q,
                                    const Tensor& cu_seqlens_k, bool causal, std::optional<double> scale,
                                    bool lower_right, double softcap, OptionalTensor sinks, double dropout_p,
                                    OptionalTensor seed, int64_t window_left, int64_t window_right, bool deterministic) {
    const auto a = packed_arguments(query, key, value, cu_seqlens_q, cu_seqlens_k, causal, scale, lower_right, softcap,
                                    sinks, dropout_p, seed, window_left, window_right);
    check_rows(grad_out, "grad_out", {"total_q", "heads", "head_dim"}, query.scalar_type());
    check_tensor(out, "out", {"total_q", "heads", "head_dim"}, query.scalar_type());
    check_tensor(lse, "lse", {"heads", "total_q"}, ScalarType::Float);
    for (int64_t i : {0, 1}) check_same_size(lse, "lse", i, query, "query", 1 - i);
    return backward(a, grad_out, query, key, out, lse, packed_strides(grad_out),
                    {0, a.head_dim, a.kv_heads * a.head_dim}, deterministic,
                    [&](OptionsGradients& g) { run_backward(g, query); });
}

std::tuple<Tensor, Tensor> block_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                           const Tensor& counts, const Tensor& columns, int64_t block, bool causal,
                                           std::optional<double> scale) {
    BlockLists lists;
    auto a = block_arguments(query, key, value, counts, columns, block, causal, scale, lists);
    return forward(a, query, {a.batch, a.heads, a.S_q}, [&](const OptionsArguments& given) {
        block_forward(given, lists);
    });
}

std::tuple<Tensor, Tensor, Tensor> block_attention_backward(const Tensor& grad_out, const Tensor& query,
                                                            const Tensor& key, const Tensor& value, const Tensor& out,
                                                            const Tensor& lse, const Tensor& counts,
                                                            const Tensor& columns, int64_t block, bool causal,
                                                            std::optional<double> scale) {
    BlockLists lists;
    const auto a = block_arguments(query, key, value, counts, columns, block, causal, scale, lists);
    const auto [of_query, of_key, of_value, none] =
        dense_backward(a, grad_out, query, key, out, lse, false, [&](const OptionsGradients& g) {
            const int64_t numbers = a.heads * (a.S_k / block) * (1 + a.S_q / block);
            Tensor transposed = new_output(query, "transposed", {numbers}, ScalarType::Int);
            block_backward(g, lists, data<int>(transposed));
        });
    return {of_query, of_key, of_value};
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

TASK_OPERATORS(m) {
    m.def(
        "options_attention(Tensor query, Tensor key, Tensor value, bool causal, float? scale=None, "
        "bool lower_right=False, Tensor? mask=None, float softcap=0.0, Tensor? sinks=None, float dropout_p=0.0, "
        "Tensor? seed=None, int window_left=-1, int window_right=-1, bool deterministic=False) -> (Tensor, Tensor)");
    m.def(
        "options_attention_kernel(Tensor query, Tensor key, Tensor value, bool causal, float? scale=None, "
        "bool lower_right=False, Tensor? mask=None, float softcap=0.0, Tensor? sinks=None, float dropout_p=0.0, "
        "Tensor? seed=None, int window_left=-1, int window_right=-1) -> str");
    m.def(
        "options_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, "
        "bool causal, float? scale=None, bool lower_right=False, Tensor? mask=None, float softcap=0.0, "
        "Tensor? sinks=None, float dropout_p=0.0, Tensor? seed=None, int window_left=-1, int window_right=-1, "
        "bool deterministic=False) -> (Tensor, Tensor, Tensor, Tensor)");
    m.def(
        "packed_attention(Tensor query, Tensor key, Tensor value, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
        "bool causal, float? scale=None, bool lower_right=True, float softcap=0.0, Tensor? sinks=None, "
        "float dropout_p=0.0, Tensor? seed=None, int window_left=-1, int window_right=-1, bool deterministic=False) "
        "-> (Tensor, Tensor)");
    m.def(
        "packed_attention_kernel(Tensor query, Tensor key, Tensor value, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
        "bool causal, float? scale=None, bool lower_right=True, float softcap=0.0, Tensor? sinks=None, "
        "float dropout_p=0.0, Tensor? seed=None, int window_left=-1, int window_right=-1) -> str");
    m.def(
        "packed_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, "
        "Tensor cu_seqlens_q, Tensor cu_seqlens_k, bool causal, float? scale=None, bool lower_right=True, "
        "float softcap=0.0, Tensor? sinks=None, float dropout_p=0.0, Tensor? seed=None, "
        "int window_left=-1, int window_right=-1, bool deterministic=False) -> (Tensor, Tensor, Tensor, Tensor)");
    m.def(
        "block_attention(Tensor query, Tensor key, Tensor value, Tensor counts, Tensor columns, int block, "
        "bool causal=False, float? scale=None) -> (Tensor, Tensor)");
    m.def(
        "block_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, "
        "Tensor counts, Tensor columns, int block, bool causal=False, float? scale=None) "
        "-> (Tensor, Tensor, Tensor)");
    m.def("dropout_mask(Tensor seed, float dropout_p, int batch, int heads, int S_q, int S_k) -> Tensor");
}

TASK_KERNELS(m) {
    m.impl("options_attention", TORCH_BOX(&options_attention));
    m.impl("options_attention_kernel", TORCH_BOX(&options_attention_kernel));
    m.impl("options_attention_backward", TORCH_BOX(&options_attention_backward));
    m.impl("packed_attention", TORCH_BOX(&packed_attention));
    m.impl("packed_attention_kernel", TORCH_BOX(&packed_attention_kernel));
    m.impl("packed_attention_backward", TORCH_BOX(&packed_attention_backward));
    m.impl("block_attention", TORCH_BOX(&block_attention));
    m.impl("block_attention_backward", TORCH_BOX(&block_attention_backward));
    m.impl("dropout_mask", TORCH_BOX(&dropout_mask_operator));
}
