// logarithms.h - from base e to base 2 and back.
//
//   LOG2_E     log2(e):  e^x = 2^(x * LOG2_E)
//   LN_2       ln(2):    ln(x) = log2(x) * LN_2
//
// A GPU has instructions for powers and logarithms of base 2, and none for those of base e: expf(x) is exp2f of a
// product. A kernel whose scores are multiplied by something anyway gets that product for nothing: LOG2_E goes into the
// scale, once.
#pragma once

constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;
