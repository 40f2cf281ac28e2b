// half and bfloat16: conversions, arithmetic, comparisons, functions, pairs. One of each; every bit pattern, rounding,
// shuffles and atomics: kernels/types.cu, kernels/warp.cu, kernels/atomics.cu.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "feature.h"

template <typename T>
__global__ void arithmetic(float* out) {
    const T a(1.5f), b(-2.25f);
    T c = a;
    c += b;
    out[0] = float(c * b), out[1] = a < b, out[2] = float(__hmax(a, b)), out[3] = float(hexp2(T(3.0f)));
}
__global__ void pairs(float* out) {
    const __half2 c = __hfma2(__floats2half2_rn(1, 2), __half2half2(__float2half(3)), __floats2half2_rn(1, 2));
    const __nv_bfloat162 d = __hadd2(__floats2bfloat162_rn(5, 6), __floats2bfloat162_rn(1, 1));
    out[0] = __low2float(c), out[1] = __high2float(c), out[2] = __low2float(d), out[3] = __high2float(d);
}

int main() {
    const float expected[12] = {1.6875f, 0, 1.5f, 8, 1.6875f, 0, 1.5f, 8, 4, 8, 6, 7};
    Buffer<float> out(12);
    float* device = out.device();
    arithmetic<__half><<<1, 1>>>(device);
    arithmetic<__nv_bfloat16><<<1, 1>>>(device + 4);
    pairs<<<1, 1>>>(device + 8);
    out.fetch();
    for (int i = 0; i < 12; ++i) EXPECT(out[i] == expected[i]);
    return done();
}
