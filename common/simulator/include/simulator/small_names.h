// small_names.h - rarely used functions of CUDA's math library and device headers.
#pragma once
#include "hopper.h"
#include "language.h"
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

// ---- special functions: computed in double; the float versions round the result
// exp(x^2) erfc(x), with a correction for the rounding error of x^2; the asymptotic series for large x.
inline double erfcx(double x) noexcept {
    if (x < 10) {
        const double square = x * x;
        return exp(square) * (1 + fma(x, x, -square)) * erfc(x);
    }
    double term = 1, sum = 1;
    for (int n = 1; n < 40 && fabs(term) > 1e-17; ++n) sum += term *= -(2 * n - 1) / (2 * x * x);
    return sum / (x * 1.77245385090551602730);
}
// Solves erfc(x) = y: erfinv for y near 1, otherwise an initial guess from log(y) and Halley's method.
inline double erfinv(double y) noexcept;
inline double erfcinv(double y) noexcept {
    if (fabs(1 - y) <= 0.5) return erfinv(1 - y);
    if (!(y > 0 && y < 2)) return y == 0 ? HUGE_VAL : y == 2 ? -HUGE_VAL : NAN;
    const bool upper = y > 1;
    const double small = upper ? 2 - y : y, root = sqrt(-2 * (log(small) - M_LN2));
    double x = -M_SQRT1_2 * ((2.30753 + root * 0.27061) / (1 + root * (0.99229 + root * 0.04481)) - root);
    for (int i = 0; i < 3; ++i) {
        // (erfc(x) - y) / (2 / sqrt(pi) exp(-x^2)), without underflow
        const double step = (erfcx(x) - exp(fma(x, x, log(small)))) * 0.88622692545275801365;
        x += step / (1 - x * step);
    }
    return upper ? -x : x;
}
inline double erfinv(double y) noexcept {
    if (!(fabs(y) < 1)) return y == 1 || y == -1 ? copysign(HUGE_VAL, y) : NAN;
    if (fabs(y) > 0.5) return y > 0 ? erfcinv(1 - y) : -erfcinv(1 + y);
    double x = y * 0.88622692545275801365;
    for (int i = 0; i < 4; ++i) {
        const double step = (erf(x) - y) * exp(x * x) * 0.88622692545275801365;
        x -= step / (1 + x * step);
    }
    return y == 0 ? y : x;
}
inline double normcdfinv(double p) noexcept { return -M_SQRT2 * erfcinv(2 * p); }
namespace simulator {
// Modified Bessel function of the first kind, order n, by its power series: all terms have the same sign.
inline double bessel_i(int n, double x) noexcept {
    if (fabs(x) > 720) return n && x < 0 ? -HUGE_VAL : HUGE_VAL;
    const long double quarter = static_cast<long double>(x) * x / 4;
    long double term = n ? x / 2 : 1, sum = term;  // long double hides the rounding of hundreds of terms
    for (int k = 1; fabsl(term) > fabsl(sum) * 1e-19L; ++k) sum += term *= quarter / (k * (k + n));
    return static_cast<double>(sum);
}
template <typename T>
T length_of(int n, const T* p) noexcept {
    T largest = 0;
    for (int i = 0; i < n; ++i) {
        if (isinf(p[i])) return HUGE_VAL;  // even next to a NaN
        largest = p[i] != p[i] || largest != largest ? NAN : fmax(largest, fabs(p[i]));
    }
    if (!(largest > 0)) return largest;
    const int exponent = ilogb(static_cast<double>(largest));  // scaled by it, no square overflows
    long double sum = 0;
    for (int i = 0; i < n; ++i) {
        const long double scaled = scalbn(static_cast<double>(p[i]), -exponent);
        sum += scaled * scaled;
    }
    return static_cast<T>(scalbn(sqrt(static_cast<double>(sum)), exponent));
}
}  // namespace simulator
#define SIMULATOR_SPECIAL(name, expression)                 \
    inline double name(double x) noexcept { return expression; } \
    inline float name##f(float x) noexcept { return static_cast<float>(name(static_cast<double>(x))); }
SIMULATOR_SPECIAL(cyl_bessel_i0, simulator::bessel_i(0, x))
SIMULATOR_SPECIAL(cyl_bessel_i1, simulator::bessel_i(1, x))
#undef SIMULATOR_SPECIAL
inline float erfcxf(float x) noexcept { return static_cast<float>(erfcx(static_cast<double>(x))); }
inline float erfinvf(float x) noexcept { return static_cast<float>(erfinv(static_cast<double>(x))); }
inline float erfcinvf(float x) noexcept { return static_cast<float>(erfcinv(static_cast<double>(x))); }
inline float normcdfinvf(float x) noexcept { return static_cast<float>(normcdfinv(static_cast<double>(x))); }
#define SIMULATOR_NORMS(T, f)                                                                                    \
    inline T norm##f(int n, const T* p) noexcept { return simulator::length_of(n, p); }                          \
    inline T rnorm##f(int n, const T* p) noexcept { return 1 / simulator::length_of(n, p); }                     \
    inline T rhypot##f(T x, T y) noexcept { return 1 / hypot##f(x, y); }                                         \
    inline T norm3d##f(T x, T y, T z) noexcept { const T p[] = {x, y, z}; return norm##f(3, p); }                \
    inline T rnorm3d##f(T x, T y, T z) noexcept { return 1 / norm3d##f(x, y, z); }                               \
    inline T norm4d##f(T x, T y, T z, T w) noexcept { const T p[] = {x, y, z, w}; return norm##f(4, p); }        \
    inline T rnorm4d##f(T x, T y, T z, T w) noexcept { return 1 / norm4d##f(x, y, z, w); }
SIMULATOR_NORMS(double, )
SIMULATOR_NORMS(float, f)
#undef SIMULATOR_NORMS

inline int __hadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b) >> 1); }
inline int __rhadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b + 1) >> 1); }
inline unsigned __uhadd(unsigned a, unsigned b) { return static_cast<unsigned>((static_cast<unsigned long long>(a) + b) >> 1); }
inline unsigned __urhadd(unsigned a, unsigned b) { return static_cast<unsigned>((static_cast<unsigned long long>(a) + b + 1) >> 1); }
inline unsigned short __nv_bswap16(unsigned short x) { return __builtin_bswap16(x); }
inline unsigned __nv_bswap32(unsigned x) { return __builtin_bswap32(x); }
inline unsigned long long __nv_bswap64(unsigned long long x) { return __builtin_bswap64(x); }
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? low : __funnelshift_l(low, high, shift);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? high : __funnelshift_r(low, high, shift);
}
inline long long __mul64hi(long long a, long long b) {
    __extension__ using Wide = __int128;
    return static_cast<long long>(static_cast<Wide>(a) * b >> 64);
}
inline int __double2hiint(double x) { return static_cast<int>(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return static_cast<int>(__double_as_longlong(x)); }
inline double __hiloint2double(int high, int low) {
    return __longlong_as_double(static_cast<long long>(high) << 32 | static_cast<unsigned>(low));
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
inline bool __isGlobal(const void* address) {
    return !simulator::is_shared(address) && reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(simulator::current_block()) >= simulator::REGION_BYTES;
}
inline bool __isShared(const void* address) { return simulator::is_shared(address); }
inline size_t __cvta_generic_to_shared(const void* address) { return simulator::shared_offset(address); }
inline void* __cvta_shared_to_generic(size_t offset) { return simulator::shared_address(offset); }
#define SIMULATOR_SPACE(space)                                                                                   \
    inline size_t __cvta_generic_to_##space(const void* address) { return reinterpret_cast<size_t>(address); } \
    inline void* __cvta_##space##_to_generic(size_t address) { return reinterpret_cast<void*>(address); }
SIMULATOR_SPACE(global)
SIMULATOR_SPACE(constant)
SIMULATOR_SPACE(local)
SIMULATOR_SPACE(grid_constant)
#undef SIMULATOR_SPACE
// Constant variables are not tracked, so code that asks takes its generic path.
inline bool __isConstant(const void*) { return false; }
inline bool __isGridConstant(const void*) { return false; }
inline bool __isLocal(const void* address) {
    return reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(simulator::current_block()) < simulator::REGION_BYTES;
}
inline bool __isCtaShared(const void* address) { return simulator::is_shared(address); }

// ---- clusters and named barriers
inline void __threadfence_cluster() { __threadfence(); }
inline void __cluster_barrier_arrive(simulator::Position at = simulator::here()) { simulator::cluster_arrive(at); }
inline void __cluster_barrier_arrive_relaxed(simulator::Position at = simulator::here()) { simulator::cluster_arrive(at); }
inline void __cluster_barrier_wait(simulator::Position at = simulator::here()) { simulator::cluster_wait(at); }
inline bool __isClusterShared(const void* address) { return simulator::is_shared(address) || simulator::cluster_rank_of(address) != simulator::cluster_place().rank; }
inline unsigned __cluster_query_shared_rank(const void* address) { return simulator::cluster_rank_of(address); }
inline void* __cluster_map_shared_rank(const void* address, unsigned rank, simulator::Position at = simulator::here()) {
    return simulator::cluster_address(address, rank, at);
}
inline unsigned __clusterDimIsSpecified() { return simulator::cluster_place().is_explicit; }
inline unsigned __clusterRelativeBlockRank() { return simulator::cluster_place().rank; }
inline unsigned __clusterSizeInBlocks() { return simulator::cluster_place().size; }
inline dim3 __clusterDim() { return simulator::cluster_place().shape; }
inline dim3 __clusterRelativeBlockIdx() { return simulator::cluster_place().index; }
inline dim3 __clusterGridDimInClusters() { return simulator::cluster_place().clusters; }
inline dim3 __clusterIdx() { return simulator::cluster_place().cluster; }
inline void __barrier_sync_count(unsigned number, unsigned threads, simulator::Position at = simulator::here()) {
    simulator::named_barrier(number, threads, true, at);
}
inline void __barrier_sync(unsigned number, simulator::Position at = simulator::here()) {
    const dim3 size = blockDim;
    simulator::named_barrier(number, size.x * size.y * size.z, true, at);
}
// The names in sm_20_intrinsics.h.
inline int syncthreads_count(bool p, simulator::Position at = simulator::here()) { return __syncthreads_count(p, at); }
inline bool syncthreads_and(bool p, simulator::Position at = simulator::here()) { return __syncthreads_and(p, at); }
inline bool syncthreads_or(bool p, simulator::Position at = simulator::here()) { return __syncthreads_or(p, at); }
