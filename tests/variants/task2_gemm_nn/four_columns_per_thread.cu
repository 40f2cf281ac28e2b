// No shared memory: a thread has four neighboring columns of one row of C, and reads B and writes C by float4
// where N is a multiple of 4; else one float at a time, by the same code.
#include <algorithm>

#include "common/cuda/check.h"
#include "task2/given/attention_kernel.h"

template <bool VECTORS>
__device__ float4 load_four(const float* p, int how_many) {
    if constexpr (VECTORS) {
        return *reinterpret_cast<const float4*>(p);
    } else {
        return make_float4(p[0], how_many > 1 ? p[1] : 0.0f, how_many > 2 ? p[2] : 0.0f, how_many > 3 ? p[3] : 0.0f);
    }
}

template <bool VECTORS>
__device__ void store_four(float* p, float4 v, int how_many) {
    if constexpr (VECTORS) {
        *reinterpret_cast<float4*>(p) = v;
    } else {
        p[0] = v.x;
        if (how_many > 1) p[1] = v.y;
        if (how_many > 2) p[2] = v.z;
        if (how_many > 3) p[3] = v.w;
    }
}

template <bool VECTORS>
__global__ void nn_four_kernel(const float* a, const float* b, float* c, int64_t rows, int M, int N, int K) {
    const int64_t groups = (N + 3) / 4;
    const int64_t step = int64_t{blockDim.x} * gridDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * groups; i += step) {
        const int64_t row = i / groups, col = i % groups * 4;
        const int how_many = static_cast<int>(N - col);
        const float* b_here = b + row / M * K * N + col;
        float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int k = 0; k < K; ++k) {
            const float x = a[row * K + k];
            const float4 y = load_four<VECTORS>(b_here + static_cast<int64_t>(k) * N, how_many);
            sum.x += x * y.x;
            sum.y += x * y.y;
            sum.z += x * y.z;
            sum.w += x * y.w;
        }
        store_four<VECTORS>(c + row * N + col, sum, how_many);
    }
}

void gemm_nn(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K, cudaStream_t stream) {
    const bool aligned = (uintptr_t(b) | uintptr_t(c)) % 16 == 0;
    const auto kernel = N % 4 == 0 && aligned ? nn_four_kernel<true> : nn_four_kernel<false>;
    const int64_t threads = batch * M * ceil_div(N, 4);
    kernel<<<static_cast<unsigned>(std::min<int64_t>(ceil_div(threads, int64_t{256}), 65'536)), 256, 0, stream>>>(
        a, b, c, batch * M, M, N, K);
    CUDA_CHECK_LAUNCH();
}
