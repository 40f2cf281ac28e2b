// plain_launch.h - shared by the launchers of the plain kernels.
//
//   for_type_and_head_dim    calls f.operator()<T, D>() for a type and head_dim
//   launch_plain             launches with a shape's threads and shared memory; throws if a block cannot have that much
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "common/cuda/check.h"
#include "common/cuda/flash_launch.h"
#include "common/cuda/float_conversion.cuh"
#include "common/kernels/flash/flash.h"

template <typename F>
void for_type_and_head_dim(const FlashArguments& a, F f) {
    if (a.type == FloatType::BFLOAT16) require_bfloat16();
    for_float_type(a.type, [&]<typename T>() {
        a.head_dim <= 64    ? f.template operator()<T, 64>()
        : a.head_dim <= 128 ? f.template operator()<T, 128>()
                            : f.template operator()<T, 256>();
    });
}

template <class S, typename... Parameters, typename... Arguments>
void launch_plain(void (*kernel)(Parameters...), int64_t blocks, const char* what, cudaStream_t stream,
                    const Arguments&... arguments) {
    const int limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    if (S::BYTES > limit)
        throw std::invalid_argument("query has a head_dim that is rounded up to " + std::to_string(S::D) +
                                    ", for which a block needs " + std::to_string(S::BYTES) +
                                    " bytes of shared memory; this GPU has " + std::to_string(limit));
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
    kernel<<<grid_blocks(blocks, what), S::THREADS, S::BYTES, stream>>>(arguments...);
    CUDA_CHECK_LAUNCH();
}
