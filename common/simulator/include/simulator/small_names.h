// small_names.h - functions of CUDA's math library that few kernels use.
#pragma once
#include "math.h"

inline unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned umax(unsigned a, unsigned b) { return a < b ? b : a; }
inline long long llmin(long long a, long long b) { return a < b ? a : b; }
inline long long llmax(long long a, long long b) { return a < b ? b : a; }
inline unsigned long long ullmin(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
inline unsigned long long ullmax(unsigned long long a, unsigned long long b) { return a < b ? b : a; }
inline double rcbrt(double x) noexcept { return 1 / cbrt(x); }
inline double sinpi(double x) noexcept { return sin(M_PI * x); }
inline double cospi(double x) noexcept { return cos(M_PI * x); }
inline void sincospif(float x, float* s, float* c) noexcept { *s = sinpif(x), *c = cospif(x); }
inline void sincospi(double x, double* s, double* c) noexcept { *s = sinpi(x), *c = cospi(x); }
inline double normcdf(double x) noexcept { return 0.5 * erfc(-x * M_SQRT1_2); }
inline float erfcxf(float x) noexcept { return static_cast<float>(exp(double(x) * x) * erfc(double(x))); }
inline float rhypotf(float x, float y) noexcept { return 1 / hypotf(x, y); }
inline float norm3df(float x, float y, float z) noexcept { return sqrtf(x * x + y * y + z * z); }
inline float norm4df(float x, float y, float z, float w) noexcept { return sqrtf(x * x + y * y + z * z + w * w); }
inline float rnorm3df(float x, float y, float z) noexcept { return 1 / norm3df(x, y, z); }
inline int __hadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b) >> 1); }
inline int __rhadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b + 1) >> 1); }
inline unsigned __uhadd(unsigned a, unsigned b) { return static_cast<unsigned>((static_cast<unsigned long long>(a) + b) >> 1); }
inline long long __mul64hi(long long a, long long b) {
    __extension__ using Wide = __int128;
    return static_cast<long long>(static_cast<Wide>(a) * b >> 64);
}
inline int __double2hiint(double x) { return static_cast<int>(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return static_cast<int>(__double_as_longlong(x)); }
inline double __hiloint2double(int high, int low) {
    return __longlong_as_double(static_cast<long long>(high) << 32 | static_cast<unsigned>(low));
}
inline unsigned __vaddus4(unsigned a, unsigned b) {
    unsigned result = 0;
    for (int i = 0; i < 32; i += 8) {
        const unsigned sum = (a >> i & 0xff) + (b >> i & 0xff);
        result |= (sum > 255 ? 255u : sum) << i;
    }
    return result;
}
inline unsigned __vadd4(unsigned a, unsigned b) {
    return ((a & 0x7f7f7f7fu) + (b & 0x7f7f7f7fu)) ^ ((a ^ b) & 0x80808080u);
}
inline unsigned __fns(unsigned mask, unsigned base, int offset) {
    if (offset == 0) return mask >> base & 1 ? base : ~0u;
    const int step = offset > 0 ? 1 : -1;
    for (int bit = static_cast<int>(base), left = offset * step; bit >= 0 && bit < 32; bit += step)
        if (mask >> bit & 1 && --left == 0) return static_cast<unsigned>(bit);
    return ~0u;
}
inline unsigned __lane_id() { return simulator::current_thread()->lane; }
inline void __prof_trigger(int) {}
inline bool __isGlobal(const void* address) { return !simulator::is_shared(address); }
inline bool __isShared(const void* address) { return simulator::is_shared(address); }
inline size_t __cvta_generic_to_shared(const void* address) { return simulator::shared_offset(address); }
inline void* __cvta_shared_to_generic(size_t offset) { return simulator::shared_address(offset); }
inline size_t __cvta_generic_to_global(const void* address) { return reinterpret_cast<size_t>(address); }
