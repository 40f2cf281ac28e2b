// float_type.h - the dtypes that kernels compute with, as passed to a launcher.
//
//   FloatType     float32, float16 or bfloat16; float_type() of binding.h returns a tensor's, for_float_type() of
//                 float_conversion.cuh maps it to a C++ type
#pragma once

enum class FloatType { FLOAT32, FLOAT16, BFLOAT16 };
