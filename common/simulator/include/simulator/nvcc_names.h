// nvcc_names.h - the macros by which a .cu file knows that nvcc compiles it. The rewriter puts this before each .cu
// and not before headers, which a binding.cpp may include as well.
#pragma once
#include "../cuda_runtime.h"

#define __NVCC__ 1
#define __CUDACC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDACC_VER_BUILD__ 0
// architecture.py: what that means where host and device code are compiled in one go. targets.py: which there are
#ifdef SIMULATOR_ARCH
#define __CUDA_ARCH__ SIMULATOR_ARCH
#else
#define __CUDA_ARCH__ 890
#endif
#ifdef CUDA_SIMULATOR_SM90A
#define __CUDA_ARCH_FEAT_SM90_ALL 1
#define __CUDA_ARCH_SPECIFIC__ 900
#define __CUDA_ARCH_FAMILY_SPECIFIC__ 900
#endif
extern "C" {
extern const int simulator_architecture __attribute__((weak, visibility("hidden")));  // for runtime/host_api.cpp
const int simulator_architecture = __CUDA_ARCH__;
}
