// attention_binding.h - argument checks shared by the bindings of all attention operators.
//
//   check_query_key(query, key)                   query [batch, heads, S_q, head_dim], key with S_k
//   check_query_key_value(query, key, value)      the same; value has the shape of key
//   check_grouped_query_key_value(query, key, value)     float32, float16 or bfloat16; contiguous rows, otherwise any
//                                                        strides; key and value may have fewer heads
//   attention_arguments<Arguments>(query, key, value, causal, scale, max_head_dim)
//                                                 the same checks, then an AttentionArguments filled from the tensors
//   row_strides(x)                                the strides of [batch, heads, rows, head_dim]
//   attention_scale(scale, head_dim)              the scale applied to the scores: 1 / sqrt(head_dim) unless given
//   attention_mask(mask, query, key)              the mask argument, checked and converted for kernels
#pragma once
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>

#include "common/cuda/attention_arguments.h"
#include "common/cuda/attention_mask.cuh"
#include "common/cuda/binding.h"
#include "common/cuda/row_strides.h"

inline void check_query_key(const Tensor& query, const Tensor& key,
                            torch::headeronly::ScalarType dtype = torch::headeronly::ScalarType::Float) {
    check_tensor(query, "query", {"batch", "heads", "S_q", "head_dim"}, dtype);
    check_tensor(key, "key", {"batch", "heads", "S_k", "head_dim"}, dtype);
    check_same_device(query, "query", key, "key");
    for (int64_t i : {0, 1, 3}) check_same_size(key, "key", i, query, "query", i);
}

inline void check_query_key_value(const Tensor& query, const Tensor& key, const Tensor& value,
                                  torch::headeronly::ScalarType dtype = torch::headeronly::ScalarType::Float) {
    check_query_key(query, key, dtype);
    check_tensor(value, "value", {"batch", "heads", "S_k", "head_dim"}, dtype);
    check_same_device(query, "query", value, "value");
    for (int64_t i = 0; i < 4; ++i) check_same_size(value, "value", i, key, "key", i);
}

// Accepts only query [batch, heads, S_q, head_dim] and key and value [batch, kv_heads, S_k, head_dim] with contiguous
// rows, heads a multiple of kv_heads, and one dtype for all: float32, float16 or bfloat16.
inline void check_grouped_query_key_value(const Tensor& query, const Tensor& key, const Tensor& value) {
    const auto dtype = query.scalar_type();
    check_float_type(query, "query");
    check_rows(query, "query", {"batch", "heads", "S_q", "head_dim"}, dtype);
    check_rows(key, "key", {"batch", "kv_heads", "S_k", "head_dim"}, dtype);
    check_rows(value, "value", {"batch", "kv_heads", "S_k", "head_dim"}, dtype);
    check_same_device(query, "query", key, "key");
    check_same_device(query, "query", value, "value");
    for (int64_t i : {0, 3}) check_same_size(key, "key", i, query, "query", i);
    for (int64_t i = 0; i < 4; ++i) check_same_size(value, "value", i, key, "key", i);
    check(query.size(1) % key.size(1) == 0, "query has ", query.size(1), " heads, shape ", shape_of(query),
          ", and key ", key.size(1), ", shape ", shape_of(key),
          "; the number of heads of query must be a multiple of key's");
}

inline float attention_scale(std::optional<double> scale, int64_t head_dim) {
    const double factor = scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
    check(std::abs(factor) <= std::numeric_limits<float>::max(), "scale is ", factor,
          "; it must be finite as a float32");
    return static_cast<float>(factor);
}

inline RowStrides row_strides(const Tensor& x) { return {stride_of(x, 0), stride_of(x, 1), stride_of(x, 2)}; }

// Arguments: an AttentionArguments with `causal` and `stream`. Fills these and all of AttentionArguments except out and
// lse; the caller sets the rest. Call it before new_output(), so that bad arguments allocate nothing.
template <typename Arguments>
Arguments attention_arguments(const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
                              std::optional<double> scale, int max_head_dim) {
    check_grouped_query_key_value(query, key, value);
    const int64_t head_dim = query.size(3);
    check(head_dim <= max_head_dim, "query has head_dim = ", head_dim, ", shape ", shape_of(query),
          "; it must be 1 .. ", max_head_dim);
    Arguments arguments = {};
    arguments.query = query.data_ptr();
    arguments.key = key.data_ptr();
    arguments.value = value.data_ptr();
    arguments.query_strides = row_strides(query);
    arguments.key_strides = row_strides(key);
    arguments.value_strides = row_strides(value);
    arguments.batch = query.size(0);
    arguments.heads = query.size(1);
    arguments.kv_heads = key.size(1);
    arguments.S_q = query.size(2);
    arguments.S_k = key.size(2);
    arguments.head_dim = static_cast<int>(head_dim);
    arguments.scale = attention_scale(scale, head_dim);
    arguments.causal = causal;
    arguments.stream = current_stream(query);
    return arguments;
}

// Refuses a mask that is neither bool nor float32, is not on the query's device, or does not broadcast to
// [batch, heads, S_q, S_k]. Strides are arbitrary: a mask may be expanded or transposed.
inline AttentionMask attention_mask(const std::optional<Tensor>& mask, const Tensor& query, const Tensor& key) {
    AttentionMask result;
    if (!mask) return result;
    const Tensor& x = *mask;
    const int64_t sizes[] = {query.size(0), query.size(1), query.size(2), key.size(2)};
    int64_t* strides[] = {&result.batch_stride, &result.head_stride, &result.query_stride, &result.key_stride};
    const char* names[] = {"batch", "heads", "S_q", "S_k"};
    const torch::headeronly::IntHeaderOnlyArrayRef whole(sizes, 4);

    const auto dtype = x.scalar_type();
    const bool is_bool = dtype == torch::headeronly::ScalarType::Bool;
    check(is_bool || dtype == torch::headeronly::ScalarType::Float, "mask has dtype ",
          torch::headeronly::toString(dtype), "; it must be Bool (true: attend) or Float (added to the scores)");
    check(x.dim() >= 2 && x.dim() <= 4, "mask has ", x.dim(), " dimensions, shape ", shape_of(x),
          "; it must have 2 to 4 and broadcast to [batch, heads, S_q, S_k] = ", whole);
    check(x.is_cpu() == query.is_cpu(), "mask is ", x.is_cpu() ? "on the CPU" : "not on the CPU",
          "; it must be on the device of query");
    check_same_device(x, "mask", query, "query");
    for (int64_t i = 4 - x.dim(); i < 4; ++i) {  // dimensions are matched from the last, as in PyTorch
        const int64_t at = i - (4 - x.dim()), size = x.size(at);
        check(size == 1 || size == sizes[i], "mask has shape ", shape_of(x), ", which does not broadcast to ",
              "[batch, heads, S_q, S_k] = ", whole, ": dimension ", at, " must be 1 or ", names[i], " = ", sizes[i]);
        *strides[i] = stride_of(x, at);
    }
    register_strided_with_checker(x, "mask");
    result.kind = is_bool ? MaskKind::BOOL : MaskKind::FLOAT;
    result.data = x.data_ptr();
    result.heads = query.size(1);
    return result;
}
