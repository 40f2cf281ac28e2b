// Vector types, the 16-bit floats, mathematics, bits.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>
#include "test.h"

#define LAYOUT(T) out[i++] = sizeof(T), out[i++] = alignof(T);
#define LAYOUTS(T) LAYOUT(T##1) LAYOUT(T##2) LAYOUT(T##3) LAYOUT(T##4)
EXPORT(vector_layouts, (int* out), {
    int i = 0;
    LAYOUTS(char) LAYOUTS(uchar) LAYOUTS(short) LAYOUTS(ushort) LAYOUTS(int) LAYOUTS(uint)
    LAYOUTS(longlong) LAYOUTS(ulonglong) LAYOUTS(float) LAYOUTS(double)
})
__global__ void vectors(float4* out, const float4* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 v = __ldg(&in[i]);
    const int2 p = make_int2(i, 2 * i);
    const uint3 u = blockIdx;
    const dim3 d = u;
    out[i] = make_float4(v.w, v.z + p.x, v.y + p.y, v.x + d.x);
}
EXPORT(vector_kernel, (float4* out, const float4* in, int n), { vectors<<<(n + 31) / 32, 32>>>(out, in, n); })

template <typename T>
__global__ void to_float(float* out, const T* in, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = in[i];
}
template <typename T, typename From>
__global__ void from(T* out, const From* in, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = T(in[i]);
}
EXPORT(half_to_float, (float* out, const half* in, int n), { to_float<<<8, 64>>>(out, in, n); })
EXPORT(bf16_to_float, (float* out, const nv_bfloat16* in, int n), { to_float<<<8, 64>>>(out, in, n); })
EXPORT(half_from_float, (half* out, const float* in, int n), { from<<<8, 64>>>(out, in, n); })
EXPORT(bf16_from_float, (nv_bfloat16* out, const float* in, int n), { from<<<8, 64>>>(out, in, n); })
EXPORT(half_from_double, (half* out, const double* in, int n), { from<<<8, 64>>>(out, in, n); })
EXPORT(bf16_from_double, (nv_bfloat16* out, const double* in, int n), { from<<<8, 64>>>(out, in, n); })

template <typename T>
__global__ void arithmetic(T* out, const T* a, const T* b, const T* c, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = a[i] + b[i];
    out[n + i] = __hsub(a[i], b[i]);
    out[2 * n + i] = a[i] * b[i];
    out[3 * n + i] = a[i] / b[i];
    out[4 * n + i] = __hfma(a[i], b[i], c[i]);
    out[5 * n + i] = __hmax(a[i], -b[i]);
    out[6 * n + i] = T(a[i] < b[i] ? 1.0f : 0.0f);
    out[7 * n + i] = hsqrt(__habs(a[i]));
}
EXPORT(half_arithmetic, (half* out, const half* a, const half* b, const half* c, int n),
       { arithmetic<<<(n + 63) / 64, 64>>>(out, a, b, c, n); })
EXPORT(bf16_arithmetic, (nv_bfloat16* out, const nv_bfloat16* a, const nv_bfloat16* b, const nv_bfloat16* c, int n),
       { arithmetic<<<(n + 63) / 64, 64>>>(out, a, b, c, n); })

__global__ void paired(float2* out, const half2* in, const nv_bfloat162* bf) {
    const half2 h = __hfma2(in[0], __float2half2_rn(2.0f), __halves2half2(__float2half(1.0f), __ushort_as_half(0x3c00)));
    out[0] = __half22float2(__hadd2(h, __floats2half2_rn(0.5f, 0.25f)));
    out[1] = make_float2(__low2float(h), __high2float(h));
    out[2] = __bfloat1622float2(__hmul2(bf[0], __float2bfloat162_rn(3.0f)));
    out[3] = make_float2(__half_as_ushort(__low2half(h)), __bfloat16_as_ushort(__high2bfloat16(bf[0])));
}
EXPORT(half_pairs, (float2* out, const half2* in, const nv_bfloat162* bf), { paired<<<1, 1>>>(out, in, bf); })

__global__ void mathematics(float* out, const float* in, int n) {
    const int i = threadIdx.x;
    if (i >= n) return;
    const float x = in[i];
    int k = 0;
    auto put = [&](float value) { out[k++ * n + i] = value; };
    put(__expf(x)), put(exp2f(x)), put(exp2(x)), put(__logf(x)), put(__log2f(x)), put(rsqrtf(x)), put(__sinf(x));
    put(__cosf(x)), put(__powf(x, 1.5f)), put(__fdividef(1.0f, x)), put(__frcp_rn(x)), put(fmaxf(x, 1.0f));
    put(fminf(x, 1.0f)), put(__fmaf_rn(x, x, 1.0f)), put(sqrtf(x)), put(tanhf(x)), put(erff(x)), put(fabsf(-x));
    put(max(x, 2.0f)), put(floorf(x)), put(abs(-x)), put(isinf(CUDART_INF_F) && isnan(NAN) ? x : 0.0f), put(-INFINITY);
    put(__saturatef(x)), put(__fadd_rn(x, 1.0f)), put(log1pf(x)), put(expm1f(x)), put(sqrt(x)), put(pow(x, 2.0f));
}
EXPORT(math_functions, (float* out, const float* in, int n), { mathematics<<<1, 64>>>(out, in, n); })

__global__ void integers(long long* out) {
    const unsigned one = 1;
    const size_t big = 5;
    int k = 0;
    auto put = [&](long long value) { out[k++] = value; };
    put(min(3, 4)), put(max(3u, 4)), put(min(-1, one)), put(max(big, size_t(7))), put(min(7ll, 9ll));
    put(__popc(0xf0f0u)), put(__popcll(~0ull)), put(__ffs(8)), put(__ffs(0)), put(__clz(1)), put(__clz(0)), put(__clzll(1));
    put(__brev(1u)), put(__byte_perm(0x03020100u, 0x07060504u, 0x7531)), put(__float_as_int(1.0f));
    put(static_cast<long long>(__int_as_float(0x40000000))), put(__float2int_rn(2.5f)), put(__float2int_rz(-2.7f));
    put(__float2int_rn(1e20f)), put(__umulhi(1u << 31, 4)), put(__mulhi(-2, 3)), put(__float2int_rd(-2.1f));
    put(__float2uint_rn(-1.0f)), put(__funnelshift_l(0x80000000u, 1u, 1)), put(__dp4a(0x01020304, 0x01010101, 5));
    put(clock64() > 0), put(warpSize), put(__umul64hi(1ull << 63, 4)), put(__double2int_rn(3.5));
}
EXPORT(integer_functions, (long long* out), { integers<<<1, 1>>>(out); })
