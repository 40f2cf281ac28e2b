// flash_sinks.cu - the gradient of the sinks, from delta and lse: -sum over the rows of exp(sink - lse) * delta.
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/exp2.cuh"
#include "common/cuda/logarithms.h"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_backward.cuh"

constexpr int SINKS_THREADS = 1024;

// One block per head, which sums in a fixed order. Rows that see no key have weight 0 and delta 0.
//   batch: 1 for packed sequences
__global__ void __launch_bounds__(SINKS_THREADS)
    flash_sinks_kernel(const float* sinks, float* grad_sinks, const RowNumbers numbers, int64_t batch, int64_t heads) {
    const int64_t head = blockIdx.x;
    __shared__ float sums[SINKS_THREADS / 32];
    const float sink = sinks[head] * LOG2_E, to_log2 = LOG2_E / numbers.unit;
    float sum = 0;
    for (int64_t i = 0; i < batch; ++i) {
        const int64_t first = (i * heads + head) * numbers.rows;
        UNROLL_BY(4)
        for (unsigned row = threadIdx.x; row < numbers.rows; row += SINKS_THREADS) {
            const float weight = exp2_approx(sink - numbers.lse[first + row] * to_log2);
            sum -= weight * numbers.delta[first + row];
        }
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < SINKS_THREADS / 32; ++i) sum += sums[i];
    grad_sinks[head] = sum;
}

void launch_sinks(const FlashGradients& g, const RowNumbers& numbers) {
    const FlashArguments& a = g.forward;
    flash_sinks_kernel<<<grid_blocks(a.heads, "query"), SINKS_THREADS, 0, a.stream>>>(
        a.sinks, g.grad_sinks, numbers, a.packed() ? 1 : a.batch, a.heads);
    CUDA_CHECK_LAUNCH();
}
