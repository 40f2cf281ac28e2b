// math_constants.h - CUDA's names for the usual constants, token for token as in nvcc's headers.
#pragma once
#include <math.h>

#define CUDART_INF_F __int_as_float(0x7f800000U)
#define CUDART_NAN_F __int_as_float(0x7fffffffU)
#define CUDART_INF __longlong_as_double(0x7ff0000000000000ULL)
#define CUDART_NAN __longlong_as_double(0xfff8000000000000ULL)
#define CUDART_PI_F 3.141592654F
#define CUDART_PI 3.1415926535897931e+0
#define CUDART_L2E_F 1.442695041F
#define CUDART_LN2_F 0.693147181F
#define CUDART_SQRT_2_F 1.414213562f
