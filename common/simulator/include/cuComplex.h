// cuComplex.h - complex numbers and their arithmetic.
#pragma once
#include <cuda_runtime.h>

typedef float2 cuFloatComplex;
typedef double2 cuDoubleComplex;
typedef cuFloatComplex cuComplex;

// f: the suffix of the float functions. Intermediate values of quotients and magnitudes neither overflow nor underflow.
#define SIMULATOR_COMPLEX(Complex, T, f)                                                                          \
    inline Complex make_##Complex(T real, T imaginary) { return {real, imaginary}; }                              \
    inline T cuCreal##f(Complex a) { return a.x; }                                                                \
    inline T cuCimag##f(Complex a) { return a.y; }                                                                \
    inline Complex cuConj##f(Complex a) { return {a.x, -a.y}; }                                                   \
    inline Complex cuCadd##f(Complex a, Complex b) { return {a.x + b.x, a.y + b.y}; }                             \
    inline Complex cuCsub##f(Complex a, Complex b) { return {a.x - b.x, a.y - b.y}; }                             \
    inline Complex cuCmul##f(Complex a, Complex b) { return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x}; }     \
    inline Complex cuCdiv##f(Complex a, Complex b) {                                                              \
        const T scale = 1 / (fabs##f(b.x) + fabs##f(b.y)), x = b.x * scale, y = b.y * scale;                      \
        const T square = 1 / (x * x + y * y), p = a.x * scale, q = a.y * scale;                                   \
        return {(p * x + q * y) * square, (q * x - p * y) * square};                                              \
    }                                                                                                             \
    inline T cuCabs##f(Complex a) { return hypot##f(a.x, a.y); }                                                  \
    inline Complex cuCfma##f(Complex a, Complex b, Complex c) {                                                   \
        return {-(a.y * b.y) + (a.x * b.x + c.x), a.y * b.x + (a.x * b.y + c.y)};                                 \
    }
SIMULATOR_COMPLEX(cuFloatComplex, float, f)
SIMULATOR_COMPLEX(cuDoubleComplex, double, )
#undef SIMULATOR_COMPLEX
inline cuComplex make_cuComplex(float real, float imaginary) { return {real, imaginary}; }
inline cuDoubleComplex cuComplexFloatToDouble(cuFloatComplex a) { return {a.x, a.y}; }
inline cuFloatComplex cuComplexDoubleToFloat(cuDoubleComplex a) { return {static_cast<float>(a.x), static_cast<float>(a.y)}; }
