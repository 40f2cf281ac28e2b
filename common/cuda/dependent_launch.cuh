// dependent_launch.cuh - programmatic dependent launch: a kernel starts before its predecessor has finished.
//
//   launch_dependents()                 in the first kernel: the second one may start launching now
//   wait_for_predecessor()              in the second kernel: blocks until the first one's writes are visible
//   launch_after(kernel, grid, block, shared_bytes, stream, arguments...)       launches the second kernel
//   launch_clusters_after(kernel, cluster, grid, ...)                           the same, in clusters of `cluster`
//                                                                               blocks
//
// Between two kernels of a stream the GPU drains, and launching the second takes a microsecond or two. Here its blocks
// are scheduled onto the SMs while the first one still runs, do the work that does not depend on it, and wait. Every
// block of the second kernel must call wait_for_predecessor(), even one that reads nothing: kernels after the second
// rely on the first having finished, too.
//
// Compute capability 9.0 and above; elsewhere the second kernel simply follows the first, without clusters. In the
// simulator it also follows; clusters are available in a build for sm_90a.
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

// grid.x: a multiple of `cluster`, which is 1 where clusters are not supported.
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
