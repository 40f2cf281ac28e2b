// row_strides.h - the strides of a tensor [batch, heads, rows, head_dim].
#pragma once
#include <cstdint>

// Strides in elements; head_dim has stride 1. A slice of a packed [batch, rows, 3, heads, head_dim] qualifies, so it is
// read in place.
struct RowStrides {
    int64_t batch, head, row;
};
