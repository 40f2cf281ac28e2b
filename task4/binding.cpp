// binding.cpp - checks the arguments of flash_attention and registers it as an operator. Nothing to do here.
#include <cmath>
#include <optional>

#include "common/cuda/binding.h"
#include "task4/flash_attention.h"

namespace {

Tensor flash_attention(const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
                       std::optional<double> scale) {
    check_tensor(query, "query", {"batch", "heads", "S_q", "head_dim"});
    check_tensor(key, "key", {"batch", "heads", "S_k", "head_dim"});
    check_tensor(value, "value", {"batch", "heads", "S_k", "head_dim"});
    check_same_device(query, "query", key, "key");
    check_same_device(query, "query", value, "value");
    check_same_size(key, "key", 0, query, "query", 0);
    check_same_size(key, "key", 1, query, "query", 1);
    check_same_size(key, "key", 3, query, "query", 3);
    for (int64_t i = 0; i < 4; ++i) check_same_size(value, "value", i, key, "key", i);

    const int64_t batch_heads = query.size(0) * query.size(1);
    const int64_t S_q = query.size(2), S_k = key.size(2), head_dim = query.size(3);
    check(head_dim <= MAX_HEAD_DIM, "query has head_dim = ", head_dim, "; it must be 1 .. ", MAX_HEAD_DIM);
    check(!causal || S_q == S_k, "causal is True with S_q = ", S_q, " and S_k = ", S_k,
          "; a causal mask needs S_q == S_k");
    const double factor = scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
    check(std::isfinite(factor), "scale is ", factor, "; it must be a finite number");

    DeviceScope device(query);
    Tensor out = torch::stable::empty_like(query);
    custom_flash_attention(data<float>(query), data<float>(key), data<float>(value), data<float>(out),
                           batch_heads, S_q, S_k, static_cast<int>(head_dim), static_cast<float>(factor),
                           causal, current_stream(query));
    return out;
}

}  // namespace

TASK_OPERATORS(m) {
    m.def(
        "flash_attention(Tensor query, Tensor key, Tensor value, bool causal, float? scale=None) -> Tensor");
}

TASK_KERNELS(m) { m.impl("flash_attention", TORCH_BOX(&flash_attention)); }
