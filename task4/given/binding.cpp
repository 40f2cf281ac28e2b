// binding.cpp - checks the arguments of flash_attention and registers it as an operator. Nothing to do here.
#include <optional>

#include "common/cuda/attention_binding.h"
#include "task4/given/flash_attention.h"

namespace {

Tensor flash_attention(const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
                       std::optional<double> scale, bool lower_right) {
    check_query_key_value(query, key, value);
    const int64_t batch_heads = query.size(0) * query.size(1);
    const int64_t S_q = query.size(2), S_k = key.size(2), head_dim = query.size(3);
    check(head_dim <= MAX_HEAD_DIM, "query has head_dim = ", head_dim, "; it must be 1 .. ", MAX_HEAD_DIM);
    const float factor = attention_scale(scale, head_dim);
    const int64_t diagonal = lower_right ? S_k - S_q : 0;  // with causal, query i sees the keys j <= i + diagonal

    DeviceScope device(query);
    Tensor out = new_output(query, "out", {query.size(0), query.size(1), query.size(2), query.size(3)});
    custom_flash_attention(data<float>(query), data<float>(key), data<float>(value), data<float>(out),
                           batch_heads, S_q, S_k, static_cast<int>(head_dim), factor, causal, diagonal,
                           current_stream(query));
    return out;
}

}  // namespace

TASK_OPERATORS(m) {
    m.def(
        "flash_attention(Tensor query, Tensor key, Tensor value, bool causal, float? scale=None, "
        "bool lower_right=False) -> Tensor");
}

TASK_KERNELS(m) { m.impl("flash_attention", TORCH_BOX(&flash_attention)); }
