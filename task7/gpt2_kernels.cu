// gpt2_kernels.cu - the two small kernels between GPT-2's GEMMs, float32.
//
// Contents
//   Moments, row_moments    mean and 1 / standard deviation of a row                      (gap 1)
//   layernorm_kernel        sum = x + residual (the residual stream); normalizes it       (gap 2)
//   layernorm               its grid and launch
//   gelu                    GPT-2's activation function for one number                    (gap 3)
//   bias_gelu_kernel        gelu(x + bias)                                                (gap 4)
//   bias_gelu               its grid and launch
//
// Neither kernel computes much: both are bound by memory traffic and launch overhead, so the gain comes from fusion.
// A block of GPT-2 is
//
//     x = x + attention(layernorm(x))          x: the residual stream [tokens, width]
//     x = x + mlp(layernorm(x))                mlp(y) = project(gelu(expand(y) + bias)) + bias
//
// and every "x +" is followed by the next layernorm. Fused, the sum is written once, for the next "x +", and no second
// kernel has to read it to normalize it. Likewise, the bias of `expand` is added where gelu reads its output.
//
// Work partitioning. layernorm: one warp per row; lane i takes the columns i, i + 32, ..., so neighboring lanes read
// neighboring floats, and sums over the row are warp_sums. bias_gelu: one thread per element.
//
// Two passes. The variance is the mean of (sum - mean)^2, which needs the mean first. The one-pass formula, mean of
// squares minus square of the mean, is numerically unstable: with a mean of 1,000 and a variance of 1 it subtracts
// 1,000,000 from 1,000,001, and float32 has only 7 digits.

#include "task7/given/gpt2_kernels.h"

#include "common/cuda/check.h"
#include "common/cuda/not_implemented.h"
#include "common/cuda/warp.cuh"

constexpr int WARPS = 8;  // rows per block of layernorm_kernel
constexpr int THREADS = 32 * WARPS;

struct Moments {
    float mean;
    float inverse_std;  // 1 / sqrt(variance + eps)
};

// The moments of row [width], global memory. All lanes of the warp must call it; all get the result.
__device__ __forceinline__ Moments row_moments(const float* row, int width, float eps) {
    const int lane = threadIdx.x % 32;
    Moments moments = {0.0f, 0.0f};
    // TODO 1 (about 7 lines): the mean first: each lane adds up its columns, warp_sum adds up the lanes. Then, in
    //     a second loop, the squared deviations from the mean; the variance is their sum / width. rsqrtf(x) is
    //     1 / sqrt(x).
    NOT_IMPLEMENTED();
    // END TODO
    return moments;
}

// One warp per row. residual may be nullptr: then sum = x.
//
//   x, residual, out, sum [rows, width]; weight, bias [width]
__global__ void __launch_bounds__(THREADS)
    layernorm_kernel(const float* __restrict__ x, const float* __restrict__ residual, const float* __restrict__ weight,
                     const float* __restrict__ bias, float* __restrict__ out, float* sum, int64_t rows, int width,
                     float eps) {
    const int64_t row = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    const int lane = threadIdx.x % 32;
    // TODO 2 (about 6 lines): write the row of `sum` (x + residual, or x alone), each lane its columns; a lane can
    //     read back what it has written. Compute the row's moments, then write the row of `out`.
    NOT_IMPLEMENTED();
    // END TODO
}

void layernorm(const float* x, const float* residual, const float* weight, const float* bias, float* out, float* sum,
               int64_t rows, int width, float eps, cudaStream_t stream) {
    const unsigned blocks = static_cast<unsigned>(ceil_div(rows, int64_t{WARPS}));
    layernorm_kernel<<<blocks, THREADS, 0, stream>>>(x, residual, weight, bias, out, sum, rows, width, eps);
    CUDA_CHECK_LAUNCH();
}

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): the tanh approximation of x times the standard normal CDF at x
// (Hendrycks and Gimpel 2016, arXiv:1606.08415). GPT-2 was trained with it, so the exact GELU, which has
// erf instead of tanh, would be wrong here.
__device__ __forceinline__ float gelu(float x) {
    constexpr float SQRT_2_OVER_PI = 0.7978845608028654f;
    // TODO 3 (about 1 line): the formula above; tanhf(x) is tanh.
    NOT_IMPLEMENTED();
    // END TODO
}

// One thread per element.
//
//   x, out [rows, width] = [elements]; bias [width]
__global__ void __launch_bounds__(THREADS)
    bias_gelu_kernel(const float* __restrict__ x, const float* __restrict__ bias, float* __restrict__ out,
                     int64_t elements, int width) {
    const int64_t i = int64_t{blockIdx.x} * THREADS + threadIdx.x;
    // TODO 4 (about 1 line): element i of `out`, if there is one; its column is i % width.
    NOT_IMPLEMENTED();
    // END TODO
}

void bias_gelu(const float* x, const float* bias, float* out, int64_t rows, int width, cudaStream_t stream) {
    const int64_t elements = rows * width;
    const unsigned blocks = static_cast<unsigned>(ceil_div(elements, int64_t{THREADS}));
    bias_gelu_kernel<<<blocks, THREADS, 0, stream>>>(x, bias, out, elements, width);
    CUDA_CHECK_LAUNCH();
}
