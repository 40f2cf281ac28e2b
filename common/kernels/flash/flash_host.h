// flash_host.h - how large the backward pass's workspaces are; binding.cpp allocates them.
//
//   sum_rows              rows of a head as the kernel for Hopper GPUs counts them
//   query_sum_elements    how many floats the workspace grad_query_sum has
//   row_number_elements   how many floats delta has
//   turn_elements         how many ints turns has
//   hides_keys            whether some key may be hidden from some row
//   nan_flag              where the 16-bit kernels note that dQ has a NaN
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

// For Hopper GPUs a counter, and for a fixed order of additions a number for each 64 x 64 elements of grad_query; then,
// for all, nan_flag.
inline int64_t turn_elements(const FlashArguments& a, bool hopper, bool deterministic) {
    return (hopper ? 1 : 0) + (hopper && deterministic ? query_sum_elements(a, true) / (64 * 64) : 0) + 1;
}

inline bool hides_keys(const FlashArguments& a) { return a.causal || a.mask.kind != MaskKind::NONE; }

// launch_row_numbers sets it to 0. nullptr where no key is hidden: then nobody looks.
inline int* nan_flag(const FlashGradients& g, bool hopper) {
    return hides_keys(g.forward) ? g.turns + turn_elements(g.forward, hopper, g.deterministic) - 1 : nullptr;
}
