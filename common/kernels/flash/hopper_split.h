// hopper_split.h - the workspace of flash_attention_wgmma_3xfp16.cu: query, key and value as the sum of two halves.
//
//   split_columns, split_tile    sizes derived from head_dim
//   SplitSpace                   the layout of the workspace and its size in bytes
#pragma once
#include <cstdint>

#include "common/cuda/check.h"
#include "common/kernels/flash/flash.h"

// Columns of the halves, and keys of a tile.
constexpr int split_columns(int head_dim) { return head_dim <= 64 ? 64 : 128; }
constexpr int split_tile(int D) { return D == 64 ? 128 : 80; }

// In bytes from the start of the workspace. Rows that only pad the last 16, or the last tile and one tile more (see
// Items), are 0.
//
//   query [2][batch heads][query_rows][D] half      key, value [2][batch kv_heads][key_rows][D] half: big, then small
//   scales of query [batch heads][query_rows] float, of key and value [batch kv_heads][key_rows]
struct SplitSpace {
    int D;
    int64_t query_rows, key_rows, query_heads, key_heads;
    int64_t query_at, key_at, value_at, key_scales_at, value_scales_at, query_scales_at, bytes;

    explicit SplitSpace(const FlashArguments& a) {
        D = split_columns(a.head_dim);
        const int64_t tile = split_tile(D);
        query_rows = ceil_div(a.S_q, int64_t{16}) * 16;
        key_rows = (ceil_div(a.S_k, tile) + 1) * tile;
        query_heads = a.batch * a.heads, key_heads = a.batch * a.kv_heads;
        const int64_t query_numbers = query_heads * query_rows, key_numbers = key_heads * key_rows;
        query_at = 0;
        key_at = query_at + 4 * D * query_numbers;
        value_at = key_at + 4 * D * key_numbers;
        key_scales_at = value_at + 4 * D * key_numbers;
        value_scales_at = key_scales_at + 4 * key_numbers;
        query_scales_at = value_scales_at + 4 * key_numbers;
        bytes = query_scales_at + 4 * query_numbers;
    }
};
