// rounding.h - arithmetic and conversions rounded toward zero (rz), up (ru) and down (rd): __fadd_rz, __double2float_ru, ...
//
// The exact result is an integer of up to 128 bits times a power of two, and `more` if a fraction of its last bit is left
// over; it is rounded once. No rounding mode of the processor is involved, so compilers cannot move anything across it.
#pragma once
#include <math.h>
#include <stdint.h>

namespace simulator {

enum class Rounding { nearest, zero, up, down };
__extension__ typedef unsigned __int128 Digits;

struct Exact {
    bool negative;
    Digits digits;
    int exponent;
    bool more = false;
};

inline int length(Digits digits) {
    const uint64_t high = static_cast<uint64_t>(digits >> 64), low = static_cast<uint64_t>(digits);
    return high ? 128 - __builtin_clzll(high) : low ? 64 - __builtin_clzll(low) : 0;
}
inline Exact exact(double x) {
    int exponent;
    const double fraction = frexp(fabs(x), &exponent);
    return {signbit(x) != 0, static_cast<uint64_t>(ldexp(fraction, 53)), exponent - 53};
}
inline Exact exact_integer(uint64_t magnitude, bool negative) { return {negative, magnitude, 0}; }

inline Exact product(Exact a, Exact b) { return {a.negative != b.negative, a.digits * b.digits, a.exponent + b.exponent}; }
inline Exact sum(Exact a, Exact b) {
    if (!a.digits || !b.digits) return a.digits ? a : b;
    if (length(a.digits) + a.exponent < length(b.digits) + b.exponent) {
        const Exact larger = b;
        b = a, a = larger;
    }
    const int left = 125 - length(a.digits);
    a.digits <<= left, a.exponent -= left;
    const int right = a.exponent - b.exponent;
    const bool lost = right > 0 && (right > 127 || b.digits & ((Digits(1) << right) - 1));
    b.digits = right > 127 ? 0 : right > 0 ? b.digits >> right : b.digits << -right;
    a.more = lost;
    a.digits = a.negative == b.negative ? a.digits + b.digits : a.digits - b.digits - (lost ? 1 : 0);
    if (static_cast<__int128_t>(a.digits) < 0) a.digits = -a.digits, a.negative = !a.negative;
    return a;
}
inline Exact quotient(Exact a, Exact b) {
    const Digits digits = (a.digits << 74) / b.digits;
    return {a.negative != b.negative, digits, a.exponent - b.exponent - 74, digits * b.digits != a.digits << 74};
}
inline Exact root(Exact a) {
    const int left = 74 - (a.exponent & 1);
    const Digits of = a.digits << left;
    Digits digits = 0;
    for (Digits bit = Digits(1) << 63; bit; bit >>= 1)
        if ((digits | bit) * (digits | bit) <= of) digits |= bit;
    return {false, digits, (a.exponent - left) / 2, digits * digits != of};
}

// To a format of `bits` digits whose smallest number is 2^least, and whose largest is `largest`.
inline double rounded(Exact x, Rounding how, int bits, int least, double largest) {
    int drop = length(x.digits) - bits;
    if (drop < least - x.exponent) drop = least - x.exponent;
    Digits kept = x.digits;
    bool above = x.more, half = false;  // what is dropped is at least half of the last digit kept, and above that or 0
    if (drop > 127) {
        above = above || kept;
        kept = 0;
    } else if (drop > 0) {
        half = kept >> (drop - 1) & 1;
        above = above || kept & ((Digits(1) << (drop - 1)) - 1);
        kept >>= drop;
    } else {
        drop = 0;
    }
    const bool away = how == Rounding::nearest ? half && (above || kept & 1)
                      : how == Rounding::zero  ? false
                                               : (half || above) && (how == Rounding::down) == x.negative;
    double result = ldexp(static_cast<double>(kept + away), x.exponent + drop);
    if (result > largest)
        result = how == Rounding::zero || (how != Rounding::nearest && (how == Rounding::down) != x.negative) ? largest : HUGE_VAL;
    return x.negative ? -result : result;
}
inline float rounded(Exact x, Rounding how, float) { return static_cast<float>(rounded(x, how, 24, -149, 0x1.fffffep127)); }
inline double rounded(Exact x, Rounding how, double) { return rounded(x, how, 53, -1074, 0x1.fffffffffffffp1023); }

// Infinities, NaN, and zeros as the processor's operation gives them; only the sign of an exact difference of 0 is asked for.
template <typename T>
T directed_fma(T a, T b, T c, Rounding how) {
    const T nearest = fma(a, b, c);
    if (!isfinite(a) || !isfinite(b) || !isfinite(c)) return nearest;
    const Exact ab = product(exact(a), exact(b)), result = sum(ab, exact(c));
    if (result.digits || result.more) return rounded(result, how, T());
    const bool same = (signbit(a) != signbit(b)) == (signbit(c) != 0) && !ab.digits;
    return same ? nearest : how == Rounding::down ? T(-0.0) : T(0.0);
}
template <typename T>
T directed_add(T a, T b, Rounding how) {
    return directed_fma(a, T(1), b, how);
}
template <typename T>
T directed_multiply(T a, T b, Rounding how) {
    if (!isfinite(a) || !isfinite(b) || a == 0 || b == 0) return a * b;
    return rounded(product(exact(a), exact(b)), how, T());
}
template <typename T>
T directed_divide(T a, T b, Rounding how) {
    if (!isfinite(a) || !isfinite(b) || a == 0 || b == 0) return a / b;
    return rounded(quotient(exact(a), exact(b)), how, T());
}
template <typename T>
T directed_root(T a, Rounding how) {
    return isfinite(a) && a > 0 ? rounded(root(exact(a)), how, T()) : T(sqrt(a));
}
template <typename T>
T directed(double x, Rounding how) {
    return isfinite(x) ? x == 0 ? T(x) : rounded(exact(x), how, T()) : T(x);
}
template <typename T, typename I>
T directed_from(I x, Rounding how) {
    if (!x) return T(0);
    return rounded(exact_integer(x < 0 ? -static_cast<uint64_t>(x) : static_cast<uint64_t>(x), x < 0), how, T());
}

}  // namespace simulator

#define SIMULATOR_ROUNDED(mode, R)                                                                                    \
    SIMULATOR_ROUNDED_TYPE(mode, R, float, f)                                                                         \
    SIMULATOR_ROUNDED_TYPE(mode, R, double, d)                                                                        \
    inline float __fmaf_##mode(float a, float b, float c) { return simulator::directed_fma(a, b, c, R); }             \
    inline float __fmaf_ieee_##mode(float a, float b, float c) { return simulator::directed_fma(a, b, c, R); }        \
    inline double __fma_##mode(double a, double b, double c) { return simulator::directed_fma(a, b, c, R); }          \
    inline float __double2float_##mode(double x) { return simulator::directed<float>(x, R); }                         \
    inline float __int2float_##mode(int x) { return simulator::directed_from<float>(x, R); }                          \
    inline float __uint2float_##mode(unsigned x) { return simulator::directed_from<float>(x, R); }                    \
    inline float __ll2float_##mode(long long x) { return simulator::directed_from<float>(x, R); }                     \
    inline float __ull2float_##mode(unsigned long long x) { return simulator::directed_from<float>(x, R); }           \
    inline double __ll2double_##mode(long long x) { return simulator::directed_from<double>(x, R); }                  \
    inline double __ull2double_##mode(unsigned long long x) { return simulator::directed_from<double>(x, R); }
#define SIMULATOR_ROUNDED_TYPE(mode, R, T, t)                                                  \
    inline T __##t##add_##mode(T a, T b) { return simulator::directed_add(a, b, R); }          \
    inline T __##t##sub_##mode(T a, T b) { return simulator::directed_add(a, -b, R); }         \
    inline T __##t##mul_##mode(T a, T b) { return simulator::directed_multiply(a, b, R); }     \
    inline T __##t##div_##mode(T a, T b) { return simulator::directed_divide(a, b, R); }       \
    inline T __##t##rcp_##mode(T a) { return simulator::directed_divide(T(1), a, R); }         \
    inline T __##t##sqrt_##mode(T a) { return simulator::directed_root(a, R); }
SIMULATOR_ROUNDED(rz, simulator::Rounding::zero)
SIMULATOR_ROUNDED(ru, simulator::Rounding::up)
SIMULATOR_ROUNDED(rd, simulator::Rounding::down)
#undef SIMULATOR_ROUNDED
#undef SIMULATOR_ROUNDED_TYPE
inline float __fmaf_ieee_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dsub_rn(double a, double b) { return a - b; }
