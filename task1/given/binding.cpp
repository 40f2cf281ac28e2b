// binding.cpp - the operators of task 1: check the arguments, allocate the output, call the launch functions. Given.
//
//   attention_scores(query, key, causal, scale=None, mask=None) -> scores
//   softmax(x) -> y                                                       x, y [rows, cols], float32
//   attention_output(weights, value) -> out
//   naive_attention(query, key, value, causal, scale=None, mask=None) -> out
//
//       query, out        [batch, heads, S_q, head_dim]     float32, float16 or bfloat16, all of the same type
//       key, value        [batch, heads, S_k, head_dim]
//       scores, weights   [batch, heads, S_q, S_k]          float32
//       scale is 1 / sqrt(head_dim) unless given; mask: see common/cuda/attention_mask.cuh
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <optional>
#include <type_traits>

#include "common/cuda/attention_binding.h"
#include "task1/given/naive_attention.h"

using torch::headeronly::ScalarType;

namespace {

// Calls run(std::type_identity<T>()), where T is the element type of x.
template <typename Run>
void with_type(const Tensor& x, Run run) {
    if (x.scalar_type() == ScalarType::Float)
        run(std::type_identity<float>());
    else if (x.scalar_type() == ScalarType::Half)
        run(std::type_identity<__half>());
    else
        run(std::type_identity<__nv_bfloat16>());
}

// One thread computes one element, so rows * cols threads must fit in a grid.
void check_threads(int64_t rows, int64_t cols, const Tensor& a, const char* a_name, const Tensor& b,
                   const char* b_name) {
    check(rows <= MAX_THREADS / cols, a_name, " has shape ", shape_of(a), " and ", b_name, " has shape ", shape_of(b),
          ": one thread for each of ", rows, " x ", cols, " elements; at most ", MAX_THREADS, " are supported");
}

Tensor scores_operator(const Tensor& query, const Tensor& key, bool causal, std::optional<double> scale,
                       const std::optional<Tensor>& mask) {
    check_float_type(query, "query");
    check_query_key(query, key, query.scalar_type());
    const int64_t batch_heads = query.size(0) * query.size(1), S_q = query.size(2), S_k = key.size(2);
    check_threads(batch_heads * S_q, S_k, query, "query", key, "key");
    const float factor = attention_scale(scale, query.size(3));
    const AttentionMask device_mask = attention_mask(mask, query, key);

    DeviceScope device(query);
    Tensor scores = new_output(query, "scores", {query.size(0), query.size(1), S_q, S_k}, ScalarType::Float);
    with_type(query, [&](auto type) {
        using T = typename decltype(type)::type;
        launch_scores(data<const T>(query), data<const T>(key), data<float>(scores), batch_heads, S_q, S_k,
                      query.size(3), factor, causal, device_mask, current_stream(query));
    });
    return scores;
}

Tensor softmax_operator(const Tensor& x) {
    check_tensor(x, "x", {"rows", "cols"});
    DeviceScope device(x);
    Tensor y = new_output(x, "y", {x.size(0), x.size(1)});
    launch_softmax(data<float>(x), data<float>(y), x.size(0), x.size(1), current_stream(x));
    return y;
}

Tensor output_operator(const Tensor& weights, const Tensor& value) {
    check_float_type(value, "value");
    check_tensor(weights, "weights", {"batch", "heads", "S_q", "S_k"});
    check_tensor(value, "value", {"batch", "heads", "S_k", "head_dim"}, value.scalar_type());
    check_same_device(weights, "weights", value, "value");
    for (int64_t i : {0, 1}) check_same_size(weights, "weights", i, value, "value", i);
    check_same_size(weights, "weights", 3, value, "value", 2);
    const int64_t batch_heads = value.size(0) * value.size(1), S_q = weights.size(2), head_dim = value.size(3);
    check_threads(batch_heads * S_q, head_dim, weights, "weights", value, "value");

    DeviceScope device(value);
    Tensor out = new_output(value, "out", {value.size(0), value.size(1), S_q, head_dim});
    with_type(value, [&](auto type) {
        using T = typename decltype(type)::type;
        launch_output(data<const float>(weights), data<const T>(value), data<T>(out), batch_heads, S_q,
                      value.size(2), head_dim, current_stream(value));
    });
    return out;
}

Tensor naive_attention_operator(const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
                                std::optional<double> scale, const std::optional<Tensor>& mask) {
    check_float_type(query, "query");
    check_query_key_value(query, key, value, query.scalar_type());
    const int64_t batch_heads = query.size(0) * query.size(1), S_q = query.size(2), S_k = key.size(2);
    const int64_t head_dim = query.size(3);
    check_threads(batch_heads * S_q, std::max(S_k, head_dim), query, "query", key, "key");
    const float factor = attention_scale(scale, head_dim);
    const AttentionMask device_mask = attention_mask(mask, query, key);

    DeviceScope device(query);
    Tensor out = new_output(query, "out", {query.size(0), query.size(1), S_q, head_dim});
    Tensor scores = new_output(query, "scores", {query.size(0), query.size(1), S_q, S_k}, ScalarType::Float);
    with_type(query, [&](auto type) {
        using T = typename decltype(type)::type;
        naive_attention(data<const T>(query), data<const T>(key), data<const T>(value), data<float>(scores),
                        data<T>(out), batch_heads, S_q, S_k, head_dim, factor, causal, device_mask,
                        current_stream(query));
    });
    return out;
}

}  // namespace

TASK_OPERATORS(m) {
    m.def(
        "attention_scores(Tensor query, Tensor key, bool causal, float? scale=None, Tensor? mask=None) -> Tensor");
    m.def("softmax(Tensor x) -> Tensor");
    m.def("attention_output(Tensor weights, Tensor value) -> Tensor");
    m.def(
        "naive_attention(Tensor query, Tensor key, Tensor value, bool causal, float? scale=None, Tensor? mask=None) "
        "-> Tensor");
}

TASK_KERNELS(m) {
    m.impl("attention_scores", TORCH_BOX(&scores_operator));
    m.impl("softmax", TORCH_BOX(&softmax_operator));
    m.impl("attention_output", TORCH_BOX(&output_operator));
    m.impl("naive_attention", TORCH_BOX(&naive_attention_operator));
}
