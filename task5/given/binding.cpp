// binding.cpp - checks the arguments of task 5's operators and registers them. You don't need to change anything here.
#include <algorithm>
#include <optional>
#include <tuple>

#include "common/cuda/attention_binding.h"
#include "common/cuda/pattern_arguments.h"
#include "task5/given/sparse_attention.h"
#include "task5/given/strided_attention.h"

namespace {

using torch::headeronly::ScalarType;

void check_attention(const Tensor& query, const Tensor& key, const Tensor& value) {
    check_query_key_value(query, key, value);
    const int64_t head_dim = query.size(3);
    check(head_dim <= MAX_HEAD_DIM, "query has head_dim = ", head_dim, "; it must be 1 .. ", MAX_HEAD_DIM);
}

// out, with the shape of query
Tensor new_out(const Tensor& query) {
    return new_output(query, "out", {query.size(0), query.size(1), query.size(2), query.size(3)});
}

Tensor strided_attention(const Tensor& query, const Tensor& key, const Tensor& value, int64_t stride, int64_t offset,
                         bool causal, std::optional<double> scale) {
    check_attention(query, key, value);
    const int64_t batch_heads = query.size(0) * query.size(1);
    const int64_t S_q = query.size(2), S_k = key.size(2), head_dim = query.size(3);
    check_stride(stride, offset, S_k);
    const float factor = attention_scale(scale, head_dim);

    DeviceScope device(query);
    Tensor out = new_out(query);
    custom_strided_attention(data<float>(query), data<float>(key), data<float>(value), data<float>(out), batch_heads,
                             S_q, S_k, static_cast<int>(head_dim), stride, offset, causal, factor,
                             current_stream(query));
    return out;
}

Tensor sliding_window_attention(const Tensor& query, const Tensor& key, const Tensor& value, int64_t window,
                                bool causal, std::optional<double> scale) {
    check_attention(query, key, value);
    const int64_t batch_heads = query.size(0) * query.size(1);
    const int64_t S_q = query.size(2), S_k = key.size(2), head_dim = query.size(3);
    check_window(window);
    const float factor = attention_scale(scale, head_dim);

    DeviceScope device(query);
    Tensor out = new_out(query);
    custom_sliding_window_attention(data<float>(query), data<float>(key), data<float>(value), data<float>(out),
                                    batch_heads, S_q, S_k, static_cast<int>(head_dim),
                                    std::min(window, std::max(S_q, S_k)), causal, factor, current_stream(query));
    return out;
}

std::tuple<Tensor, Tensor> compress_block_mask(const Tensor& block_mask) {
    check_tensor(block_mask, "block_mask", {"heads", "S_q / block", "S_k / block"}, ScalarType::Bool);
    const int64_t heads = block_mask.size(0), q_blocks = block_mask.size(1), k_blocks = block_mask.size(2);

    DeviceScope device(block_mask);
    Tensor counts = new_output(block_mask, "counts", {heads, q_blocks}, ScalarType::Int);
    Tensor columns = new_output(block_mask, "columns", {heads, q_blocks, k_blocks}, ScalarType::Int);
    custom_compress_block_mask(data<bool>(block_mask), data<int>(counts), data<int>(columns), heads * q_blocks,
                               static_cast<int>(k_blocks), current_stream(block_mask));
    return {counts, columns};
}

Tensor block_sparse_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& counts,
                              const Tensor& columns, int64_t block, bool causal, std::optional<double> scale) {
    check_attention(query, key, value);
    const int64_t heads = query.size(1), batch_heads = query.size(0) * heads;
    const int64_t S_q = query.size(2), S_k = key.size(2), head_dim = query.size(3);
    check_blocks(counts, columns, block, query, key);
    const float factor = attention_scale(scale, head_dim);

    DeviceScope device(query);
    Tensor out = new_out(query);
    custom_block_sparse_attention(data<float>(query), data<float>(key), data<float>(value), data<float>(out),
                                  data<int>(counts), data<int>(columns), batch_heads, static_cast<int>(heads), S_q,
                                  S_k, static_cast<int>(head_dim), static_cast<int>(block), causal, factor,
                                  current_stream(query));
    return out;
}

}  // namespace

TASK_OPERATORS(m) {
    m.def(
        "strided_attention(Tensor query, Tensor key, Tensor value, int stride, int offset=0, bool causal=False, "
        "float? scale=None) -> Tensor");
    m.def(
        "sliding_window_attention(Tensor query, Tensor key, Tensor value, int window, bool causal=True, "
        "float? scale=None) -> Tensor");
    m.def("compress_block_mask(Tensor block_mask) -> (Tensor, Tensor)");
    m.def(
        "block_sparse_attention(Tensor query, Tensor key, Tensor value, Tensor counts, Tensor columns, int block, "
        "bool causal=False, float? scale=None) -> Tensor");
}

TASK_KERNELS(m) {
    m.impl("strided_attention", TORCH_BOX(&strided_attention));
    m.impl("sliding_window_attention", TORCH_BOX(&sliding_window_attention));
    m.impl("compress_block_mask", TORCH_BOX(&compress_block_mask));
    m.impl("block_sparse_attention", TORCH_BOX(&block_sparse_attention));
}
