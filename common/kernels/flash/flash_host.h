// flash_host.h - how large the backward pass's workspaces are; binding.cpp allocates them.
//
//   sum_rows              rows of a head as the kernel for Hopper GPUs counts them
//   query_sum_elements    how many floats the workspace grad_query_sum has
//   row_number_elements   how many floats delta has
//   turn_elements         how many ints turns has
//
// hopper: hopper_backward_takes says so.
#pragma once
#include <cstdint>

#include "common/cuda/check.h"
#include "common/kernels/flash/flash.h"

inline int64_t sum_rows(const FlashArguments& a) { return ceil_div(a.S_q, int64_t{128}) * 128; }

// Whole tiles of flash_query_sum.cuh: rows in units of 16, or those of sum_rows; columns in units of 64.
inline int64_t query_sum_elements(const FlashArguments& a, bool hopper) {
    const int64_t rows = hopper ? sum_rows(a) : ceil_div(a.S_q, int64_t{16}) * 16;
    return a.batch * a.heads * rows * ceil_div(a.head_dim, 64) * 64;
}

// delta, and for Hopper GPUs lse once more.
inline int64_t row_number_elements(const FlashArguments& a, bool hopper) {
    return a.batch * a.heads * (hopper ? 2 * sum_rows(a) : a.S_q);
}

// A counter, and for a fixed order of additions a number for each 64 x 64 elements of grad_query.
inline int64_t turn_elements(const FlashArguments& a, bool deterministic) {
    return 1 + (deterministic ? query_sum_elements(a, true) / (64 * 64) : 0);
}
