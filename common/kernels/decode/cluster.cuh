// cluster.cuh - clusters: neighbouring blocks that run at the same time and reach each other's shared memory.
//
//   has_clusters(), MAX_CLUSTER           whether the GPU has them, and of how many blocks
//   cluster_arrive(), cluster_wait()      a barrier of all threads of a cluster, in two halves
//   in_block(pointer, rank)               the same place in the shared memory of another block of the cluster
//   launch_clusters(kernel, grid, block, cluster, shared_bytes, stream, arguments...)
//
// A block must not reach for the shared memory of another one before that has begun, nor after it has ended.
//
// launch_clusters is launch_after of common/cuda/dependent_launch.cuh with clusters: the kernel must call
// wait_for_predecessor().
//
// Compute capability 9.0 and above; elsewhere, and in the simulator, every block is a cluster of its own.
#pragma once
#include <cuda_runtime.h>

#include "common/cuda/check.h"
#include "common/cuda/dependent_launch.cuh"
#ifndef CUDA_SIMULATOR
#include <cooperative_groups.h>
#endif

constexpr int MAX_CLUSTER = 8;  // more than that not every GPU can do

#if !defined(CUDA_SIMULATOR) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void cluster_arrive() { cooperative_groups::this_cluster().barrier_arrive(); }
__device__ __forceinline__ void cluster_wait() { cooperative_groups::this_cluster().barrier_wait(); }
template <typename T>
__device__ __forceinline__ T* in_block(T* pointer, int rank) {
    return cooperative_groups::this_cluster().map_shared_rank(pointer, rank);
}
#else
__device__ __forceinline__ void cluster_arrive() {}
__device__ __forceinline__ void cluster_wait() { __syncthreads(); }
template <typename T>
__device__ __forceinline__ T* in_block(T* pointer, int) {
    return pointer;
}
#endif

inline bool has_clusters() {
#ifdef CUDA_SIMULATOR
    return false;
#else
    return device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
#endif
}

// grid: a multiple of `cluster`, which is 1 where there are no clusters
template <typename... Parameters, typename... Arguments>
void launch_clusters(void (*kernel)(Parameters...), unsigned grid, unsigned block, int cluster, size_t shared_bytes,
                     cudaStream_t stream, const Arguments&... arguments) {
    if (cluster == 1) return launch_after(kernel, grid, block, shared_bytes, stream, arguments...);
#ifndef CUDA_SIMULATOR
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, arguments...));
#endif
}
