// cache_layout.cuh - the row of a slot, in contiguous caches and in pages.
//
//   page_number(layout, sequence, slot)                 the block table's entry for the slot; a global memory read
//   is_page(layout, number)                             whether there is such a page
//   row_of(layout, sequence, kv_head, slot, page)       the index of the slot's row of head_dim elements in the cache
#pragma once
#include "common/kernels/decode/decode.h"

constexpr int TILE = MIN_PAGE_SIZE;  // tokens that are read at once: all in one page

// A contiguous cache has no pages: any number is valid.
__device__ __forceinline__ int page_number(const CacheLayout& layout, int64_t sequence, int64_t slot) {
    if (layout.block_table == nullptr) return 0;
    return layout.block_table[(sequence * layout.capacity + slot) >> layout.page_bits];
}

__device__ __forceinline__ bool is_page(const CacheLayout& layout, int page) {
    return layout.block_table == nullptr || (page >= 0 && page < layout.pages);
}

__device__ __forceinline__ int64_t row_of(const CacheLayout& layout, int64_t sequence, int64_t kv_head, int64_t slot,
                                          int page) {
    if (layout.block_table == nullptr) return (sequence * layout.kv_heads + kv_head) * layout.capacity + slot;
    return ((page * layout.kv_heads + kv_head) << layout.page_bits) + (slot & ((1 << layout.page_bits) - 1));
}
