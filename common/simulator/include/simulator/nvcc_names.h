// nvcc_names.h - the macros by which a .cu file knows that nvcc compiles it. The rewriter puts this before each .cu
// and not before headers, which a binding.cpp may include as well.
#pragma once
#include "../cuda_runtime.h"

#define __NVCC__ 1
#define __CUDACC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDACC_VER_BUILD__ 0
#define __CUDA_ARCH__ 890  // architecture.py: what that means where host and device code are compiled in one go
