// Directed rounding, SIMD in a word, comparisons of half2, special functions: tables of results for the tests.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "test.h"

// out[i][mode][operation]
#define MODE(m, T, t, fma)                                                                                      \
    *o++ = __##t##add_##m(a, b), *o++ = __##t##sub_##m(a, b), *o++ = __##t##mul_##m(a, b);                      \
    *o++ = __##t##div_##m(a, b), *o++ = fma##_##m(a, b, c), *o++ = __##t##rcp_##m(a), *o++ = __##t##sqrt_##m(a);
#define DIRECTED(name, T, t, fma)                                                                               \
    __global__ void name##_kernel(T* out, const T* in, int n) {                                                 \
        const int i = blockIdx.x * blockDim.x + threadIdx.x;                                                    \
        if (i >= n) return;                                                                                     \
        const T a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2];                                            \
        T* o = out + 28 * i;                                                                                    \
        MODE(rn, T, t, fma) MODE(rz, T, t, fma) MODE(ru, T, t, fma) MODE(rd, T, t, fma)                         \
    }                                                                                                           \
    EXPORT(name, (T * out, const T* in, int n), { name##_kernel<<<(n + 63) / 64, 64>>>(out, in, n); })
DIRECTED(directed_float, float, f, __fmaf)
DIRECTED(directed_double, double, d, __fma)

// Conversions to float, half and bfloat16: out[i][mode] as doubles.
#define CONVERTED(name, From, function)                                                                    \
    __global__ void name##_kernel(double* out, const From* in, int n) {                                    \
        const int i = blockIdx.x * blockDim.x + threadIdx.x;                                               \
        if (i >= n) return;                                                                                \
        const From x = in[i];                                                                              \
        double* o = out + 4 * i;                                                                           \
        o[0] = double(float(function##_rn(x))), o[1] = double(float(function##_rz(x)));                    \
        o[2] = double(float(function##_ru(x))), o[3] = double(float(function##_rd(x)));                    \
    }                                                                                                      \
    EXPORT(name, (double* out, const From* in, int n), { name##_kernel<<<(n + 63) / 64, 64>>>(out, in, n); })
CONVERTED(float_of_double, double, __double2float)
CONVERTED(float_of_longlong, long long, __ll2float)
CONVERTED(float_of_ulonglong, unsigned long long, __ull2float)
CONVERTED(half_of_float, float, __float2half)
CONVERTED(half_of_int, int, __int2half)
CONVERTED(bf16_of_float, float, __float2bfloat16)
CONVERTED(bf16_of_longlong, long long, __ll2bfloat16)

// out[i][function], in the order of test_math_api.py
#define PER_LANE(n)                                                                                                     \
    *o++ = __vadd##n(a, b), *o++ = __vsub##n(a, b), *o++ = __vaddss##n(a, b), *o++ = __vaddus##n(a, b);                 \
    *o++ = __vsubss##n(a, b), *o++ = __vsubus##n(a, b), *o++ = __vavgs##n(a, b), *o++ = __vavgu##n(a, b);               \
    *o++ = __vhaddu##n(a, b), *o++ = __vmaxs##n(a, b), *o++ = __vmaxu##n(a, b), *o++ = __vmins##n(a, b);                \
    *o++ = __vminu##n(a, b), *o++ = __vabsdiffs##n(a, b), *o++ = __vabsdiffu##n(a, b), *o++ = __vabs##n(a);             \
    *o++ = __vabsss##n(a), *o++ = __vneg##n(a), *o++ = __vnegss##n(a), *o++ = __vcmpeq##n(a, b);                        \
    *o++ = __vcmpges##n(a, b), *o++ = __vcmpgtu##n(a, b), *o++ = __vcmples##n(a, b), *o++ = __vcmpltu##n(a, b);         \
    *o++ = __vcmpne##n(a, b), *o++ = __vseteq##n(a, b), *o++ = __vsetgts##n(a, b), *o++ = __vsetgeu##n(a, b);           \
    *o++ = __vsetlts##n(a, b), *o++ = __vsetleu##n(a, b), *o++ = __vsads##n(a, b), *o++ = __vsadu##n(a, b);
__global__ void simd_kernel(unsigned* out, const unsigned* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2];
    unsigned* o = out + 80 * i;
    PER_LANE(2) PER_LANE(4)
    bool high = false, low = false;
    *o++ = __viaddmax_s32(a, b, c), *o++ = __viaddmin_u32(a, b, c), *o++ = __vimax3_s32_relu(a, b, c);
    *o++ = __viaddmax_s16x2(a, b, c), *o++ = __viaddmin_u16x2(a, b, c), *o++ = __viaddmin_s16x2_relu(a, b, c);
    *o++ = __vimin3_s16x2(a, b, c), *o++ = __vibmax_s16x2(a, b, &high, &low), *o++ = 2 * high + low;
    *o++ = __vibmin_u32(a, b, &high), *o++ = high, *o++ = __dp2a_lo(a, b, c), *o++ = __dp2a_hi(int(a), int(b), int(c));
    *o++ = __dp4a(a, b, c), *o++ = __urhadd(a, b), *o++ = __funnelshift_rc(a, b, c & 63);
}
EXPORT(simd, (unsigned* out, const unsigned* in, int n), { simd_kernel<<<(n + 63) / 64, 64>>>(out, in, n); })

// Comparisons of pairs, as floats, masks and truths.
#define COMPARED(op)                                                                                                    \
    *o++ = __low2float(__h##op##2(a, b)), *o++ = __high2float(__h##op##2(a, b)), *o++ = __h##op##2_mask(a, b) >> 16;    \
    *o++ = __h##op##2_mask(a, b) & 0xffff, *o++ = __hb##op##2(a, b), *o++ = __h##op(__low2half(a), __low2half(b));
__global__ void compared_kernel(float* out, const half2* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const half2 a = in[2 * i], b = in[2 * i + 1];
    float* o = out + 72 * i;
    COMPARED(eq) COMPARED(ne) COMPARED(lt) COMPARED(le) COMPARED(gt) COMPARED(ge)
    COMPARED(equ) COMPARED(neu) COMPARED(ltu) COMPARED(leu) COMPARED(gtu) COMPARED(geu)
}
EXPORT(compared_pairs, (float* out, const half2* in, int n), { compared_kernel<<<(n + 63) / 64, 64>>>(out, in, n); })

// out[i][function], in the order of test_math_api.py
#define SPECIAL(T, f)                                                                                                   \
    __global__ void special_##T##_kernel(T* out, const T* in, int n) {                                                  \
        const int i = blockIdx.x * blockDim.x + threadIdx.x;                                                            \
        if (i >= n) return;                                                                                             \
        const T x = in[i];                                                                                              \
        T* o = out + 9 * i;                                                                                             \
        *o++ = erfinv##f(x), *o++ = erfcinv##f(x), *o++ = normcdfinv##f(x), *o++ = erfcx##f(x);                         \
        *o++ = cyl_bessel_i0##f(x), *o++ = cyl_bessel_i1##f(x);                                                         \
        *o++ = norm3d##f(x, T(0x1p101), 1), *o++ = rnorm4d##f(x, 2, 3, 4), *o++ = rhypot##f(x, 3);                         \
    }                                                                                                                   \
    EXPORT(special_##T, (T * out, const T* in, int n), { special_##T##_kernel<<<(n + 63) / 64, 64>>>(out, in, n); })
SPECIAL(double, )
SPECIAL(float, f)
