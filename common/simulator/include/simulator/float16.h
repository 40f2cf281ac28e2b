// float16.h - the two 16-bit floating-point types, __half (fp16) and __nv_bfloat16, and pairs of them.
//
// Both are one template over a format, which converts a float to 16 bits and back. Arithmetic is done in float and
// rounded again. With float's 24 bits of precision for 11 or 8, + - * / and sqrt are correctly rounded.
#pragma once
#include <math.h>

#include "rounding.h"
#include "thread.h"
#include "vector_types.h"
#include "warp.h"

namespace simulator {

struct Fp16Format {
    struct Raw {
        unsigned short x;
    };
    struct Raw2 {
        unsigned short x, y;
    };
    static uint16_t round(float value) {
        uint32_t bits = __builtin_bit_cast(uint32_t, value);
        const uint32_t sign = bits >> 16 & 0x8000;
        bits &= 0x7fffffff;
        if (bits > 0x7f800000) return 0x7fff;                                 // NaN
        if (bits >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);  // 65536 and up: infinity
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
    struct Raw {
        unsigned short x;
    };
    struct Raw2 {
        unsigned short x, y;
    };
    static uint16_t round(float value) {
        const uint32_t bits = __builtin_bit_cast(uint32_t, value);
        if (value != value) return 0x7fff;
        return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    static float widen(uint16_t value) {
        return __builtin_bit_cast(float, static_cast<uint32_t>(value) << 16);
    }
};

// Converts a wider number to a float that rounds to the same 16-bit value as the number itself: if the float is
// inexact, its last bit is set to 1 ("round to odd"), so it is never a tie.
template <typename Wide>
float to_odd(Wide value) {
    const float nearest = static_cast<float>(value);
    if (nearest == value || nearest != nearest || fabsf(nearest) == HUGE_VALF) return nearest;
    uint32_t bits = __builtin_bit_cast(uint32_t, nearest);
    if (Wide(fabsf(nearest)) > (value < 0 ? -value : value)) --bits;
    return __builtin_bit_cast(float, bits | 1);
}

template <typename Format>
struct Float16 {
    uint16_t bits;

    Float16() = default;
    Float16(typename Format::Raw raw) : bits(raw.x) {}
    operator typename Format::Raw() const { return {bits}; }
    Float16(float value) : bits(Format::round(value)) {}
    Float16(double value) : bits(Format::round(to_odd(value))) {}
    Float16(int value) : Float16(static_cast<double>(value)) {}
    Float16(unsigned value) : Float16(static_cast<double>(value)) {}
    Float16(long double value) : bits(Format::round(to_odd(value))) {}  // exact for 64-bit integers
    Float16(long value) : Float16(static_cast<long double>(value)) {}
    Float16(unsigned long value) : Float16(static_cast<long double>(value)) {}
    Float16(long long value) : Float16(static_cast<long double>(value)) {}
    Float16(unsigned long long value) : Float16(static_cast<long double>(value)) {}
    operator float() const { return Format::widen(bits); }

#define SIMULATOR_ARITHMETIC(op)                                                                                      \
    friend Float16 operator op(Float16 a, Float16 b) { return {static_cast<float>(a) op static_cast<float>(b)}; }    \
    Float16& operator op##=(Float16 other) { return *this = *this op other; }
#define SIMULATOR_COMPARISON(op) \
    friend bool operator op(Float16 a, Float16 b) { return static_cast<float>(a) op static_cast<float>(b); }
    SIMULATOR_ARITHMETIC(+) SIMULATOR_ARITHMETIC(-) SIMULATOR_ARITHMETIC(*) SIMULATOR_ARITHMETIC(/)
    SIMULATOR_COMPARISON(==) SIMULATOR_COMPARISON(!=) SIMULATOR_COMPARISON(<) SIMULATOR_COMPARISON(>)
    SIMULATOR_COMPARISON(<=) SIMULATOR_COMPARISON(>=)
#undef SIMULATOR_ARITHMETIC
#undef SIMULATOR_COMPARISON
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
    Float16Pair(typename Format::Raw2 raw) : x(Element::from_bits(raw.x)), y(Element::from_bits(raw.y)) {}
    operator typename Format::Raw2() const { return {x.bits, y.bits}; }
    Float16Pair(Element x_, Element y_) : x(x_), y(y_) {}
    Float16Pair(const Float16Pair& other) : whole(other.whole) {}
    Float16Pair& operator=(const Float16Pair& other) {
        whole = other.whole;
        return *this;
    }
#endif

#define SIMULATOR_ARITHMETIC(op)                                                                                      \
    friend Float16Pair operator op(Float16Pair a, Float16Pair b) { return {a.x op b.x, a.y op b.y}; }                \
    Float16Pair& operator op##=(Float16Pair other) { return *this = *this op other; }
    SIMULATOR_ARITHMETIC(+) SIMULATOR_ARITHMETIC(-) SIMULATOR_ARITHMETIC(*) SIMULATOR_ARITHMETIC(/)
#undef SIMULATOR_ARITHMETIC
    Float16Pair operator-() const { return {-x, -y}; }
    friend bool operator==(Float16Pair a, Float16Pair b) { return a.x == b.x && a.y == b.y; }
};

}  // namespace simulator

// ---- functions that CUDA overloads for both types: f is the scalar type, f2 the pair

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

SIMULATOR_SHUFFLES(template <typename Format>, f)
SIMULATOR_SHUFFLES(template <typename Format>, f2)

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
}  // a NaN loses, even a signaling one
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
    return sum != sum || sum > f(0.0f) ? sum : f(0.0f);
}
SIMULATOR_F __hadd_rn(f a, f b) { return a + b; }
SIMULATOR_F __hsub_rn(f a, f b) { return a - b; }
SIMULATOR_F __hmul_rn(f a, f b) { return a * b; }
SIMULATOR_TEST __hisnan(f a) { return a != a; }
// Comparisons of scalars and of pairs (per element 1 or 0, a mask of all bits, or whether both are true). With the
// suffix u (unordered) they are true if an operand is NaN.
#define SIMULATOR_COMPARED(op, test)                                                                          \
    SIMULATOR_TEST __h##op(f a, f b) { return test; }                                                         \
    SIMULATOR_F2 __h##op##2(f2 a, f2 b) { return {f(__h##op(a.x, b.x) ? 1.0f : 0.0f), f(__h##op(a.y, b.y) ? 1.0f : 0.0f)}; } \
    SIMULATOR_TEST __hb##op##2(f2 a, f2 b) { return __h##op(a.x, b.x) && __h##op(a.y, b.y); }                 \
    template <typename Format>                                                                                \
    unsigned __h##op##2_mask(f2 a, f2 b) {                                                                    \
        return (__h##op(a.x, b.x) ? 0xffffu : 0u) | (__h##op(a.y, b.y) ? 0xffff0000u : 0u);                   \
    }
#define SIMULATOR_COMPARED_TWICE(op, test) SIMULATOR_COMPARED(op, test) SIMULATOR_COMPARED(op##u, a != a || b != b || test)
SIMULATOR_COMPARED_TWICE(eq, a == b)
SIMULATOR_COMPARED_TWICE(ne, (a < b || a > b))
SIMULATOR_COMPARED_TWICE(lt, a < b)
SIMULATOR_COMPARED_TWICE(le, a <= b)
SIMULATOR_COMPARED_TWICE(gt, a > b)
SIMULATOR_COMPARED_TWICE(ge, a >= b)
#undef SIMULATOR_COMPARED_TWICE
#undef SIMULATOR_COMPARED
SIMULATOR_F __hmax_nan(f a, f b) { return a != a || b != b ? f::from_bits(0x7fff) : __hmax(a, b); }
SIMULATOR_F __hmin_nan(f a, f b) { return a != a || b != b ? f::from_bits(0x7fff) : __hmin(a, b); }
template <typename Format>
int __hisinf(f a) {
    return fabsf(a) != HUGE_VALF ? 0 : a < f(0.0f) ? -1 : 1;
}
#define SIMULATOR_MATH(name) \
    SIMULATOR_F h##name(f a) { return name##f(a); }
SIMULATOR_MATH(exp) SIMULATOR_MATH(exp2) SIMULATOR_MATH(log) SIMULATOR_MATH(log2) SIMULATOR_MATH(log10) SIMULATOR_MATH(sqrt)
SIMULATOR_MATH(sin) SIMULATOR_MATH(cos) SIMULATOR_MATH(tanh) SIMULATOR_MATH(rint) SIMULATOR_MATH(trunc) SIMULATOR_MATH(floor)
SIMULATOR_MATH(ceil)
#undef SIMULATOR_MATH
SIMULATOR_F hrsqrt(f a) { return 1.0f / sqrtf(a); }
SIMULATOR_F hrcp(f a) { return 1.0f / static_cast<float>(a); }
SIMULATOR_F hexp10(f a) { return powf(10.0f, a); }
SIMULATOR_F htanh_approx(f a) { return tanhf(a); }

// Elementwise functions of pairs.
#define SIMULATOR_PAIR1(pair, one) \
    SIMULATOR_F2 pair(f2 a) { return {one(a.x), one(a.y)}; }
#define SIMULATOR_PAIR2(pair, one) \
    SIMULATOR_F2 pair(f2 a, f2 b) { return {one(a.x, b.x), one(a.y, b.y)}; }
#define SIMULATOR_PAIR3(pair, one) \
    SIMULATOR_F2 pair(f2 a, f2 b, f2 c) { return {one(a.x, b.x, c.x), one(a.y, b.y, c.y)}; }
#define SIMULATOR_PAIR_OF(name) SIMULATOR_PAIR1(h2##name, h##name)
SIMULATOR_PAIR_OF(exp) SIMULATOR_PAIR_OF(exp2) SIMULATOR_PAIR_OF(exp10) SIMULATOR_PAIR_OF(log) SIMULATOR_PAIR_OF(log2)
SIMULATOR_PAIR_OF(log10) SIMULATOR_PAIR_OF(sqrt) SIMULATOR_PAIR_OF(rsqrt) SIMULATOR_PAIR_OF(rcp) SIMULATOR_PAIR_OF(sin)
SIMULATOR_PAIR_OF(cos) SIMULATOR_PAIR_OF(tanh) SIMULATOR_PAIR_OF(tanh_approx) SIMULATOR_PAIR_OF(rint)
SIMULATOR_PAIR_OF(trunc) SIMULATOR_PAIR_OF(floor) SIMULATOR_PAIR_OF(ceil)
SIMULATOR_PAIR1(__habs2, __habs) SIMULATOR_PAIR1(__hisnan2, __hisnan)
SIMULATOR_PAIR2(__hadd2, __hadd) SIMULATOR_PAIR2(__hadd2_rn, __hadd) SIMULATOR_PAIR2(__hadd2_sat, __hadd_sat)
SIMULATOR_PAIR2(__hsub2, __hsub) SIMULATOR_PAIR2(__hsub2_rn, __hsub) SIMULATOR_PAIR2(__hsub2_sat, __hsub_sat)
SIMULATOR_PAIR2(__hmul2, __hmul) SIMULATOR_PAIR2(__hmul2_rn, __hmul) SIMULATOR_PAIR2(__hmul2_sat, __hmul_sat)
SIMULATOR_PAIR2(__hmax2, __hmax) SIMULATOR_PAIR2(__hmax2_nan, __hmax_nan)
SIMULATOR_PAIR2(__hmin2, __hmin) SIMULATOR_PAIR2(__hmin2_nan, __hmin_nan)
SIMULATOR_PAIR3(__hfma2, __hfma) SIMULATOR_PAIR3(__hfma2_sat, __hfma_sat) SIMULATOR_PAIR3(__hfma2_relu, __hfma_relu)
#undef SIMULATOR_PAIR_OF
#undef SIMULATOR_PAIR1
#undef SIMULATOR_PAIR2
#undef SIMULATOR_PAIR3
SIMULATOR_F2 __hcmadd(f2 a, f2 b, f2 c) {
    return {__hfma(-a.y, b.y, __hfma(a.x, b.x, c.x)), __hfma(a.y, b.x, __hfma(a.x, b.y, c.y))};
}
SIMULATOR_F2 __h2div(f2 a, f2 b) { return a / b; }
SIMULATOR_F2 __hneg2(f2 a) { return -a; }
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
#undef SIMULATOR_SHUFFLES
#undef SIMULATOR_SHUFFLE
#undef SIMULATOR_F
#undef SIMULATOR_F2
#undef SIMULATOR_TEST

// ---- conversions, for cuda_fp16.h and cuda_bf16.h
namespace simulator {
// Rounds to nearest, then steps to the neighbor in the mode's direction if that went the other way.
template <typename Half, typename X>
Half rounded_half(X x, int mode) {
    Half result(x);
    const long double there = fabsl(static_cast<float>(result)), magnitude = fabsl(x);
    if (mode == FE_TOWARDZERO || (mode == FE_DOWNWARD) == (x >= 0))
        result.bits -= mode != FE_TONEAREST && there > magnitude;
    else
        result.bits += mode != FE_TONEAREST && there < magnitude;
    return result;
}
}  // namespace simulator
#define SIMULATOR_CONVERSIONS(half, Half)                                                                        \
    inline Half __float2##half(float a) { return a; }                                                            \
    inline Half __double2##half(double a) { return a; }                                                          \
    inline float __##half##2float(Half a) { return a; }                                                          \
    inline unsigned short __##half##_as_ushort(Half a) { return a.bits; }                                        \
    inline short __##half##_as_short(Half a) { return static_cast<short>(a.bits); }                              \
    inline Half __ushort_as_##half(unsigned short a) { return Half::from_bits(a); }                              \
    inline Half __short_as_##half(short a) { return Half::from_bits(static_cast<unsigned short>(a)); }           \
    inline signed char __##half##2char_rz(Half a) { return simulator::to_integer<signed char>(truncf(a)); }      \
    inline unsigned char __##half##2uchar_rz(Half a) { return simulator::to_integer<unsigned char>(truncf(a)); } \
    inline Half##2 make_##half##2(Half a, Half b) { return {a, b}; }                                             \
    inline Half##2 __##half##2##half##2(Half a) { return {a, a}; }                                               \
    inline Half##2 __float2##half##2_rn(float a) { return {a, a}; }                                              \
    inline Half##2 __floats2##half##2_rn(float a, float b) { return {a, b}; }                                    \
    inline Half##2 __float22##half##2_rn(float2 a) { return {a.x, a.y}; }                                        \
    inline float2 __##half##22float2(Half##2 a) { return {a.x, a.y}; }                                           \
    inline Half##2 __low2##half##2(Half##2 a) { return {a.x, a.x}; }                                             \
    inline Half##2 __high2##half##2(Half##2 a) { return {a.y, a.y}; }                                            \
    SIMULATOR_CONVERSIONS_ROUNDED(half, Half, rn, nearbyint, FE_TONEAREST)                                       \
    SIMULATOR_CONVERSIONS_ROUNDED(half, Half, rz, trunc, FE_TOWARDZERO)                                          \
    SIMULATOR_CONVERSIONS_ROUNDED(half, Half, ru, ceil, FE_UPWARD)                                               \
    SIMULATOR_CONVERSIONS_ROUNDED(half, Half, rd, floor, FE_DOWNWARD)
#define SIMULATOR_CONVERSIONS_ROUNDED(half, Half, mode, round, MODE)                                             \
    inline Half __float2##half##_##mode(float a) { return simulator::rounded_half<Half>(a, MODE); }              \
    SIMULATOR_CONVERSION(half, Half, mode, round, MODE, short, short)                                            \
    SIMULATOR_CONVERSION(half, Half, mode, round, MODE, unsigned short, ushort)                                  \
    SIMULATOR_CONVERSION(half, Half, mode, round, MODE, int, int)                                                \
    SIMULATOR_CONVERSION(half, Half, mode, round, MODE, unsigned, uint)                                          \
    SIMULATOR_CONVERSION(half, Half, mode, round, MODE, long long, ll)                                           \
    SIMULATOR_CONVERSION(half, Half, mode, round, MODE, unsigned long long, ull)
#define SIMULATOR_CONVERSION(half, Half, mode, round, MODE, I, i)                                                \
    inline I __##half##2##i##_##mode(Half a) { return simulator::to_integer<I>(round(static_cast<double>(static_cast<float>(a)))); } \
    inline Half __##i##2##half##_##mode(I a) { return simulator::rounded_half<Half>(a, MODE); }
