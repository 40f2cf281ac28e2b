// float16.h - the two 16-bit floating-point types, __half (fp16) and __nv_bfloat16, and pairs of them.
//
// Both are one template over a format, which says how to round a float to 16 bits and back. Arithmetic goes
// through float and rounds once more: with 24 bits against 11 or 8 the result of + - * / and sqrt is the
// correctly rounded one.
#pragma once
#include <math.h>

#include "thread.h"
#include "vector_types.h"

namespace simulator {

struct Fp16Format {
    static uint16_t round(float value) {
        uint32_t bits = __builtin_bit_cast(uint32_t, value);
        const uint32_t sign = bits >> 16 & 0x8000;
        bits &= 0x7fffffff;
        if (bits > 0x7f800000) return 0x7fff;                                 // NaN
        if (bits >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);  // 65536 and more: infinity
        if (bits < 0x38800000) {  // subnormal: adding 0.5 lets the float adder round at the last bit of fp16
            const float shifted = __builtin_bit_cast(float, bits) + 0.5f;
            return static_cast<uint16_t>(sign | (__builtin_bit_cast(uint32_t, shifted) - 0x3f000000));
        }
        bits += 0xfff + (bits >> 13 & 1);  // to nearest, ties to even; a carry moves into the exponent
        return static_cast<uint16_t>(sign | (bits - (112u << 23)) >> 13);
    }
    static float widen(uint16_t value) {
        const uint32_t sign = static_cast<uint32_t>(value & 0x8000) << 16, rest = value & 0x7fff;
        if (rest >= 0x7c00) return __builtin_bit_cast(float, sign | 0x7f800000 | (rest & 0x3ff) << 13);
        if (rest < 0x400)
            return __builtin_bit_cast(
                float, sign | __builtin_bit_cast(uint32_t, static_cast<float>(rest) * 0x1p-24f));
        return __builtin_bit_cast(float, sign | ((rest << 13) + (112u << 23)));
    }
};

struct Bf16Format {
    static uint16_t round(float value) {
        const uint32_t bits = __builtin_bit_cast(uint32_t, value);
        if (value != value) return 0x7fff;
        return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    static float widen(uint16_t value) {
        return __builtin_bit_cast(float, static_cast<uint32_t>(value) << 16);
    }
};

// double -> float such that rounding the float once more gives what rounding the double at once would: when
// the float is inexact its last bit is made 1 ("round to odd"), so it lies on no tie.
inline float to_odd(double value) {
    const float nearest = static_cast<float>(value);
    if (nearest == value || nearest != nearest || fabsf(nearest) == HUGE_VALF) return nearest;
    uint32_t bits = __builtin_bit_cast(uint32_t, nearest);
    if (fabs(static_cast<double>(nearest)) > fabs(value)) --bits;
    return __builtin_bit_cast(float, bits | 1);
}

template <typename Format>
struct Float16 {
    uint16_t bits;

    Float16() = default;
    Float16(float value) : bits(Format::round(value)) {}
    Float16(double value) : bits(Format::round(to_odd(value))) {}
    Float16(int value) : Float16(static_cast<double>(value)) {}
    Float16(unsigned value) : Float16(static_cast<double>(value)) {}
    Float16(long value) : Float16(static_cast<double>(value)) {}
    Float16(unsigned long value) : Float16(static_cast<double>(value)) {}
    Float16(long long value) : Float16(static_cast<double>(value)) {}
    Float16(unsigned long long value) : Float16(static_cast<double>(value)) {}
    operator float() const { return Format::widen(bits); }

    Float16& operator+=(Float16 other) { return *this = *this + other; }
    Float16& operator-=(Float16 other) { return *this = *this - other; }
    Float16& operator*=(Float16 other) { return *this = *this * other; }
    Float16& operator/=(Float16 other) { return *this = *this / other; }
    Float16& operator++() { return *this += Float16(1.0f); }
    Float16& operator--() { return *this -= Float16(1.0f); }
    Float16 operator++(int) {
        const Float16 before = *this;
        ++*this;
        return before;
    }
    Float16 operator--(int) {
        const Float16 before = *this;
        --*this;
        return before;
    }
    Float16 operator+() const { return *this; }
    Float16 operator-() const { return from_bits(bits ^ 0x8000); }
    friend Float16 operator+(Float16 a, Float16 b) { return {static_cast<float>(a) + static_cast<float>(b)}; }
    friend Float16 operator-(Float16 a, Float16 b) { return {static_cast<float>(a) - static_cast<float>(b)}; }
    friend Float16 operator*(Float16 a, Float16 b) { return {static_cast<float>(a) * static_cast<float>(b)}; }
    friend Float16 operator/(Float16 a, Float16 b) { return {static_cast<float>(a) / static_cast<float>(b)}; }
    friend bool operator==(Float16 a, Float16 b) { return static_cast<float>(a) == static_cast<float>(b); }
    friend bool operator!=(Float16 a, Float16 b) { return static_cast<float>(a) != static_cast<float>(b); }
    friend bool operator<(Float16 a, Float16 b) { return static_cast<float>(a) < static_cast<float>(b); }
    friend bool operator>(Float16 a, Float16 b) { return static_cast<float>(a) > static_cast<float>(b); }
    friend bool operator<=(Float16 a, Float16 b) { return static_cast<float>(a) <= static_cast<float>(b); }
    friend bool operator>=(Float16 a, Float16 b) { return static_cast<float>(a) >= static_cast<float>(b); }

    static Float16 from_bits(unsigned bits) {
        Float16 result;
        result.bits = static_cast<uint16_t>(bits);
        return result;
    }
};

template <typename Format>
struct alignas(4) Float16Pair {
    using Element = Float16<Format>;
#ifndef SIMULATOR_CHECKED
    Element x, y;
#else
    union {  // one access of four bytes: see vector_types.h
        struct {
            Element x, y;
        };
        uint32_t whole;
    };
    Float16Pair() = default;
    Float16Pair(Element x_, Element y_) : x(x_), y(y_) {}
    Float16Pair(const Float16Pair& other) : whole(other.whole) {}
    Float16Pair& operator=(const Float16Pair& other) {
        whole = other.whole;
        return *this;
    }
#endif

    friend Float16Pair operator+(Float16Pair a, Float16Pair b) { return {a.x + b.x, a.y + b.y}; }
    friend Float16Pair operator-(Float16Pair a, Float16Pair b) { return {a.x - b.x, a.y - b.y}; }
    friend Float16Pair operator*(Float16Pair a, Float16Pair b) { return {a.x * b.x, a.y * b.y}; }
    friend Float16Pair operator/(Float16Pair a, Float16Pair b) { return {a.x / b.x, a.y / b.y}; }
    Float16Pair operator-() const { return {-x, -y}; }
    Float16Pair& operator+=(Float16Pair other) { return *this = *this + other; }
    Float16Pair& operator-=(Float16Pair other) { return *this = *this - other; }
    Float16Pair& operator*=(Float16Pair other) { return *this = *this * other; }
    Float16Pair& operator/=(Float16Pair other) { return *this = *this / other; }
    friend bool operator==(Float16Pair a, Float16Pair b) { return a.x == b.x && a.y == b.y; }
};

}  // namespace simulator

// ---- what CUDA overloads for both types: f is the type of one, f2 of two

#define SIMULATOR_F            \
    template <typename Format> \
    simulator::Float16<Format>
#define SIMULATOR_F2           \
    template <typename Format> \
    simulator::Float16Pair<Format>
#define SIMULATOR_TEST         \
    template <typename Format> \
    bool
#define f simulator::Float16<Format>
#define f2 simulator::Float16Pair<Format>

SIMULATOR_F __hadd(f a, f b) { return a + b; }
SIMULATOR_F __hsub(f a, f b) { return a - b; }
SIMULATOR_F __hmul(f a, f b) { return a * b; }
SIMULATOR_F __hdiv(f a, f b) { return a / b; }
SIMULATOR_F __hneg(f a) { return -a; }
SIMULATOR_F __habs(f a) { return f::from_bits(a.bits & 0x7fff); }
SIMULATOR_F __hfma(f a, f b, f c) {
    return fma(static_cast<double>(a), static_cast<double>(b), static_cast<double>(c));
}
SIMULATOR_F __hmax(f a, f b) {
    return a != a ? b : b != b ? a : f(fmaxf(a, b));
}  // a NaN loses, even a signalling one
SIMULATOR_F __hmin(f a, f b) { return a != a ? b : b != b ? a : f(fminf(a, b)); }
SIMULATOR_F __hsat(f a) {
    const float x = a;
    return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f;  // NaN gives 0
}
SIMULATOR_F __hadd_sat(f a, f b) { return __hsat(a + b); }
SIMULATOR_F __hsub_sat(f a, f b) { return __hsat(a - b); }
SIMULATOR_F __hmul_sat(f a, f b) { return __hsat(a * b); }
SIMULATOR_F __hfma_sat(f a, f b, f c) { return __hsat(__hfma(a, b, c)); }
SIMULATOR_F __hfma_relu(f a, f b, f c) {
    const f sum = __hfma(a, b, c);
    return sum > f(0.0f) ? sum : f(0.0f);
}
SIMULATOR_F __hadd_rn(f a, f b) { return a + b; }
SIMULATOR_F __hsub_rn(f a, f b) { return a - b; }
SIMULATOR_F __hmul_rn(f a, f b) { return a * b; }
SIMULATOR_TEST __heq(f a, f b) { return a == b; }
SIMULATOR_TEST __hne(f a, f b) { return a < b || a > b; }
SIMULATOR_TEST __hlt(f a, f b) { return a < b; }
SIMULATOR_TEST __hle(f a, f b) { return a <= b; }
SIMULATOR_TEST __hgt(f a, f b) { return a > b; }
SIMULATOR_TEST __hge(f a, f b) { return a >= b; }
SIMULATOR_TEST __hisnan(f a) { return a != a; }
template <typename Format>
int __hisinf(f a) {
    return fabsf(a) != HUGE_VALF ? 0 : a < f(0.0f) ? -1 : 1;
}
SIMULATOR_F hexp(f a) { return expf(a); }
SIMULATOR_F hexp2(f a) { return exp2f(a); }
SIMULATOR_F hlog(f a) { return logf(a); }
SIMULATOR_F hlog2(f a) { return log2f(a); }
SIMULATOR_F hsqrt(f a) { return sqrtf(a); }
SIMULATOR_F hrsqrt(f a) { return 1.0f / sqrtf(a); }
SIMULATOR_F hrcp(f a) { return 1.0f / static_cast<float>(a); }
SIMULATOR_F hexp10(f a) { return powf(10.0f, a); }
SIMULATOR_F hlog10(f a) { return log10f(a); }
SIMULATOR_F hsin(f a) { return sinf(a); }
SIMULATOR_F hcos(f a) { return cosf(a); }
SIMULATOR_F htanh(f a) { return tanhf(a); }
SIMULATOR_F hrint(f a) { return rintf(a); }
SIMULATOR_F htrunc(f a) { return truncf(a); }
SIMULATOR_F hfloor(f a) { return floorf(a); }
SIMULATOR_F hceil(f a) { return ceilf(a); }

SIMULATOR_F2 __hadd2(f2 a, f2 b) { return a + b; }
SIMULATOR_F2 __hsub2(f2 a, f2 b) { return a - b; }
SIMULATOR_F2 __hmul2(f2 a, f2 b) { return a * b; }
SIMULATOR_F2 __h2div(f2 a, f2 b) { return a / b; }
SIMULATOR_F2 __hneg2(f2 a) { return -a; }
SIMULATOR_F2 __habs2(f2 a) { return {__habs(a.x), __habs(a.y)}; }
SIMULATOR_F2 __hfma2(f2 a, f2 b, f2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
SIMULATOR_F2 __hmax2(f2 a, f2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
SIMULATOR_F2 __hmin2(f2 a, f2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }
SIMULATOR_F2 h2exp(f2 a) { return {hexp(a.x), hexp(a.y)}; }
SIMULATOR_F2 h2exp2(f2 a) { return {hexp2(a.x), hexp2(a.y)}; }
SIMULATOR_F2 __hadd2_sat(f2 a, f2 b) { return {__hadd_sat(a.x, b.x), __hadd_sat(a.y, b.y)}; }
SIMULATOR_F2 __hmul2_sat(f2 a, f2 b) { return {__hmul_sat(a.x, b.x), __hmul_sat(a.y, b.y)}; }
SIMULATOR_F2 h2sqrt(f2 a) { return {hsqrt(a.x), hsqrt(a.y)}; }
SIMULATOR_F2 h2rsqrt(f2 a) { return {hrsqrt(a.x), hrsqrt(a.y)}; }
SIMULATOR_F2 h2rcp(f2 a) { return {hrcp(a.x), hrcp(a.y)}; }
SIMULATOR_F2 h2log(f2 a) { return {hlog(a.x), hlog(a.y)}; }
SIMULATOR_F2 h2tanh(f2 a) { return {htanh(a.x), htanh(a.y)}; }
SIMULATOR_F2 __halves2half2(f a, f b) { return {a, b}; }
SIMULATOR_F2 __lows2half2(f2 a, f2 b) { return {a.x, b.x}; }
SIMULATOR_F2 __highs2half2(f2 a, f2 b) { return {a.y, b.y}; }
SIMULATOR_F2 __lowhigh2highlow(f2 a) { return {a.y, a.x}; }
SIMULATOR_F __low2half(f2 a) { return a.x; }
SIMULATOR_F __high2half(f2 a) { return a.y; }
template <typename Format>
float __low2float(f2 a) {
    return a.x;
}
template <typename Format>
float __high2float(f2 a) {
    return a.y;
}

#undef f
#undef f2
#undef SIMULATOR_F
#undef SIMULATOR_F2
#undef SIMULATOR_TEST
