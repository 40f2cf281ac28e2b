// logarithms.h - conversion between base e and base 2.
//
//   LOG2_E     log2(e):  e^x = 2^(x * LOG2_E)
//   LN_2       ln(2):    ln(x) = log2(x) * LN_2
//
// GPUs have instructions for exponentials and logarithms in base 2, not in base e: expf(x) is a multiplication followed
// by exp2f. A kernel that scales its scores anyway gets the multiplication for free by folding LOG2_E into the scale.
#pragma once

constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;
