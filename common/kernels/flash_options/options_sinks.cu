// options_sinks.cu - the gradient of the sinks, from delta and lse: -sum over the rows of exp(sink - lse) * delta.
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/exp2.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash_options/options.h"

constexpr int SINKS_THREADS = 1024;

// A block for each head; its sum has the same order every time.   batch: 1 for packed sequences
__global__ void __launch_bounds__(SINKS_THREADS) options_sinks_kernel(const OptionsGradients g, int64_t batch) {
    const OptionsArguments& a = g.forward;
    const int64_t head = blockIdx.x;
    __shared__ float sums[SINKS_THREADS / 32];
    float sum = 0;
    if (a.sinks != nullptr) {
        for (int64_t i = threadIdx.x; i < batch * a.S_q; i += SINKS_THREADS) {
            const int64_t at = (i / a.S_q * a.heads + head) * a.S_q + i % a.S_q;
            if (g.delta[at] != 0) sum -= exp2_approx((a.sinks[head] - a.lse[at]) * LOG2_E) * g.delta[at];
        }
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < SINKS_THREADS / 32; ++i) sum += sums[i];
    g.grad_sinks[head] = sum;
}

void options_sinks(const OptionsGradients& g) {
    const OptionsArguments& a = g.forward;
    options_sinks_kernel<<<grid_blocks(a.heads, "query"), SINKS_THREADS, 0, a.stream>>>(
        g, a.cu_seqlens_q != nullptr ? 1 : a.batch);
    CUDA_CHECK_LAUNCH();
}
