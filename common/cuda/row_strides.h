// row_strides.h - where the rows of a tensor [batch, heads, rows, head_dim] are.
#pragma once
#include <cstdint>

// How many elements are between two neighbors along a dimension. Along head_dim it is 1. A slice of a packed
// [batch, rows, 3, heads, head_dim] is such a tensor, so it is read where it is.
struct RowStrides {
    int64_t batch, head, row;
};
