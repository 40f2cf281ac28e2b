// flash_dropout_mask.cu - materializes which weights dropout keeps.
//
// The attention kernels never store this; they recompute it wherever they need it (attention_policies.cuh). This is for
// tests and for reproducing a model without these kernels.
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/check.h"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/attention_policies.cuh"

constexpr int THREADS = 256;

// One thread per element of kept [batch * heads, S_q, S_k].
__global__ void __launch_bounds__(THREADS) dropout_mask_kernel(const DropoutMaskArguments a) {
    const int64_t i = blockIdx.x * int64_t{THREADS} + threadIdx.x;
    if (i >= a.batch * a.heads * a.S_q * a.S_k) return;
    const int key = static_cast<int>(i % a.S_k), row = static_cast<int>(i / a.S_k % a.S_q);
    a.kept[i] = keep_weight(a.dropout, *a.dropout.seed, i / a.S_k / a.S_q, row, key);
}

void dropout_mask(const DropoutMaskArguments& a) {
    const int64_t elements = a.batch * a.heads * a.S_q * a.S_k;
    const unsigned blocks = grid_blocks(ceil_div(elements, int64_t{THREADS}), "the mask");
    dropout_mask_kernel<<<blocks, THREADS, 0, a.stream>>>(a);
    CUDA_CHECK_LAUNCH();
}
