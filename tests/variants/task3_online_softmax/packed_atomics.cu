// Maximum and sum are the two halves of one 64-bit word in shared memory, into which every thread merges its state
// by compare-and-swap: in whatever order they come.
#include "common/cuda/check.h"
#include "task3/given/online_softmax.h"

using Word = unsigned long long;

__device__ Word packed(float m, float l) {
    return static_cast<Word>(__float_as_uint(m)) << 32 | __float_as_uint(l);
}
__device__ float upper(Word word) { return __uint_as_float(static_cast<unsigned>(word >> 32)); }
__device__ float lower(Word word) { return __uint_as_float(static_cast<unsigned>(word)); }

__global__ void online_atomic_kernel(const float* x, float* y, float* lse, int64_t cols) {
    __shared__ Word state;
    const float* in = x + blockIdx.x * cols;
    if (threadIdx.x == 0) state = packed(-INFINITY, 0.0f);
    float m = -INFINITY, l = 0.0f;
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) m = fmaxf(m, in[c]);
    for (int64_t c = threadIdx.x; c < cols && m > -INFINITY; c += blockDim.x) l += expf(in[c] - m);
    __syncthreads();
    if (m > -INFINITY) {
        Word seen = packed(-INFINITY, 0.0f), expected;
        do {
            expected = seen;
            const float both = fmaxf(m, upper(expected));
            const float sum = l * expf(m - both) + lower(expected) * expf(upper(expected) - both);
            seen = atomicCAS(&state, expected, packed(both, sum));
        } while (seen != expected);
    }
    __syncthreads();
    m = upper(state);
    l = lower(state);
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
        y[blockIdx.x * cols + c] = l == 0.0f ? 0.0f : expf(in[c] - m) / l;
    }
    if (threadIdx.x == 0) lse[blockIdx.x] = l == 0.0f ? m : m + logf(l);
}

void online_softmax(const float* x, float* y, float* lse, int64_t rows, int64_t cols, cudaStream_t stream) {
    const int threads = cols < 128 ? 32 : 160;
    online_atomic_kernel<<<static_cast<unsigned>(rows), threads, 0, stream>>>(x, y, lse, cols);
    CUDA_CHECK_LAUNCH();
}
