// rounding.h - arithmetic and conversions that round to nearest (rn), toward zero (rz), up (ru) or down (rd):
// __fadd_rz, __double2float_ru, ...
//
// They set the CPU's rounding mode. Operands and result are volatile, so the compiler can neither constant-fold the
// operation nor move it past the calls that set the mode.
#pragma once
#include <fenv.h>
#include <math.h>

namespace simulator {
int set_rounding(int mode);  // returns the previous mode
template <typename T, int MODE, typename Op, typename... Values>
T rounded(Op op, Values... values) {
    if constexpr (MODE == FE_TONEAREST) return op(values...);
    const int before = set_rounding(MODE);
    volatile T result = op(static_cast<volatile Values&>(values)...);
    set_rounding(before);
    return result;
}
}  // namespace simulator

#define SIMULATOR_ROUNDED_1(name, MODE, T, A, expression) \
    inline T name(A a) { return simulator::rounded<T, MODE>([](A a) -> T { return expression; }, a); }
#define SIMULATOR_ROUNDED_2(name, MODE, T, expression) \
    inline T name(T a, T b) { return simulator::rounded<T, MODE>([](T a, T b) -> T { return expression; }, a, b); }
#define SIMULATOR_ROUNDED_3(name, MODE, T, expression) \
    inline T name(T a, T b, T c) { return simulator::rounded<T, MODE>([](T a, T b, T c) -> T { return expression; }, a, b, c); }
#define SIMULATOR_ROUNDED_TYPE(mode, MODE, T, t, fma_)               \
    SIMULATOR_ROUNDED_2(__##t##add_##mode, MODE, T, a + b)           \
    SIMULATOR_ROUNDED_2(__##t##sub_##mode, MODE, T, a - b)           \
    SIMULATOR_ROUNDED_2(__##t##mul_##mode, MODE, T, a * b)           \
    SIMULATOR_ROUNDED_2(__##t##div_##mode, MODE, T, a / b)           \
    SIMULATOR_ROUNDED_1(__##t##rcp_##mode, MODE, T, T, 1 / a)        \
    SIMULATOR_ROUNDED_1(__##t##sqrt_##mode, MODE, T, T, sqrt(a))     \
    SIMULATOR_ROUNDED_3(fma_##_##mode, MODE, T, fma(a, b, c))
#define SIMULATOR_ROUNDED_MODE(mode, MODE)                                        \
    SIMULATOR_ROUNDED_TYPE(mode, MODE, float, f, __fmaf)                          \
    SIMULATOR_ROUNDED_TYPE(mode, MODE, double, d, __fma)                          \
    SIMULATOR_ROUNDED_3(__fmaf_ieee_##mode, MODE, float, fmaf(a, b, c))           \
    SIMULATOR_ROUNDED_1(__double2float_##mode, MODE, float, double, a)            \
    SIMULATOR_ROUNDED_1(__int2float_##mode, MODE, float, int, a)                  \
    SIMULATOR_ROUNDED_1(__uint2float_##mode, MODE, float, unsigned, a)            \
    SIMULATOR_ROUNDED_1(__ll2float_##mode, MODE, float, long long, a)             \
    SIMULATOR_ROUNDED_1(__ull2float_##mode, MODE, float, unsigned long long, a)   \
    SIMULATOR_ROUNDED_1(__ll2double_##mode, MODE, double, long long, a)           \
    SIMULATOR_ROUNDED_1(__ull2double_##mode, MODE, double, unsigned long long, a)
SIMULATOR_ROUNDED_MODE(rn, FE_TONEAREST)
SIMULATOR_ROUNDED_MODE(rz, FE_TOWARDZERO)
SIMULATOR_ROUNDED_MODE(ru, FE_UPWARD)
SIMULATOR_ROUNDED_MODE(rd, FE_DOWNWARD)
#undef SIMULATOR_ROUNDED_MODE
#undef SIMULATOR_ROUNDED_TYPE
#undef SIMULATOR_ROUNDED_1
#undef SIMULATOR_ROUNDED_2
#undef SIMULATOR_ROUNDED_3
