// binding.cpp - checks the arguments of strided_attention and registers it as an operator. Nothing to do here.
#include <optional>

#include "common/cuda/attention_binding.h"
#include "task5/strided_attention.h"

namespace {

Tensor strided_attention(const Tensor& query, const Tensor& key, const Tensor& value, int64_t stride, int64_t offset,
                         bool causal, std::optional<double> scale) {
    check_query_key_value(query, key, value);
    const int64_t batch_heads = query.size(0) * query.size(1);
    const int64_t S_q = query.size(2), S_k = key.size(2), head_dim = query.size(3);
    check(head_dim <= MAX_HEAD_DIM, "query has head_dim = ", head_dim, "; it must be 1 .. ", MAX_HEAD_DIM);
    check(stride >= 1 && stride <= S_k, "stride is ", stride, "; it must be 1 .. S_k = ", S_k);
    check(offset >= 0 && offset < stride, "offset is ", offset, "; it must be 0 .. stride - 1 = ", stride - 1);
    const float factor = attention_scale(scale, head_dim);

    DeviceScope device(query);
    Tensor out = new_output(query, "out", {query.size(0), query.size(1), query.size(2), query.size(3)});
    custom_strided_attention(data<float>(query), data<float>(key), data<float>(value), data<float>(out), batch_heads,
                             S_q, S_k, static_cast<int>(head_dim), stride, offset, causal, factor,
                             current_stream(query));
    return out;
}

}  // namespace

TASK_OPERATORS(m) {
    m.def(
        "strided_attention(Tensor query, Tensor key, Tensor value, int stride, int offset=0, bool causal=False, "
        "float? scale=None) -> Tensor");
}

TASK_KERNELS(m) { m.impl("strided_attention", TORCH_BOX(&strided_attention)); }
