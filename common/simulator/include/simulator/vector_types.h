// vector_types.h - dim3 and the vector types: char1 ... double4 with CUDA's alignments, make_char1 ... make_double4.
#pragma once

// Three-element vectors are aligned like one element, the others to their size, up to 16 bytes.
#define SIMULATOR_ALIGNED(T, n) alignas(sizeof(T) * n < 16 ? sizeof(T) * n : 16)
#ifndef SIMULATOR_CHECKED
#define SIMULATOR_MEMBERS2(T, name) T x, y;
#define SIMULATOR_MEMBERS4(T, name) T x, y, z, w;
#else
// In the checked build a copy is one access of the full size, as on a GPU. Compilers would split a struct copy into
// members; a vector copy stays in one piece.
#define SIMULATOR_ONE_COPY(T, n, name, ...)                                          \
    typedef T Whole __attribute__((vector_size(sizeof(T) * n),                       \
                                   aligned(sizeof(T) * n < 16 ? sizeof(T) * n : 16))); \
    union {                                                                          \
        struct {                                                                     \
            T __VA_ARGS__;                                                           \
        };                                                                           \
        Whole whole;                                                                 \
    };                                                                               \
    name() = default;                                                                \
    name(const name& other) : whole(other.whole) {}                                  \
    name& operator=(const name& other) {                                             \
        whole = other.whole;                                                         \
        return *this;                                                                \
    }
#define SIMULATOR_MEMBERS2(T, name)         \
    SIMULATOR_ONE_COPY(T, 2, name, x, y)    \
    constexpr name(T x_, T y_ = {}) : x(x_), y(y_) {}
#define SIMULATOR_MEMBERS4(T, name)             \
    SIMULATOR_ONE_COPY(T, 4, name, x, y, z, w)  \
    constexpr name(T x_, T y_ = {}, T z_ = {}, T w_ = {}) : x(x_), y(y_), z(z_), w(w_) {}
#endif
#define SIMULATOR_VECTORS(T, name)                                        \
    struct name##1 {                                                      \
        T x;                                                              \
    };                                                                    \
    struct SIMULATOR_ALIGNED(T, 2) name##2 {                              \
        SIMULATOR_MEMBERS2(T, name##2)                                    \
    };                                                                    \
    struct name##3 {                                                      \
        T x, y, z;                                                        \
    };                                                                    \
    struct SIMULATOR_ALIGNED(T, 4) name##4 {                              \
        SIMULATOR_MEMBERS4(T, name##4)                                    \
    };                                                                    \
    constexpr name##1 make_##name##1(T x) { return {x}; }                 \
    constexpr name##2 make_##name##2(T x, T y) { return {x, y}; }         \
    constexpr name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
    constexpr name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

SIMULATOR_VECTORS(signed char, char)
SIMULATOR_VECTORS(unsigned char, uchar)
SIMULATOR_VECTORS(short, short)
SIMULATOR_VECTORS(unsigned short, ushort)
SIMULATOR_VECTORS(int, int)
SIMULATOR_VECTORS(unsigned int, uint)
SIMULATOR_VECTORS(long, long)
SIMULATOR_VECTORS(unsigned long, ulong)
SIMULATOR_VECTORS(long long, longlong)
SIMULATOR_VECTORS(unsigned long long, ulonglong)
SIMULATOR_VECTORS(float, float)
SIMULATOR_VECTORS(double, double)
#undef SIMULATOR_VECTORS
#undef SIMULATOR_MEMBERS2
#undef SIMULATOR_MEMBERS4
#ifdef SIMULATOR_CHECKED
#undef SIMULATOR_ONE_COPY
#endif
#undef SIMULATOR_ALIGNED

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};
