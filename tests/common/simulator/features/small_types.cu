// fp8, and small names: umin, half++, __hadd_sat, lerp, pairs of half.
#include <cuda_fp8.h>

#include "feature.h"

#if defined(__NVCC__) && __cplusplus > 201703L  // nvcc shows std::lerp next to it then
#define lerp own_lerp
#endif
__device__ float lerp(float a, float b, float t) { return a + t * (b - a); }

__global__ void to_fp8(const float* in, float* out, unsigned char* bits, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const __nv_fp8_e4m3 four(in[i]);
    const __nv_fp8_e5m2 five(in[i]);
    out[2 * i] = float(four), out[2 * i + 1] = float(five);
    bits[2 * i] = four.__x, bits[2 * i + 1] = five.__x;
}

__global__ void names(float* out) {
    __half h = __float2half(1.5f);
    out[0] = __half2float(h++);
    out[1] = __half2float(h);
    out[2] = __half2float(__hadd_sat(__float2half(0.75f), __float2half(0.5f)));
    out[3] = umin(3u, 4000000000u) + umax(3u, 4u);
    out[4] = lerp(2.0f, 4.0f, 0.25f);
    out[5] = float(__fns(0xf0u, 0, 2));
    out[6] = float(__vadd4(0x01020304u, 0x01010101u) == 0x02030405u);
    const __half2 saturated = __hadd2_sat(__floats2half2_rn(0.75f, -3), __floats2half2_rn(0.5f, 1));
    out[7] = __low2float(saturated) + 10 * __high2float(saturated);
    __nv_fp8x4_e4m3 four(make_float4(1, 2, -3, 1000));
    const float4 back = four.operator float4();
    out[8] = back.x + back.y + back.z, out[9] = back.w;
}

int main() {
    const int n = 14;
    const float values[n] = {0, 1, -1.0625f, 1.125f, 448, 449, 480, -1e9f, 0.001953125f, 0.0009765625f, 3.3f, 57344, 1e-7f, 240.1f};
    // By hand: e4m3 has steps of 1/8 at 1 (ties to even), 32 at 448, 2^-9 below 2^-6; e5m2 1/4, 8192, 2^-16.
    const float e4m3[n] = {0, 1, -1, 1.125f, 448, 448, 448, -448, 0.001953125f, 0, 3.25f, 448, 0, 240};
    const float e5m2[n] = {0, 1, -1, 1, 448, 448, 512, -57344, 0.001953125f, 0.0009765625f, 3.5f, 57344, 0, 256};
    Buffer<float> in(n), out(2 * n), named(10);
    Buffer<unsigned char> bits(2 * n);
    for (int i = 0; i < n; ++i) in[i] = values[i];
    to_fp8<<<1, 32>>>(in.device(), out.device(), bits.device(), n);
    out.fetch(), bits.fetch();
    for (int i = 0; i < n; ++i) {
        EXPECT(out[2 * i] == e4m3[i]);
        EXPECT(out[2 * i + 1] == e5m2[i]);
    }
    EXPECT(bits[2 * 1] == 0x38 && bits[2 * 1 + 1] == 0x3c && bits[2 * 7] == 0xfe && bits[2 * 7 + 1] == 0xfb && bits[2 * 8] == 0x01);
    names<<<1, 1>>>(named.device());
    named.fetch();
    const float expected[10] = {1.5f, 2.5f, 1, 7, 2.5f, 5, 1, 1, 0, 448};
    for (int i = 0; i < 10; ++i) EXPECT(named[i] == expected[i]);
    return done();
}
