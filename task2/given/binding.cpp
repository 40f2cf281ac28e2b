// binding.cpp - the operators of task 2: check the arguments, allocate the output, call the launchers.
//
//   row_sum(x) -> sums                 x [rows, cols], sums [rows]
//   softmax(x) -> y                    x, y [rows, cols]
//   gemm_nn(a, b) -> c                 a [batch, M, K], b [batch, K, N], c [batch, M, N]
//   gemm_nt(a, b) -> c                 a [batch, M, K], b [batch, N, K], c [batch, M, N]
//   attention(query, key, value, causal, scale=None, mask=None) -> out
//       query, out [batch, heads, S_q, head_dim]; key, value [batch, heads, S_k, head_dim]
//       scale is 1 / sqrt(head_dim) unless given; mask: see common/cuda/attention_mask.cuh
#include <optional>

#include "common/cuda/attention_binding.h"
#include "task2/given/attention_kernel.h"

namespace {

constexpr const char* TILE_POSITIONS = "tile positions are 32-bit integers";
constexpr const char* COLUMN_TILES = "a grid has at most 65,535 tiles of 32 columns";

Tensor row_sum_operator(const Tensor& x) {
    check_tensor(x, "x", {"rows", "cols"});
    check_at_most(x.size(0), MAX_ROW_BLOCKS, "rows", x, "x", "a grid has at most that many blocks");
    check_at_most(x.size(1), MAX_SOFTMAX_COLS, "cols", x, "x", "task 2 promises no longer rows");
    DeviceScope device(x);
    Tensor sums = new_output(x, "sums", {x.size(0)});
    row_sum(data<float>(x), data<float>(sums), x.size(0), static_cast<int>(x.size(1)), current_stream(x));
    return sums;
}

Tensor softmax_operator(const Tensor& x) {
    check_tensor(x, "x", {"rows", "cols"});
    check_at_most(x.size(0), MAX_ROW_BLOCKS, "rows", x, "x", "a grid has at most that many blocks");
    check_at_most(x.size(1), MAX_SOFTMAX_COLS, "cols", x, "x", "task 2 promises no longer rows");
    DeviceScope device(x);
    Tensor y = new_output(x, "y", {x.size(0), x.size(1)});
    softmax(data<float>(x), data<float>(y), x.size(0), static_cast<int>(x.size(1)), current_stream(x));
    return y;
}

// N is dimension `n` of b, K the other one.
Tensor gemm_operator(const Tensor& a, const Tensor& b, int64_t n, decltype(&gemm_nn) launch) {
    check_tensor(a, "a", {"batch", "M", "K"});
    check_same_device(a, "a", b, "b");
    check_same_size(a, "a", 0, b, "b", 0);
    check_same_size(a, "a", 2, b, "b", 3 - n);
    const int64_t batch = a.size(0), M = a.size(1), K = a.size(2), N = b.size(n);
    check_at_most(M, MAX_GEMM_SIZE, "M", a, "a", TILE_POSITIONS);
    check_at_most(K, MAX_GEMM_SIZE, "K", a, "a", TILE_POSITIONS);
    check_at_most(N, MAX_GEMM_N, "N", b, "b", COLUMN_TILES);
    DeviceScope device(a);
    Tensor c = new_output(a, "c", {batch, M, N});
    launch(data<float>(a), data<float>(b), data<float>(c), batch, static_cast<int>(M), static_cast<int>(N),
           static_cast<int>(K), current_stream(a));
    return c;
}

Tensor gemm_nn_operator(const Tensor& a, const Tensor& b) {
    check_tensor(b, "b", {"batch", "K", "N"});
    return gemm_operator(a, b, 2, &gemm_nn);
}

Tensor gemm_nt_operator(const Tensor& a, const Tensor& b) {
    check_tensor(b, "b", {"batch", "N", "K"});
    return gemm_operator(a, b, 1, &gemm_nt);
}

Tensor attention_operator(const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
                          std::optional<double> scale, const std::optional<Tensor>& mask) {
    check_query_key_value(query, key, value);
    const int64_t S_q = query.size(2), S_k = key.size(2), head_dim = query.size(3);
    check_at_most(S_k, MAX_SOFTMAX_COLS, "S_k", key, "key", "the softmax takes rows of up to 65,536 columns");
    check_at_most(S_q, MAX_GEMM_SIZE, "S_q", query, "query", TILE_POSITIONS);
    check_at_most(head_dim, MAX_GEMM_N, "head_dim", query, "query", COLUMN_TILES);
    const int64_t batch_heads = query.size(0) * query.size(1);
    check(batch_heads <= MAX_ROW_BLOCKS / S_q, "query has shape ", shape_of(query),
          ", so batch * heads * S_q is over ", MAX_ROW_BLOCKS,
          "; the softmax runs one block per row, and a grid has at most that many");
    const float factor = attention_scale(scale, head_dim);
    const AttentionMask device_mask = attention_mask(mask, query, key);

    DeviceScope device(query);
    Tensor out = new_output(query, "out", {query.size(0), query.size(1), S_q, head_dim});
    Tensor scores = new_output(query, "scores", {batch_heads, S_q, S_k});
    custom_attention(data<float>(query), data<float>(key), data<float>(value), data<float>(scores),
                     data<float>(out), batch_heads, static_cast<int>(S_q), static_cast<int>(S_k),
                     static_cast<int>(head_dim), factor, causal, device_mask, current_stream(query));
    return out;
}

}  // namespace

TASK_OPERATORS(m) {
    m.def("row_sum(Tensor x) -> Tensor");
    m.def("softmax(Tensor x) -> Tensor");
    m.def("gemm_nn(Tensor a, Tensor b) -> Tensor");
    m.def("gemm_nt(Tensor a, Tensor b) -> Tensor");
    m.def(
        "attention(Tensor query, Tensor key, Tensor value, bool causal, float? scale=None, Tensor? mask=None) "
        "-> Tensor");
}

TASK_KERNELS(m) {
    m.impl("row_sum", TORCH_BOX(&row_sum_operator));
    m.impl("softmax", TORCH_BOX(&softmax_operator));
    m.impl("gemm_nn", TORCH_BOX(&gemm_nn_operator));
    m.impl("gemm_nt", TORCH_BOX(&gemm_nt_operator));
    m.impl("attention", TORCH_BOX(&attention_operator));
}
