// float_type.h - the types that kernels compute with, as passed to a launcher.
//
//   FloatType     float32, float16 or bfloat16; float_type() of binding.h gives that of a tensor, for_float_type() of
//                 float_conversion.cuh makes a type of it
#pragma once

enum class FloatType { FLOAT32, FLOAT16, BFLOAT16 };
