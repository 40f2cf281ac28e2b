// cuda_fp8.h - the two 8-bit floating-point types: e4m3 (no infinity, at most 448) and e5m2 (at most 57344).
//
// Conversions round to nearest even and saturate to the largest finite value, as on a GPU, unless __NV_NOSAT asks for
// infinity or NaN.
#pragma once
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

namespace simulator {

struct Fp8Format {
    int mantissa, bias;
    unsigned largest, overflow;  // encodings of the largest finite value, and of overflow without saturation
};
constexpr Fp8Format fp8_format(__nv_fp8_interpretation_t kind) {
    return kind == __NV_E4M3 ? Fp8Format{3, 7, 0x7e, 0x7f} : Fp8Format{2, 15, 0x7b, 0x7c};
}

inline double fp8_value(unsigned bits, __nv_fp8_interpretation_t kind) {
    const Fp8Format f = fp8_format(kind);
    const unsigned magnitude = bits & 0x7f;
    const double sign = bits & 0x80 ? -1 : 1;
    if (magnitude > f.largest) return magnitude == 0x7c && kind == __NV_E5M2 ? sign * HUGE_VAL : NAN;
    const int exponent = static_cast<int>(magnitude >> f.mantissa), one = 1 << f.mantissa;
    const int digits = static_cast<int>(magnitude & (one - 1)) + (exponent ? one : 0);
    return sign * ldexp(digits, (exponent ? exponent : 1) - f.bias - f.mantissa);
}

inline unsigned char fp8_bits(double value, __nv_saturation_t saturation, __nv_fp8_interpretation_t kind) {
    const Fp8Format f = fp8_format(kind);
    const unsigned sign = signbit(value) ? 0x80 : 0;
    const double magnitude = fabs(value);
    if (magnitude != magnitude) return 0x7f;
    int exponent = magnitude > 0 ? ilogb(magnitude < 1e30 ? magnitude : 1e30) : 1 - f.bias;
    if (exponent < 1 - f.bias) exponent = 1 - f.bias;
    const double digits = nearbyint(ldexp(magnitude < 1e30 ? magnitude : 1e30, f.mantissa - exponent));
    if (ldexp(digits, exponent - f.mantissa) > fp8_value(f.largest, kind))
        return static_cast<unsigned char>(sign | (saturation == __NV_SATFINITE ? f.largest : f.overflow));
    // A carry out of the digits propagates into the exponent.
    const unsigned subnormal = digits < (1 << f.mantissa);
    const unsigned bits = (static_cast<unsigned>(exponent + f.bias - 1) << f.mantissa) + static_cast<unsigned>(digits);
    return static_cast<unsigned char>(sign | (subnormal ? static_cast<unsigned>(digits) : bits));
}

template <__nv_fp8_interpretation_t KIND>
struct Fp8 {
    __nv_fp8_storage_t __x;
    Fp8() = default;
    explicit Fp8(float v) : __x(fp8_bits(v, __NV_SATFINITE, KIND)) {}
    explicit Fp8(double v) : __x(fp8_bits(v, __NV_SATFINITE, KIND)) {}
    explicit Fp8(int v) : __x(fp8_bits(v, __NV_SATFINITE, KIND)) {}
    explicit Fp8(unsigned v) : __x(fp8_bits(v, __NV_SATFINITE, KIND)) {}
    explicit Fp8(__half v) : Fp8(static_cast<float>(v)) {}
    explicit Fp8(__nv_bfloat16 v) : Fp8(static_cast<float>(v)) {}
    explicit operator float() const { return static_cast<float>(fp8_value(__x, KIND)); }
    explicit operator double() const { return fp8_value(__x, KIND); }
    explicit operator __half() const { return __half(static_cast<float>(*this)); }
    explicit operator __nv_bfloat16() const { return __nv_bfloat16(static_cast<float>(*this)); }
    explicit operator int() const { return static_cast<int>(fp8_value(__x, KIND)); }
    explicit operator bool() const { return __x & 0x7f; }
};
template <__nv_fp8_interpretation_t KIND>
struct alignas(2) Fp8Pair {
    __nv_fp8x2_storage_t __x;
    Fp8Pair() = default;
    explicit Fp8Pair(float2 v) : __x(static_cast<__nv_fp8x2_storage_t>(Fp8<KIND>(v.x).__x | Fp8<KIND>(v.y).__x << 8)) {}
    explicit Fp8Pair(__half2 v) : Fp8Pair(__half22float2(v)) {}
    explicit operator float2() const {
        return make_float2(static_cast<float>(fp8_value(__x & 0xff, KIND)), static_cast<float>(fp8_value(__x >> 8, KIND)));
    }
    explicit operator __half2() const { return __float22half2_rn(static_cast<float2>(*this)); }
};
template <__nv_fp8_interpretation_t KIND>
struct alignas(4) Fp8Four {
    __nv_fp8x4_storage_t __x;
    Fp8Four() = default;
    explicit Fp8Four(float4 v)
        : __x(Fp8<KIND>(v.x).__x | Fp8<KIND>(v.y).__x << 8 | Fp8<KIND>(v.z).__x << 16 |
              static_cast<unsigned>(Fp8<KIND>(v.w).__x) << 24) {}
    explicit operator float4() const {
        const auto at = [this](int i) { return static_cast<float>(fp8_value(__x >> 8 * i & 0xff, KIND)); };
        return make_float4(at(0), at(1), at(2), at(3));
    }
};

}  // namespace simulator

using __nv_fp8_e4m3 = simulator::Fp8<__NV_E4M3>;
using __nv_fp8_e5m2 = simulator::Fp8<__NV_E5M2>;
using __nv_fp8x2_e4m3 = simulator::Fp8Pair<__NV_E4M3>;
using __nv_fp8x2_e5m2 = simulator::Fp8Pair<__NV_E5M2>;
using __nv_fp8x4_e4m3 = simulator::Fp8Four<__NV_E4M3>;
using __nv_fp8x4_e5m2 = simulator::Fp8Four<__NV_E5M2>;

// ---- e8m0: powers of two, 2^(bits - 127); 0xff is NaN. Signs are dropped.
enum cudaRoundMode { cudaRoundNearest, cudaRoundZero, cudaRoundPosInf, cudaRoundMinInf };
inline __nv_fp8_storage_t __nv_cvt_float_to_e8m0(float v, __nv_saturation_t saturation, cudaRoundMode how) {
    const unsigned bits = __builtin_bit_cast(unsigned, v) & 0x7fffffff;
    const bool up = how == cudaRoundPosInf && bits & 0x7fffff && bits > 0x400000 && bits < 0x7f800000;
    const unsigned power = (bits >> 23) + up;
    return static_cast<__nv_fp8_storage_t>(power == 0xff && saturation == __NV_SATFINITE && bits <= 0x7f800000 ? 0xfe : power);
}

// ---- conversions from a type Of, whose numeric value is value(v), and from pairs of it
#define SIMULATOR_TO_8_BITS(name, Of, value, format, convert, How)                                                     \
    inline __nv_fp8_storage_t __nv_cvt_##name##_to_##format(Of v, __nv_saturation_t saturation, How how) {             \
        return convert(value(v), saturation, how);                                                                     \
    }
#define SIMULATOR_PAIR_TO_8_BITS(name, Of, value, format, convert, How)                                                \
    inline __nv_fp8x2_storage_t __nv_cvt_##name##_to_##format##x2(Of v, __nv_saturation_t saturation, How how) {       \
        return static_cast<__nv_fp8x2_storage_t>(convert(value(v.x), saturation, how) |                                \
                                                 convert(value(v.y), saturation, how) << 8);                           \
    }
#define SIMULATOR_TO_FP8(KIND, name, Of, value) SIMULATOR_##KIND(name, Of, value, fp8, simulator::fp8_bits, __nv_fp8_interpretation_t)
#define SIMULATOR_TO_E8M0(KIND, name, Of, value) SIMULATOR_##KIND(name, Of, value, e8m0, __nv_cvt_float_to_e8m0, cudaRoundMode)
SIMULATOR_TO_FP8(TO_8_BITS, float, float, )
SIMULATOR_TO_FP8(TO_8_BITS, double, double, )
SIMULATOR_TO_FP8(TO_8_BITS, halfraw, __half_raw, __half2float)
SIMULATOR_TO_FP8(TO_8_BITS, bfloat16raw, __nv_bfloat16_raw, __bfloat162float)
SIMULATOR_TO_FP8(PAIR_TO_8_BITS, float2, float2, )
SIMULATOR_TO_FP8(PAIR_TO_8_BITS, double2, double2, )
SIMULATOR_TO_FP8(PAIR_TO_8_BITS, halfraw2, __half2_raw, simulator::Fp16Format::widen)
SIMULATOR_TO_FP8(PAIR_TO_8_BITS, bfloat16raw2, __nv_bfloat162_raw, simulator::Bf16Format::widen)
SIMULATOR_TO_E8M0(TO_8_BITS, double, double, simulator::to_odd)
SIMULATOR_TO_E8M0(TO_8_BITS, bfloat16raw, __nv_bfloat16_raw, __bfloat162float)
SIMULATOR_TO_E8M0(PAIR_TO_8_BITS, float2, float2, )
SIMULATOR_TO_E8M0(PAIR_TO_8_BITS, double2, double2, simulator::to_odd)
SIMULATOR_TO_E8M0(PAIR_TO_8_BITS, bfloat162raw, __nv_bfloat162_raw, simulator::Bf16Format::widen)
#undef SIMULATOR_TO_FP8
#undef SIMULATOR_TO_E8M0
#undef SIMULATOR_TO_8_BITS
#undef SIMULATOR_PAIR_TO_8_BITS
inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t bits, __nv_fp8_interpretation_t kind) {
    return __half(static_cast<float>(simulator::fp8_value(bits, kind)));
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t bits, __nv_fp8_interpretation_t kind) {
    return {__nv_cvt_fp8_to_halfraw(bits & 0xff, kind).x, __nv_cvt_fp8_to_halfraw(bits >> 8, kind).x};
}
inline __nv_bfloat16_raw __nv_cvt_e8m0_to_bf16raw(__nv_fp8_storage_t x) {
    return {static_cast<unsigned short>(x == 0xff ? 0x7fff : x ? x << 7 : 0x40)};
}
inline __nv_bfloat162_raw __nv_cvt_e8m0x2_to_bf162raw(__nv_fp8x2_storage_t x) {
    return {__nv_cvt_e8m0_to_bf16raw(x & 0xff).x, __nv_cvt_e8m0_to_bf16raw(x >> 8).x};
}
