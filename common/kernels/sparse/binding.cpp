// binding.cpp - the operators of sparse attention.
//
//   strided_attention(query, key, value, stride, offset, causal, scale) -> out
//   sliding_window_attention(query, key, value, window, causal, scale) -> out
//   block_sparse_attention(query, key, value, counts, columns, block, causal, scale) -> out
//   *_forward(... the same ...) -> (out, lse)
//   compress_block_mask(block_mask) -> (counts, columns)
//
//   query, out       [batch, heads, S_q, head_dim], float16 or bfloat16
//   key, value       [batch, kv_heads, S_k, head_dim]; heads is a multiple of kv_heads
//   lse              [batch, heads, S_q], float32: log(sum over keys of exp(score)); -infinity where no key is seen
//   block_mask       [heads, q_blocks, k_blocks], bool: true where a block of queries sees a block of keys
//   counts           [heads, q_blocks], int32: how many blocks of keys a block of queries sees
//   columns          [heads, q_blocks, k_blocks], int32: their indices in ascending order, then -1
//
// query, key and value may have any strides as long as their rows are contiguous; all else is contiguous. Hopper GPUs
// have their own kernel; calls that it does not support go to the general one.
#include <algorithm>
#include <tuple>

#include "common/cuda/attention_binding.h"
#include "common/cuda/pattern_arguments.h"
#include "common/kernels/sparse/sparse.h"

namespace {

using torch::headeronly::ScalarType;
using Pair = std::tuple<Tensor, Tensor>;

// Checks and sets everything except the pattern and the outputs. Call it before new_output(), so that nothing is
// allocated for invalid arguments.
SparseArguments checked_arguments(const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
                                  std::optional<double> scale) {
    const ScalarType dtype = query.scalar_type();
    check(dtype == ScalarType::Half || dtype == ScalarType::BFloat16, "query has dtype ",
          torch::headeronly::toString(dtype), "; it must be Half or BFloat16");
    SparseArguments arguments = attention_arguments<SparseArguments>(query, key, value, causal, scale, MAX_HEAD_DIM);
    arguments.key_step = 1;
    return arguments;
}

// The keys are rows offset, offset + stride, ... of key and value, read in place.
SparseArguments strided(const Tensor& query, const Tensor& key, const Tensor& value, int64_t stride, int64_t offset,
                        bool causal, std::optional<double> scale) {
    SparseArguments arguments = checked_arguments(query, key, value, causal, scale);
    const int64_t S_k = arguments.S_k;
    check_stride(stride, offset, S_k);
    arguments.S_k = (S_k - offset + stride - 1) / stride;
    arguments.key_step = stride;
    arguments.key_offset = offset;
    const auto begin = [&](const void*& rows, RowStrides& strides) {
        rows = static_cast<const char*>(rows) + offset * strides.row * 2;  // bytes of an element
        strides.row = arguments.S_k > 1 ? strides.row * stride : 0;
    };
    begin(arguments.key, arguments.key_strides);
    begin(arguments.value, arguments.value_strides);
    return arguments;
}

// A window that hides no key is treated as no window.
SparseArguments sliding_window(const Tensor& query, const Tensor& key, const Tensor& value, int64_t window, bool causal,
                               std::optional<double> scale) {
    SparseArguments arguments = checked_arguments(query, key, value, causal, scale);
    check_window(window);
    arguments.window = window < std::max(arguments.S_q, arguments.S_k) ? window : 0;
    return arguments;
}

SparseArguments block_sparse(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& counts,
                             const Tensor& columns, int64_t block, bool causal, std::optional<double> scale) {
    SparseArguments arguments = checked_arguments(query, key, value, causal, scale);
    check_blocks(counts, columns, block, query, key);
    arguments.counts = data<int>(counts);
    arguments.columns = data<int>(columns);
    arguments.block = static_cast<int>(block);
    return arguments;
}

Tensor attend(SparseArguments arguments, const Tensor& query) {
    DeviceScope device(query);
    Tensor out = new_like(query, "out");
    arguments.out = out.data_ptr();
    const bool bfloat16 = query.scalar_type() == ScalarType::BFloat16;
    if (hopper_forward(arguments, bfloat16)) return out;
    bfloat16 ? sparse_forward_bf16(arguments) : sparse_forward_fp16(arguments);
    return out;
}

Pair attend_with_lse(SparseArguments arguments, const Tensor& query) {
    Tensor lse = new_output(query, "lse", {query.size(0), query.size(1), query.size(2)}, ScalarType::Float);
    arguments.lse = data<float>(lse);
    return {attend(arguments, query), lse};
}

Tensor strided_attention(const Tensor& query, const Tensor& key, const Tensor& value, int64_t stride, int64_t offset,
                         bool causal, std::optional<double> scale) {
    return attend(strided(query, key, value, stride, offset, causal, scale), query);
}
Pair strided_attention_forward(const Tensor& query, const Tensor& key, const Tensor& value, int64_t stride,
                               int64_t offset, bool causal, std::optional<double> scale) {
    return attend_with_lse(strided(query, key, value, stride, offset, causal, scale), query);
}

Tensor sliding_window_attention(const Tensor& query, const Tensor& key, const Tensor& value, int64_t window,
                                bool causal, std::optional<double> scale) {
    return attend(sliding_window(query, key, value, window, causal, scale), query);
}
Pair sliding_window_attention_forward(const Tensor& query, const Tensor& key, const Tensor& value, int64_t window,
                                      bool causal, std::optional<double> scale) {
    return attend_with_lse(sliding_window(query, key, value, window, causal, scale), query);
}

Tensor block_sparse_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& counts,
                              const Tensor& columns, int64_t block, bool causal, std::optional<double> scale) {
    return attend(block_sparse(query, key, value, counts, columns, block, causal, scale), query);
}
Pair block_sparse_attention_forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& counts,
                                    const Tensor& columns, int64_t block, bool causal, std::optional<double> scale) {
    return attend_with_lse(block_sparse(query, key, value, counts, columns, block, causal, scale), query);
}

Pair compressed_block_mask(const Tensor& block_mask) {
    check_tensor(block_mask, "block_mask", {"heads", "S_q / block", "S_k / block"}, ScalarType::Bool);
    const int64_t heads = block_mask.size(0), q_blocks = block_mask.size(1), k_blocks = block_mask.size(2);
    DeviceScope device(block_mask);
    Tensor counts = new_output(block_mask, "counts", {heads, q_blocks}, ScalarType::Int);
    Tensor columns = new_output(block_mask, "columns", {heads, q_blocks, k_blocks}, ScalarType::Int);
    compress_block_mask(data<bool>(block_mask), data<int>(counts), data<int>(columns), heads * q_blocks, k_blocks,
                        current_stream(block_mask));
    return {counts, columns};
}

}  // namespace

TASK_OPERATORS(m) {
    m.def(
        "strided_attention(Tensor query, Tensor key, Tensor value, int stride, int offset=0, bool causal=False, "
        "float? scale=None) -> Tensor");
    m.def(
        "strided_attention_forward(Tensor query, Tensor key, Tensor value, int stride, int offset=0, "
        "bool causal=False, float? scale=None) -> (Tensor, Tensor)");
    m.def(
        "sliding_window_attention(Tensor query, Tensor key, Tensor value, int window, bool causal=True, "
        "float? scale=None) -> Tensor");
    m.def(
        "sliding_window_attention_forward(Tensor query, Tensor key, Tensor value, int window, bool causal=True, "
        "float? scale=None) -> (Tensor, Tensor)");
    m.def(
        "block_sparse_attention(Tensor query, Tensor key, Tensor value, Tensor counts, Tensor columns, int block, "
        "bool causal=False, float? scale=None) -> Tensor");
    m.def(
        "block_sparse_attention_forward(Tensor query, Tensor key, Tensor value, Tensor counts, Tensor columns, "
        "int block, bool causal=False, float? scale=None) -> (Tensor, Tensor)");
    m.def("compress_block_mask(Tensor block_mask) -> (Tensor, Tensor)");
}

TASK_KERNELS(m) {
    m.impl("strided_attention", TORCH_BOX(&strided_attention));
    m.impl("strided_attention_forward", TORCH_BOX(&strided_attention_forward));
    m.impl("sliding_window_attention", TORCH_BOX(&sliding_window_attention));
    m.impl("sliding_window_attention_forward", TORCH_BOX(&sliding_window_attention_forward));
    m.impl("block_sparse_attention", TORCH_BOX(&block_sparse_attention));
    m.impl("block_sparse_attention_forward", TORCH_BOX(&block_sparse_attention_forward));
    m.impl("compress_block_mask", TORCH_BOX(&compressed_block_mask));
}
