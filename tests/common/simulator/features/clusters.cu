// Thread block clusters: declared and asked for at launch, shared memory of other blocks, cluster barriers; and grids whose
// blocks wait for each other, by grid.sync() and by an atomic counter of their own.
#include <cooperative_groups.h>

#include "feature.h"

namespace cg = cooperative_groups;

// Each block adds up what its neighbors in the cluster hold; out [blocks]
__device__ void add_neighbors(int* out) {
    __shared__ int mine[32];
    cg::cluster_group cluster = cg::this_cluster();
    mine[threadIdx.x] = 100 * blockIdx.x + threadIdx.x;
    cluster.sync();
    int sum = 0;
    for (unsigned rank = 0; rank < cluster.num_blocks(); ++rank) sum += cluster.map_shared_rank(mine, rank)[threadIdx.x];
    cluster.sync();
    if (threadIdx.x == 3) out[blockIdx.x] = sum + 10000 * cluster.block_rank();
}
__global__ void __cluster_dims__(2, 1, 1) declared(int* out) { add_neighbors(out); }
__global__ void asked(int* out) { add_neighbors(out); }

// Rounds in which every block writes and then reads what the next one wrote.
__global__ void by_grid_barrier(int* numbers, int* out) {
    cg::grid_group grid = cg::this_grid();
    for (int round = 0; round < 3; ++round) {
        if (threadIdx.x == 0) numbers[blockIdx.x] = 10 * round + blockIdx.x;
        grid.sync();
        if (threadIdx.x == 0) out[blockIdx.x] += numbers[(blockIdx.x + 1) % gridDim.x];
        grid.sync();
    }
}
__global__ void by_counter(int* numbers, unsigned* counter, int* out) {
    numbers[blockIdx.x] = blockIdx.x + 1;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(counter, 1u);
        while (atomicAdd(counter, 0u) < gridDim.x) {
        }
        __threadfence();
        out[blockIdx.x] = numbers[(blockIdx.x + 1) % gridDim.x];
    }
}

int main() {
    Buffer<int> out(8);
    declared<<<8, 32>>>(out.device());
    out.fetch();
    for (int i = 0; i < 8; ++i) EXPECT(out[i] == 100 * (i / 2 * 4 + 1) + 6 + 10000 * (i % 2));

    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 4, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(8), config.blockDim = dim3(32), config.attrs = &attribute, config.numAttrs = 1;
    EXPECT(cudaLaunchKernelEx(&config, asked, out.device()) == cudaSuccess);
    out.fetch();
    for (int i = 0; i < 8; ++i) EXPECT(out[i] == 100 * (i / 4 * 16 + 6) + 12 + 10000 * (i % 4));
    config.gridDim = dim3(6);  // no whole clusters
    EXPECT(cudaLaunchKernelEx(&config, asked, out.device()) != cudaSuccess);
    cudaGetLastError();

    Buffer<int> numbers(8), sums(8);
    int *of_blocks = numbers.device(), *into = sums.device();
    void* arguments[] = {&of_blocks, &into};
    EXPECT(cudaLaunchCooperativeKernel(by_grid_barrier, dim3(8), dim3(32), arguments) == cudaSuccess);
    sums.fetch();
    for (int i = 0; i < 8; ++i) EXPECT(sums[i] == 30 + 3 * ((i + 1) % 8));
    Buffer<unsigned> counter(1);
    unsigned* count = counter.device();
    Buffer<int> next(8);
    int* result = next.device();
    void* others[] = {&of_blocks, &count, &result};
    EXPECT(cudaLaunchCooperativeKernel(by_counter, dim3(8), dim3(32), others) == cudaSuccess);
    next.fetch();
    for (int i = 0; i < 8; ++i) EXPECT(next[i] == (i + 1) % 8 + 1);
    return done();
}
