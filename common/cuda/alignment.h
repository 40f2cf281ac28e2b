// alignment.h - what may be accessed 16 bytes at a time.
//
//   all_aligned({p, q, ...}, bytes = 16)     whether all these pointers are multiples of `bytes`; nullptr is
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>

inline bool all_aligned(std::initializer_list<const void*> pointers, size_t bytes = 16) {
    for (const void* pointer : pointers)
        if (reinterpret_cast<uintptr_t>(pointer) % bytes != 0) return false;
    return true;
}
