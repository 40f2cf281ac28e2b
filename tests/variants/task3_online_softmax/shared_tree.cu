// The states of 128 threads are merged by a tree in shared memory. A thread takes its scores one at a time and
// rescales its sum only when a score is larger than all before.
#include "common/cuda/check.h"
#include "task3/given/online_softmax.h"

constexpr int N = 128;

__global__ void online_tree_kernel(const float* x, float* y, float* lse, int64_t cols) {
    __shared__ float ms[N], ls[N];
    const int t = threadIdx.x;
    const size_t begin = static_cast<size_t>(blockIdx.x) * cols;
    float m = -INFINITY, l = 0.0f;
    for (int64_t c = t; c < cols; c += N) {
        const float score = x[begin + c];
        if (score <= m) {
            if (score != -INFINITY) l += expf(score - m);
        } else {
            l = m == -INFINITY ? 1.0f : l * expf(m - score) + 1.0f;
            m = score;
        }
    }
    ms[t] = m;
    ls[t] = l;
    __syncthreads();
    for (int half = N / 2; half > 0; half /= 2) {
        if (t < half) {
            const float other_m = ms[t + half], other_l = ls[t + half];
            if (other_m > ms[t]) {
                ls[t] = ls[t] * expf(ms[t] - other_m) + other_l;
                ms[t] = other_m;
            } else if (other_l > 0.0f) {
                ls[t] += other_l * expf(other_m - ms[t]);
            }
        }
        __syncthreads();
    }
    const float row_m = ms[0], row_l = ls[0];
    for (int64_t c = t; c < cols; c += N) {
        y[begin + c] = row_l == 0.0f ? 0.0f : expf(x[begin + c] - row_m) * (1.0f / row_l);
    }
    if (t == N - 1) lse[blockIdx.x] = row_l == 0.0f ? -INFINITY : logf(row_l) + row_m;
}

void online_softmax(const float* x, float* y, float* lse, int64_t rows, int64_t cols, cudaStream_t stream) {
    online_tree_kernel<<<rows, N, 0, stream>>>(x, y, lse, cols);
    CUDA_CHECK_LAUNCH();
}
