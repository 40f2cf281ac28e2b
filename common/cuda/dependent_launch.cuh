// dependent_launch.cuh - a kernel that is started before its predecessor has ended (programmatic dependent launch).
//
//   launch_dependents()                 in the first kernel: the second one may be launched from now on
//   wait_for_predecessor()              in the second one: from here on, what the first one wrote is there
//   launch_after(kernel, grid, block, shared_bytes, stream, arguments...)       the launch of the second one
//   launch_clusters_after(kernel, cluster, grid, ...)                           the same; `cluster` blocks each
//
// Between two kernels of a stream a GPU drains, and starting the second takes a microsecond or two. Here its blocks are
// brought to the SMs while the first one still works, do what does not depend on it, and wait. Every block
// of the second kernel must call wait_for_predecessor(), also one that reads nothing: what comes after the second
// kernel relies on the first one having ended, too.
//
// Compute capability 9.0 and above; elsewhere the second kernel simply follows the first, and there are no clusters. In the
// simulator it follows, too, and there are clusters in a build for sm_90a.
#pragma once
#include <cuda_runtime.h>

#include "common/cuda/check.h"

__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}

// grid.x: a multiple of `cluster`, which is 1 where there are no clusters.
template <typename... Parameters, typename... Arguments>
void launch_clusters_after(void (*kernel)(Parameters...), unsigned cluster, dim3 grid, dim3 block, size_t shared_bytes,
                           cudaStream_t stream, const Arguments&... arguments) {
#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
    kernel<<<grid, block, shared_bytes, stream>>>(arguments...);
    CUDA_CHECK_LAUNCH();
#else
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = device_attribute(cudaDevAttrComputeCapabilityMajor) < 9 ? 0 : cluster > 1 ? 2 : 1;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, arguments...));
#endif
}

template <typename... Parameters, typename... Arguments>
void launch_after(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                  const Arguments&... arguments) {
    launch_clusters_after(kernel, 1, grid, block, shared_bytes, stream, arguments...);
}
