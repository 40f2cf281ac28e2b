// flash_host.h - how large the backward pass's workspace is; binding.cpp allocates it.
//
//   query_sum_elements    how many floats the workspace grad_query_sum has
#pragma once
#include <cstdint>

#include "common/cuda/check.h"
#include "common/kernels/flash/flash.h"

// Whole tiles of flash_query_sum.cuh: rows in units of 16, columns in units of 64.
inline int64_t query_sum_elements(const FlashArguments& a) {
    return a.batch * a.heads * ceil_div(a.S_q, int64_t{16}) * ceil_div(a.head_dim, 64) * (16 * 64);
}
