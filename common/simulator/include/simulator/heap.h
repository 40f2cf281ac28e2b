// heap.h - malloc, free, new and delete in kernels: the device heap (runtime/heap.cpp).
//
// In device functions the rewriter turns `malloc(n)` into heap_malloc(n) and `new T` into new (OnHeap{here()}) T, and
// inserts deletes_here() before `delete`, which first checks whether the memory belongs to the heap. Host code that
// runs the same functions gets the C++ library's.
#pragma once
#include <stdlib.h>

#include <new>

#include "thread.h"

namespace simulator {
void* heap_malloc(size_t bytes, Position at = here());
void heap_free(void* address, Position at = here());
void deletes_here(Position at = here());
void* heap_new(size_t bytes, Position at);  // null if the heap is full, as on a GPU
struct OnHeap {
    Position at;
};
}  // namespace simulator

inline void* operator new(size_t bytes, simulator::OnHeap heap) noexcept { return simulator::heap_new(bytes, heap.at); }
inline void* operator new[](size_t bytes, simulator::OnHeap heap) noexcept { return simulator::heap_new(bytes, heap.at); }
inline void operator delete(void* address, simulator::OnHeap heap) noexcept { simulator::heap_free(address, heap.at); }
inline void operator delete[](void* address, simulator::OnHeap heap) noexcept { simulator::heap_free(address, heap.at); }
