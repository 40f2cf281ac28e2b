// nvcc_names.h - the macros that nvcc predefines. The rewriter includes this in each .cu file but not in headers, which
// a binding.cpp may include, too.
#pragma once
#include "../cuda_runtime.h"

#define __NVCC__ 1
#define __CUDACC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDACC_VER_BUILD__ 0
// architecture.py: how conditions on this are answered in a single compiler pass. targets.py: the architectures.
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
