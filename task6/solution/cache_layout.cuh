// cache_layout.cuh - the row of a slot, in contiguous caches and in pages.
//
//   page_of(layout, sequence, slot)                     the slot's page; NO_PAGE if its number is out of range
//   row_of(layout, sequence, kv_head, slot, page)       the slot's row of head_dim elements, from the cache's start
#pragma once
#include "task6/solution/tuned.h"

constexpr int NO_PAGE = -1;

// A contiguous cache has no pages; whatever this returns, other than NO_PAGE, stands for its only one.
__device__ __forceinline__ int page_of(const CacheLayout& layout, int64_t sequence, int64_t slot) {
    if (layout.block_table == nullptr) return 0;
    const int page = layout.block_table[(sequence * layout.capacity + slot) / PAGE_SIZE];
    return page >= 0 && page < layout.pages ? page : NO_PAGE;
}

__device__ __forceinline__ int64_t row_of(const CacheLayout& layout, int64_t sequence, int64_t kv_head, int64_t slot,
                                          int page) {
    if (layout.block_table == nullptr) return (sequence * layout.kv_heads + kv_head) * layout.capacity + slot;
    return (page * layout.kv_heads + kv_head) * PAGE_SIZE + slot % PAGE_SIZE;
}
