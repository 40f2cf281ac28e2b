// heap.h - malloc, free, new and delete in kernels: the device heap (runtime/heap.cpp).
//
// In functions of the device the rewriter makes `malloc(n)` heap_malloc(n), `new T` new (OnHeap{here()}) T, and puts
// deletes_here() before `delete`, which asks the heap first whether the memory is its own. What host code runs of them comes from the C++ library.
#pragma once
#include <stdlib.h>

#include <new>

#include "thread.h"

namespace simulator {
void* heap_malloc(size_t bytes, Position at = here());
void heap_free(void* address, Position at = here());
void deletes_here(Position at = here());
void* heap_new(size_t bytes, Position at);  // null where there is no room left, as on a GPU
struct OnHeap {
    Position at;
};
}  // namespace simulator

inline void* operator new(size_t bytes, simulator::OnHeap heap) noexcept { return simulator::heap_new(bytes, heap.at); }
inline void* operator new[](size_t bytes, simulator::OnHeap heap) noexcept { return simulator::heap_new(bytes, heap.at); }
inline void operator delete(void* address, simulator::OnHeap heap) noexcept { simulator::heap_free(address, heap.at); }
inline void operator delete[](void* address, simulator::OnHeap heap) noexcept { simulator::heap_free(address, heap.at); }
