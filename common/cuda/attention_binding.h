// attention_binding.h - what the bindings of all attention operators check.
//
//   check_attention(query, key, value, causal)    query [batch, heads, S_q, head_dim], key and value with S_k
//   attention_scale(scale, head_dim)              the factor on the scores: 1 / sqrt(head_dim) unless given
#pragma once
#include <cmath>
#include <limits>
#include <optional>

#include "common/cuda/binding.h"

inline void check_attention(const Tensor& query, const Tensor& key, const Tensor& value, bool causal) {
    check_tensor(query, "query", {"batch", "heads", "S_q", "head_dim"});
    check_tensor(key, "key", {"batch", "heads", "S_k", "head_dim"});
    check_tensor(value, "value", {"batch", "heads", "S_k", "head_dim"});
    check_same_device(query, "query", key, "key");
    check_same_device(query, "query", value, "value");
    for (int64_t i : {0, 1, 3}) check_same_size(key, "key", i, query, "query", i);
    for (int64_t i = 0; i < 4; ++i) check_same_size(value, "value", i, key, "key", i);
    check(!causal || query.size(2) == key.size(2), "causal is true with S_q = ", query.size(2), " (query has shape ",
          shape_of(query), ") and S_k = ", key.size(2), " (key has shape ", shape_of(key),
          "); causal attention needs S_q == S_k");
}

inline float attention_scale(std::optional<double> scale, int64_t head_dim) {
    const double factor = scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
    check(std::abs(factor) <= std::numeric_limits<float>::max(), "scale is ", factor,
          "; it must be finite as a float32");
    return static_cast<float>(factor);
}
