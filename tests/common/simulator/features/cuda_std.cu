// cuda::atomic, cuda::atomic_ref, cuda::barrier, cuda::pipeline and cuda::std.
#include <cooperative_groups.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/std/array>

#include "feature.h"

__global__ void count(int* counts, const int* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    cuda::atomic_ref<int, cuda::thread_scope_device> bucket(counts[in[i] % 8]);
    bucket.fetch_add(1, cuda::memory_order_relaxed);
    cuda::atomic_ref<int, cuda::thread_scope_device>(counts[8]).fetch_max(in[i]);
}

// Each block waits until the one before it has published its sum.
__global__ void chain(cuda::atomic<int, cuda::thread_scope_device>* turn, const int* in, int* out) {
    if (threadIdx.x != 0) return;
    while (turn->load(cuda::memory_order_acquire) != static_cast<int>(blockIdx.x)) {
    }
    out[blockIdx.x] = in[blockIdx.x] + (blockIdx.x ? out[blockIdx.x - 1] : 0);
    turn->store(blockIdx.x + 1, cuda::memory_order_release);
}

__global__ void phases(const int* in, int* out, int steps) {
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    __shared__ int values[2][64];
    auto block = cooperative_groups::this_thread_block();
    const int t = threadIdx.x;
    if (t == 0) init(&barrier, blockDim.x);
    block.sync();
    int sum = 0;
    for (int step = 0; step < steps; ++step) {
        values[step % 2][t] = in[step * 64 + t];
        auto token = barrier.arrive();
        barrier.wait(static_cast<decltype(token)&&>(token));
        sum += values[step % 2][63 - t];
    }
    out[t] = sum;
}

__global__ void staged(const int* in, int* out, int steps) {
    constexpr int STAGES = 2;
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> state;
    __shared__ int tiles[STAGES][64];
    auto block = cooperative_groups::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    int sum = 0, next = 0;
    for (int step = 0; step < steps; ++step) {
        for (; next < steps && next < step + STAGES; ++next) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, tiles[next % STAGES], in + next * 64, 64 * sizeof(int), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += tiles[step % STAGES][63 - threadIdx.x];
        pipe.consumer_release();
    }
    out[threadIdx.x] = sum;
}

__global__ void arrays(int* out) {
    cuda::std::array<int, 4> values = {1, 2, 3, 4};
    out[threadIdx.x] = values[threadIdx.x];
}

int main() {
    const int n = 1000, blocks = 5, steps = 6;
    Buffer<int> in(n), counts(9), sums(blocks), turn(1), out(64), small(4);
    for (int i = 0; i < n; ++i) in[i] = (i * 31) % 997;
    count<<<8, 128>>>(counts.device(), in.device(), n);
    counts.fetch();
    int expected[9] = {};
    for (int i = 0; i < n; ++i) ++expected[in[i] % 8], expected[8] = in[i] > expected[8] ? in[i] : expected[8];
    for (int i = 0; i < 9; ++i) EXPECT(counts[i] == expected[i]);
    chain<<<blocks, 32>>>(reinterpret_cast<cuda::atomic<int, cuda::thread_scope_device>*>(turn.device()), in.device(), sums.device());
    sums.fetch();
    for (int i = 0, sum = 0; i < blocks; ++i) EXPECT(sums[i] == (sum += in[i]));
    phases<<<1, 64>>>(in.device(), out.device(), steps);
    out.fetch();
    for (int t = 0; t < 64; ++t) {
        int sum = 0;
        for (int s = 0; s < steps; ++s) sum += in[s * 64 + 63 - t];
        EXPECT(out[t] == sum);
        out[t] = -1;
    }
    staged<<<1, 64>>>(in.device(), out.device(), steps);
    out.fetch();
    for (int t = 0; t < 64; ++t) {
        int sum = 0;
        for (int s = 0; s < steps; ++s) sum += in[s * 64 + 63 - t];
        EXPECT(out[t] == sum);
    }
    arrays<<<1, 4>>>(small.device());
    small.fetch();
    EXPECT(small[0] == 1 && small[3] == 4);
    return done();
}
