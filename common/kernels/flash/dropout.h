// dropout.h - the dropout argument of an attention operator, as kernels take it.
//
//   Dropout        seed, threshold and factor
//   dropout_of     host: makes a Dropout from a probability
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

// A weight is kept if a random byte is at least the threshold, and multiplied by `factor`. So the probability is
// quantized to threshold / 256.
struct Dropout {
    const int64_t* seed;  // one number; nullptr: no dropout
    unsigned threshold;   // 1 .. 255, replicated in each of the four bytes
    float factor;         // 1 / (1 - threshold / 256)
};

// 0 < p < 1, rounded to the nearest of 1 / 256 .. 255 / 256
inline Dropout dropout_of(double p, const int64_t* seed) {
    const unsigned threshold = static_cast<unsigned>(std::min(std::max(std::lround(256 * p), 1l), 255l));
    return {seed, threshold * 0x01010101u, 256.0f / static_cast<float>(256 - threshold)};
}
