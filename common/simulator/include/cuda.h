#pragma once
#include <cuda_runtime.h>

#include "simulator/tensor_map.h"
