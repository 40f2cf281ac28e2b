// Groups of threads: blocks, tiles, the lanes that are here, reductions and scans, and a grid that waits for itself,
// also while copies are under way.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

#include "feature.h"

namespace cg = cooperative_groups;

__global__ void tiles(int* out) {
    cg::thread_block block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    auto four = cg::tiled_partition<4>(warp);
    const int t = block.thread_rank();
    int sum = t;
    for (int d = four.size() / 2; d > 0; d /= 2) sum += four.shfl_xor(sum, d);
    out[8 * t] = sum;                                     // of the tile of four
    out[8 * t + 1] = warp.meta_group_rank() * 100 + four.thread_rank();
    out[8 * t + 2] = cg::reduce(warp, t, cg::plus<int>());
    out[8 * t + 3] = cg::reduce(four, t, cg::greater<int>());
    out[8 * t + 4] = cg::inclusive_scan(four, t, cg::plus<int>());
    out[8 * t + 5] = cg::exclusive_scan(four, t);
    out[8 * t + 6] = four.ballot(t % 2);
    out[8 * t + 7] = 0;
    if (t % 3 == 0) {
        cg::coalesced_group here = cg::coalesced_threads();
        out[8 * t + 7] = here.size() * 1000 + here.thread_rank() * 10 + here.shfl(t % 10, 0);
    }
    cg::sync(block);
}

__global__ void two_steps(const int* in, int* partial, int* out, int n) {
    cg::grid_group grid = cg::this_grid();
    int sum = 0;
    for (int i = grid.thread_rank(); i < n; i += grid.size()) sum += in[i];
    atomicAdd(&partial[blockIdx.x], sum);
    grid.sync();
    if (grid.thread_rank() == 0)
        for (unsigned b = 0; b < gridDim.x; ++b) out[0] += partial[b];
    grid.sync();
    out[1 + blockIdx.x] = out[0];
}

__global__ void over_a_barrier(const int* in, int* out) {
    __shared__ int tile[64];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, tile, in + blockIdx.x * 64, sizeof tile);
    cg::this_grid().sync();
    cg::wait(block);
    out[blockIdx.x * 64 + threadIdx.x] = tile[63 - threadIdx.x];
}

int main() {
    Buffer<int> out(64 * 8);
    tiles<<<1, 64>>>(out.device());
    out.fetch();
    for (int t = 0; t < 64; ++t) {
        const int first = t / 4 * 4, warp = t / 32;
        EXPECT(out[8 * t] == 4 * first + 6);
        EXPECT(out[8 * t + 1] == warp * 100 + t % 4);
        EXPECT(out[8 * t + 2] == 496 + warp * 1024);
        EXPECT(out[8 * t + 3] == first + 3);
        int until = 0;
        for (int i = first; i <= t; ++i) until += i;
        EXPECT(out[8 * t + 4] == until && out[8 * t + 5] == until - t);
        EXPECT(out[8 * t + 6] == 0b1010);
        if (t % 3) continue;
        const int lowest = warp ? 33 : 0, size = warp ? 11 : 11;
        EXPECT(out[8 * t + 7] == size * 1000 + (t - lowest) / 3 * 10 + lowest % 10);
    }
    const int blocks = 6;
    Buffer<int> in(1000), partial(blocks), total(1 + blocks);
    for (int i = 0; i < 1000; ++i) in[i] = i;
    int *a = in.device(), *b = partial.device(), *c = total.device(), n = 1000;
    void* arguments[] = {&a, &b, &c, &n};
    EXPECT(cudaLaunchCooperativeKernel((void*)two_steps, dim3(blocks), dim3(64), arguments, 0, nullptr) == cudaSuccess);
    total.fetch();
    for (int i = 0; i <= blocks; ++i) EXPECT(total[i] == 499500);
    int* d = out.device();
    void* others[] = {&a, &d};
    EXPECT(cudaLaunchCooperativeKernel((void*)over_a_barrier, blocks, 64, others, 0, nullptr) == cudaSuccess);
    out.fetch();
    for (int i = 0; i < blocks * 64; ++i) EXPECT(out[i] == i / 64 * 64 + 63 - i % 64);
    EXPECT(cudaLaunchCooperativeKernel((void*)two_steps, dim3(1 << 20), dim3(1024), arguments, 0, nullptr) ==
           cudaErrorCooperativeLaunchTooLarge);
    cudaGetLastError();
    return done();
}
