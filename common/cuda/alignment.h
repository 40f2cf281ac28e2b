// alignment.h - checks whether pointers allow 16-byte accesses.
//
//   all_aligned({p, q, ...}, bytes = 16)     whether all pointers are multiples of `bytes`; nullptr counts as aligned
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>

inline bool all_aligned(std::initializer_list<const void*> pointers, size_t bytes = 16) {
    for (const void* pointer : pointers)
        if (reinterpret_cast<uintptr_t>(pointer) % bytes != 0) return false;
    return true;
}
