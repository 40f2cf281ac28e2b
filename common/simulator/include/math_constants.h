// math_constants.h - CUDA's names for the usual constants.
#pragma once
#include <math.h>

#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_INF static_cast<double>(INFINITY)
#define CUDART_NAN static_cast<double>(NAN)
#define CUDART_PI_F 3.141592654f
#define CUDART_PI 3.1415926535897931
#define CUDART_L2E_F 1.442695041f
#define CUDART_LN2_F 0.693147181f
#define CUDART_SQRT_2_F 1.414213562f
