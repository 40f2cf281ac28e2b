// variable.h - description of a variable for messages: name, offset, shape.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace simulator {

constexpr int MAX_RANK = 8;

struct Variable {
    const char* name;
    size_t offset, bytes;  // within the struct of its declaration
    unsigned element_bytes;
    int rank;
    int64_t shape[MAX_RANK];
};

template <typename T>
struct Extents {
    static constexpr void fill(Variable& v) { v.element_bytes = sizeof(T); }
};
template <typename T, size_t N>
struct Extents<T[N]> {
    static constexpr void fill(Variable& v) {
        if (v.rank < MAX_RANK) v.shape[v.rank++] = N;
        Extents<T>::fill(v);
    }
};

// describe<float[32][33]>("tile", 0): element_bytes 4, shape {32, 33}
template <typename T>
constexpr Variable describe(const char* name, size_t offset) {
    Variable v = {name, offset, sizeof(T), 0, 0, {}};
    Extents<T>::fill(v);
    return v;
}

}  // namespace simulator

#define SIMULATOR_VARIABLE(S, member) ::simulator::describe<decltype(S::member)>(#member, __builtin_offsetof(S, member))
