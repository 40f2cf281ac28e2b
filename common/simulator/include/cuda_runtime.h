// cuda_runtime.h - what a .cu file includes, for the CPU. Each part says in its first lines what it holds.
#pragma once
#ifndef CUDA_SIMULATOR
#define CUDA_SIMULATOR 1
#endif

#include "simulator/vector_types.h"
#include "simulator/thread.h"
#include "simulator/language.h"
#include "simulator/warp.h"
#include "simulator/atomics.h"
#include "simulator/math.h"
#include "simulator/host_api.h"
#include "simulator/streams.h"
#include "simulator/launch_api.h"
#include "simulator/pitched_memory.h"
#include "simulator/device_api.h"
