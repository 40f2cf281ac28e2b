// pattern_arguments.h - argument checks for the bindings of sparse attention: task 5's and common/kernels/sparse's.
//
//   check_stride(stride, offset, S_k)                        strided attention
//   check_window(window)                                     sliding window
//   check_blocks(counts, columns, block, query, key)         block-sparse attention
#pragma once
#include "common/cuda/binding.h"

inline void check_stride(int64_t stride, int64_t offset, int64_t S_k) {
    check(stride >= 1 && stride <= S_k, "stride is ", stride, "; it must be 1 .. S_k = ", S_k);
    check(offset >= 0 && offset < stride, "offset is ", offset, "; it must be 0 .. stride - 1 = ", stride - 1);
}

inline void check_window(int64_t window) { check(window >= 1, "window is ", window, "; it must be at least 1"); }

// Refuses a block size other than 32, 64, 96 or 128 or one that does not divide S_q and S_k, and lists that are not
// int32 of the right shape: counts [heads, S_q / block], columns [heads, S_q / block, S_k / block]. Does not check
// their contents.
inline void check_blocks(const Tensor& counts, const Tensor& columns, int64_t block, const Tensor& query,
                         const Tensor& key) {
    using torch::headeronly::ScalarType;
    const int64_t S_q = query.size(2), S_k = key.size(2);
    check(block == 32 || block == 64 || block == 96 || block == 128, "block is ", block,
          "; it must be 32, 64, 96 or 128");
    check(S_q % block == 0 && S_k % block == 0, "block is ", block, ", query has S_q = ", S_q, " and key S_k = ", S_k,
          "; S_q and S_k must be multiples of block");
    check_tensor(counts, "counts", {"heads", "S_q / block"}, ScalarType::Int);
    check_tensor(columns, "columns", {"heads", "S_q / block", "S_k / block"}, ScalarType::Int);
    const int64_t sizes[] = {query.size(1), S_q / block, S_k / block};
    const char* names[] = {"heads", "S_q / block", "S_k / block"};
    const auto check_list = [&](const Tensor& list, const char* name) {
        check_same_device(query, "query", list, name);
        for (int64_t i = 0; i < list.dim(); ++i)
            check(list.size(i) == sizes[i], name, " has shape ", shape_of(list), "; dimension ", i, " must be ",
                  names[i], " = ", sizes[i]);
    };
    check_list(counts, "counts");
    check_list(columns, "columns");
}
