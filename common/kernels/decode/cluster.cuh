// cluster.cuh - clusters: neighboring blocks that run at the same time and access each other's shared memory.
//
//   has_clusters(), MAX_CLUSTER           whether the GPU supports them, and the largest size used
//   cluster_arrive(), cluster_wait()      a barrier of all threads of a cluster, in two halves
//   in_block(pointer, rank)               the same location in the shared memory of another block of the cluster
//
// A block must not access the shared memory of another one before that has started or after it has exited. Clusters are
// launched by launch_clusters_after() of common/cuda/dependent_launch.cuh.
//
// Compute capability 9.0 and above, also in the simulator; elsewhere every block is its own cluster.
#pragma once
#include <cuda_runtime.h>

#include "common/cuda/check.h"
#if !defined(CUDA_SIMULATOR) || defined(CUDA_SIMULATOR_SM90A)
#include <cooperative_groups.h>
#endif

constexpr int MAX_CLUSTER = 8;  // the largest portable cluster size

#if defined(CUDA_SIMULATOR_SM90A) || (!defined(CUDA_SIMULATOR) && __CUDA_ARCH__ >= 900)
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

inline bool has_clusters() { return device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9; }
