// simd.h - SIMD within a word, 2 x 16 or 4 x 8 bits (__vadd2, __vmaxs4, ...), and DPX functions (__viaddmax_s32, ...).
#pragma once
#include <stdint.h>

namespace simulator {

// Applies op to each lane of BITS bits, read as a signed or unsigned integer.
template <int BITS, bool SIGNED, typename Op, typename... Words>
constexpr unsigned lanes(Op op, Words... words) {
    unsigned result = 0;
    for (int i = 0; i < 32; i += BITS) {
        const auto lane = [i](unsigned word) {
            const int up = static_cast<int>(word << (32 - BITS - i));
            return SIGNED ? up >> (32 - BITS) : static_cast<int>(static_cast<unsigned>(up) >> (32 - BITS));
        };
        result |= (static_cast<unsigned>(op(lane(words)...)) & (0xffffffffu >> (32 - BITS))) << i;
    }
    return result;
}
template <int BITS, bool SIGNED>
constexpr int saturated(int x) {
    constexpr int lowest = SIGNED ? -(1 << (BITS - 1)) : 0, highest = (1 << (BITS - SIGNED)) - 1;
    return x < lowest ? lowest : x > highest ? highest : x;
}
template <typename T>
constexpr T larger(T a, T b) {
    return a < b ? b : a;
}
template <typename T>
constexpr T smaller(T a, T b) {
    return a < b ? a : b;
}

}  // namespace simulator

// s: signed lanes, u: unsigned lanes
#define SIMULATOR_LANES1(name, BITS, S, ...) \
    constexpr unsigned name(unsigned x) { return simulator::lanes<BITS, S>([](int a) { return __VA_ARGS__; }, x); }
#define SIMULATOR_LANES2(name, BITS, S, ...) \
    constexpr unsigned name(unsigned x, unsigned y) { return simulator::lanes<BITS, S>([](int a, int b) { return __VA_ARGS__; }, x, y); }
#define SIMULATOR_LANES3(name, BITS, S, ...)                                                        \
    constexpr unsigned name(unsigned x, unsigned y, unsigned z) {                                   \
        return simulator::lanes<BITS, S>([](int a, int b, int c) { return __VA_ARGS__; }, x, y, z); \
    }
#define SIMULATOR_COMPARED(name, n, BITS, S, op)                          \
    SIMULATOR_LANES2(__vcmp##name##n, BITS, S, a op b ? -1 : 0)           \
    SIMULATOR_LANES2(__vset##name##n, BITS, S, a op b ? 1 : 0)
#define SIMULATOR_SIGNED_OR_NOT(n, BITS, s, S)                                                   \
    SIMULATOR_COMPARED(ge##s, n, BITS, S, >=)                                                    \
    SIMULATOR_COMPARED(gt##s, n, BITS, S, >)                                                     \
    SIMULATOR_COMPARED(le##s, n, BITS, S, <=)                                                    \
    SIMULATOR_COMPARED(lt##s, n, BITS, S, <)                                                     \
    SIMULATOR_LANES2(__vmax##s##n, BITS, S, simulator::larger(a, b))                             \
    SIMULATOR_LANES2(__vmin##s##n, BITS, S, simulator::smaller(a, b))                            \
    SIMULATOR_LANES2(__vadd##s##s##n, BITS, S, (simulator::saturated<BITS, S>(a + b)))           \
    SIMULATOR_LANES2(__vsub##s##s##n, BITS, S, (simulator::saturated<BITS, S>(a - b)))           \
    SIMULATOR_LANES2(__vabsdiff##s##n, BITS, S, a < b ? b - a : a - b)                           \
    SIMULATOR_LANES2(__vavg##s##n, BITS, S, (a + b + (a + b >= 0)) >> 1)                         \
    constexpr unsigned __vsad##s##n(unsigned x, unsigned y) {                                    \
        const unsigned d = __vabsdiff##s##n(x, y);                                               \
        unsigned sum = 0;                                                                        \
        for (int i = 0; i < 32; i += BITS) sum += d >> i & (0xffffffffu >> (32 - BITS));         \
        return sum;                                                                              \
    }
#define SIMULATOR_WORD_OF(n, BITS)                                                           \
    SIMULATOR_SIGNED_OR_NOT(n, BITS, s, true)                                                \
    SIMULATOR_SIGNED_OR_NOT(n, BITS, u, false)                                               \
    constexpr unsigned __vaddus##n(unsigned x, unsigned y) { return __vadduu##n(x, y); }     \
    constexpr unsigned __vsubus##n(unsigned x, unsigned y) { return __vsubuu##n(x, y); }     \
    SIMULATOR_COMPARED(eq, n, BITS, true, ==)                                                \
    SIMULATOR_COMPARED(ne, n, BITS, true, !=)                                                \
    SIMULATOR_LANES2(__vadd##n, BITS, true, a + b)                                           \
    SIMULATOR_LANES2(__vsub##n, BITS, true, a - b)                                           \
    SIMULATOR_LANES2(__vhaddu##n, BITS, false, (a + b) >> 1)                                 \
    SIMULATOR_LANES1(__vabs##n, BITS, true, a < 0 ? -a : a)                                  \
    SIMULATOR_LANES1(__vneg##n, BITS, true, -a)                                              \
    SIMULATOR_LANES1(__vabsss##n, BITS, true, (simulator::saturated<BITS, true>(a < 0 ? -a : a))) \
    SIMULATOR_LANES1(__vnegss##n, BITS, true, (simulator::saturated<BITS, true>(-a)))
SIMULATOR_WORD_OF(2, 16)
SIMULATOR_WORD_OF(4, 8)

// ---- DPX: min or max of two or three numbers, or of a sum and a number; _relu: clamped to at least 0
#define SIMULATOR_DPX_WORD(max, pick, T, t, or_equal)                                                                \
    constexpr T __vi##max##3_##t(T a, T b, T c) { return simulator::pick(simulator::pick(a, b), c); }                \
    constexpr T __viadd##max##_##t(T a, T b, T c) {                                                                  \
        return simulator::pick(static_cast<T>(static_cast<unsigned>(a) + static_cast<unsigned>(b)), c);              \
    }                                                                                                                \
    inline T __vib##max##_##t(T a, T b, bool* first) { return *first = a or_equal b, simulator::pick(a, b); }
#define SIMULATOR_DPX_PAIR(max, pick, S, t, or_equal)                                                                \
    SIMULATOR_LANES2(__vi##max##_##t, 16, S, simulator::pick(a, b))                                                  \
    SIMULATOR_LANES3(__vi##max##3_##t, 16, S, simulator::pick(simulator::pick(a, b), c))                             \
    constexpr unsigned __viadd##max##_##t(unsigned a, unsigned b, unsigned c) { return __vi##max##_##t(__vadd2(a, b), c); } \
    inline unsigned __vib##max##_##t(unsigned a, unsigned b, bool* high, bool* low) {                                \
        const unsigned first = simulator::lanes<16, S>([](int x, int y) { return x or_equal y; }, a, b);             \
        return *high = first >> 16, *low = first & 1, __vi##max##_##t(a, b);                                         \
    }
#define SIMULATOR_DPX(max, pick, or_equal)                                                                           \
    SIMULATOR_DPX_WORD(max, pick, int, s32, or_equal)                                                                \
    SIMULATOR_DPX_WORD(max, pick, unsigned, u32, or_equal)                                                           \
    SIMULATOR_DPX_PAIR(max, pick, true, s16x2, or_equal)                                                             \
    SIMULATOR_DPX_PAIR(max, pick, false, u16x2, or_equal)                                                            \
    constexpr int __vi##max##_s32_relu(int a, int b) { return simulator::larger(simulator::pick(a, b), 0); }         \
    constexpr int __vi##max##3_s32_relu(int a, int b, int c) { return simulator::larger(__vi##max##3_s32(a, b, c), 0); } \
    constexpr int __viadd##max##_s32_relu(int a, int b, int c) { return simulator::larger(__viadd##max##_s32(a, b, c), 0); } \
    constexpr unsigned __vi##max##_s16x2_relu(unsigned a, unsigned b) { return __vmaxs2(__vi##max##_s16x2(a, b), 0); } \
    constexpr unsigned __vi##max##3_s16x2_relu(unsigned a, unsigned b, unsigned c) { return __vmaxs2(__vi##max##3_s16x2(a, b, c), 0); } \
    constexpr unsigned __viadd##max##_s16x2_relu(unsigned a, unsigned b, unsigned c) { return __vmaxs2(__viadd##max##_s16x2(a, b, c), 0); }
SIMULATOR_DPX(max, larger, >=)
SIMULATOR_DPX(min, smaller, <=)
#undef SIMULATOR_DPX
#undef SIMULATOR_DPX_PAIR
#undef SIMULATOR_DPX_WORD
#undef SIMULATOR_WORD_OF
#undef SIMULATOR_SIGNED_OR_NOT
#undef SIMULATOR_COMPARED
#undef SIMULATOR_LANES1
#undef SIMULATOR_LANES2
#undef SIMULATOR_LANES3
