// half and bfloat16: conversions, arithmetic, comparisons, functions, pairs, in shuffles and atomics.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "feature.h"

template <typename T, typename Pair>
__global__ void arithmetic(float* out, T* total) {
    const T a(1.5f), b(-2.25f);
    out[0] = float(a + b), out[1] = float(a * b), out[2] = float(__hfma(a, b, a)), out[3] = a < b, out[4] = float(__hmax(a, b));
    out[5] = float(hexp2(T(3.0f))), out[6] = float(hsqrt(T(16.0f))), out[7] = float(__habs(b)), out[8] = float(-b);
    T c = a;
    c += b;
    out[9] = float(c);
    atomicAdd(total, T(0.5f));
    const T other = __shfl_xor_sync(0xffffffffu, T(float(threadIdx.x)), 1);
    if (threadIdx.x == 6) out[10] = float(other);
}
__global__ void pairs(float* out) {
    const __half2 a = __floats2half2_rn(1, 2), b = __half2half2(__float2half(3));
    const __half2 c = __hfma2(a, b, a);
    const __nv_bfloat162 d = __hadd2(__floats2bfloat162_rn(5, 6), __floats2bfloat162_rn(1, 1));
    out[0] = __low2float(c), out[1] = __high2float(c), out[2] = __low2float(d), out[3] = __high2float(d);
    out[4] = __half2float(__float2half(1e6f)), out[5] = __half2float(__float2half_rn(1.0f + 0x1p-11f));
    out[6] = __bfloat162float(__float2bfloat16(1.0f + 0x1p-8f)), out[7] = __half_as_ushort(__float2half(-2.0f));
}

int main() {
    const float expected[11] = {-0.75f, -3.375f, -1.875f, 0, 1.5f, 8, 4, 2.25f, 2.25f, -0.75f, 7};
    Buffer<float> first(11), second(11), mixed(8);
    Buffer<__half> half_total(1, __half(0.0f));
    Buffer<__nv_bfloat16> brain_total(1, __nv_bfloat16(0.0f));
    arithmetic<__half, __half2><<<1, 32>>>(first.device(), half_total.device());
    arithmetic<__nv_bfloat16, __nv_bfloat162><<<1, 32>>>(second.device(), brain_total.device());
    pairs<<<1, 1>>>(mixed.device());
    first.fetch(), second.fetch(), mixed.fetch(), half_total.fetch(), brain_total.fetch();
    for (int i = 0; i < 11; ++i) {
        EXPECT(first[i] == expected[i]);
        EXPECT(second[i] == expected[i]);
    }
    EXPECT(float(half_total[0]) == 16 && float(brain_total[0]) == 16);
    const float pair[8] = {4, 8, 6, 7, INFINITY, 1, 1, 0xc000};
    for (int i = 0; i < 8; ++i) EXPECT(mixed[i] == pair[i]);
    return done();
}
