// math.h - CUDA's additions to <math.h>: min and max, fast intrinsics, rounding, bits, loads and stores with cache
// hints.
//
// The fast intrinsics (__expf, ...) are as accurate as expf and its like here; on a GPU they lose a few bits.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define SIMULATOR_MIN_MAX(R, A, B)                                                            \
    constexpr R min(A a, B b) {                                                               \
        return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); \
    }                                                                                         \
    constexpr R max(A a, B b) {                                                               \
        return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(b) : static_cast<R>(a); \
    }
#define SIMULATOR_MIN_MAX_MIXED(S, U) \
    SIMULATOR_MIN_MAX(S, S, S)        \
    SIMULATOR_MIN_MAX(U, U, U)        \
    SIMULATOR_MIN_MAX(U, S, U)        \
    SIMULATOR_MIN_MAX(U, U, S)
SIMULATOR_MIN_MAX_MIXED(int, unsigned int)
SIMULATOR_MIN_MAX_MIXED(long, unsigned long)
SIMULATOR_MIN_MAX_MIXED(long long, unsigned long long)
#undef SIMULATOR_MIN_MAX_MIXED
#undef SIMULATOR_MIN_MAX
// If one operand is NaN the other is returned, as in fminf and fmaxf.
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(double a, float b) { return fmax(a, b); }

// ---- functions that <math.h> lacks (noexcept: the C library declares some of these names)
inline float rsqrtf(float x) noexcept { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) noexcept { return 1.0 / sqrt(x); }
inline float rsqrt(float x) noexcept { return rsqrtf(x); }
inline float rcbrtf(float x) noexcept { return 1.0f / cbrtf(x); }
inline float fdivide(float a, float b) noexcept { return a / b; }
inline float fdividef(float a, float b) noexcept { return a / b; }
inline float sinpif(float x) noexcept { return static_cast<float>(sin(M_PI * static_cast<double>(x))); }
inline float cospif(float x) noexcept { return static_cast<float>(cos(M_PI * static_cast<double>(x))); }
inline float normcdff(float x) noexcept { return static_cast<float>(0.5 * erfc(-x * M_SQRT1_2)); }
inline float __saturatef(float x) noexcept { return fminf(fmaxf(x, 0.0f), 1.0f); }

inline float __expf(float x) noexcept { return expf(x); }
// The C library declares __exp2f; CUDA does not.
#define __exp2f cuda_has_no_exp2f_intrinsic_call_exp2f_itself
inline float __exp10f(float x) noexcept { return powf(10.0f, x); }
#define SIMULATOR_FAST(name) inline float __##name(float x) noexcept { return name(x); }
SIMULATOR_FAST(logf) SIMULATOR_FAST(log2f) SIMULATOR_FAST(log10f) SIMULATOR_FAST(sinf) SIMULATOR_FAST(cosf) SIMULATOR_FAST(tanf)
SIMULATOR_FAST(tanhf)
#undef SIMULATOR_FAST
inline float __powf(float x, float y) noexcept { return powf(x, y); }
inline float __fdividef(float a, float b) noexcept { return a / b; }
inline void __sincosf(float x, float* s, float* c) noexcept { *s = sinf(x), *c = cosf(x); }

inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }

// ---- conversions: rn nearest even, rz toward zero, ru up, rd down; as on a GPU, out-of-range values saturate and NaN
// gives 0
namespace simulator {
template <typename To, typename From>
To to_integer(From rounded) {
    constexpr To lowest = static_cast<To>(-1) < 0 ? static_cast<To>(1ull << (sizeof(To) * 8 - 1)) : To(0);
    constexpr To highest = static_cast<To>(~lowest);
    if (rounded != rounded) return 0;
    if (rounded <= static_cast<From>(lowest)) return lowest;
    return rounded >= static_cast<From>(highest) ? highest : static_cast<To>(rounded);
}
}  // namespace simulator
#define SIMULATOR_TO_INTEGER(From, from, To, to)                                               \
    inline To __##from##2##to##_rn(From x) { return simulator::to_integer<To>(nearbyint(x)); } \
    inline To __##from##2##to##_rz(From x) { return simulator::to_integer<To>(trunc(x)); }     \
    inline To __##from##2##to##_ru(From x) { return simulator::to_integer<To>(ceil(x)); }      \
    inline To __##from##2##to##_rd(From x) { return simulator::to_integer<To>(floor(x)); }
SIMULATOR_TO_INTEGER(float, float, int, int)
SIMULATOR_TO_INTEGER(float, float, unsigned, uint)
SIMULATOR_TO_INTEGER(float, float, long long, ll)
SIMULATOR_TO_INTEGER(float, float, unsigned long long, ull)
SIMULATOR_TO_INTEGER(double, double, int, int)
SIMULATOR_TO_INTEGER(double, double, unsigned, uint)
SIMULATOR_TO_INTEGER(double, double, long long, ll)
SIMULATOR_TO_INTEGER(double, double, unsigned long long, ull)
#undef SIMULATOR_TO_INTEGER
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }

inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
constexpr float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
constexpr double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }

// ---- bits and integers
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
inline unsigned long long __brevll(unsigned long long x) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 | __brev(x >> 32);
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= (bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (static_cast<uint64_t>(high) << 32 | low) << (shift & 31) >> 32;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (static_cast<uint64_t>(high) << 32 | low) >> (shift & 31);
}
inline int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<int64_t>(a) * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<uint64_t>(a) * b >> 32; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<unsigned long long>(static_cast<Wide>(a) * b >> 64);
}
inline unsigned __sad(int a, int b, unsigned c) { return c + static_cast<unsigned>(a < b ? b - a : a - b); }
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return c + (a < b ? b - a : a - b); }
// Dot products: four bytes by four; two 16-bit integers by the low or the high two bytes.
#define SIMULATOR_DOT(T, Byte, Half)                                                                       \
    inline T __dp4a(T a, T b, T c) {                                                                       \
        for (int i = 0; i < 32; i += 8) c += static_cast<Byte>(a >> i) * static_cast<Byte>(b >> i);        \
        return c;                                                                                          \
    }                                                                                                      \
    inline T __dp2a_lo(T a, T b, T c) {                                                                    \
        return c + static_cast<Half>(a) * static_cast<Byte>(b) + static_cast<Half>(a >> 16) * static_cast<Byte>(b >> 8); \
    }                                                                                                      \
    inline T __dp2a_hi(T a, T b, T c) { return __dp2a_lo(a, b >> 16, c); }
SIMULATOR_DOT(int, int8_t, int16_t)
SIMULATOR_DOT(unsigned, uint8_t, uint16_t)
#undef SIMULATOR_DOT

// ---- loads and stores with a cache hint
#define SIMULATOR_LOAD(name) template <typename T> T name(const T* address) { return *address; }
#define SIMULATOR_LOAD_AGAIN(name) \
    template <typename T> T name(const T* address) { return __atomic_signal_fence(__ATOMIC_SEQ_CST), *address; }
#define SIMULATOR_STORE(name) template <typename T> void name(T* address, T value) { *address = value; }
SIMULATOR_LOAD(__ldg) SIMULATOR_LOAD(__ldca) SIMULATOR_LOAD_AGAIN(__ldcg)
SIMULATOR_LOAD(__ldcs) SIMULATOR_LOAD_AGAIN(__ldcv) SIMULATOR_LOAD(__ldlu)
SIMULATOR_STORE(__stwb) SIMULATOR_STORE(__stcg) SIMULATOR_STORE(__stcs) SIMULATOR_STORE(__stwt)
#undef SIMULATOR_LOAD
#undef SIMULATOR_LOAD_AGAIN
#undef SIMULATOR_STORE
