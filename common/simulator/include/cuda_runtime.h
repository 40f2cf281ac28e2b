// cuda_runtime.h - the CPU's stand-in for CUDA's header. The first lines of each part say what it holds.
#pragma once
#ifndef CUDA_SIMULATOR
#define CUDA_SIMULATOR 1
#endif

// C++20's math.h puts std::lerp into the global namespace, where it clashes with a program's own lerp(float, float,
// float). The rewriter includes this file first; a binding.cpp that has already included cmath needs no workaround.
#if !defined(_GLIBCXX_CMATH) && !defined(_LIBCPP_CMATH)
#define lerp simulator_std_lerp
#include <cmath>
#include <math.h>
#undef lerp
namespace std {
constexpr float lerp(float a, float b, float t) noexcept { return simulator_std_lerp(a, b, t); }
constexpr double lerp(double a, double b, double t) noexcept { return simulator_std_lerp(a, b, t); }
}  // namespace std
#endif

#include "simulator/vector_types.h"
#include "simulator/thread.h"
#include "simulator/language.h"
#include "simulator/heap.h"
#include "simulator/warp.h"
#include "simulator/atomics.h"
#include "simulator/matrix.h"
#include "simulator/sorting.h"
#include "simulator/math.h"
#include "simulator/small_names.h"
#include "simulator/rounding.h"
#include "simulator/simd.h"
#include "simulator/host_api.h"
#include "simulator/streams.h"
#include "simulator/launch_api.h"
#include "simulator/pitched_memory.h"
#include "simulator/graphs.h"
#include "simulator/device_api.h"
#include "simulator/tensor_map.h"
