// Sweeps by float4 between the first and the last 16-byte boundary of a row; what is before and after goes one
// by one. 64 threads per block, a block strides over rows.
#include "common/cuda/check.h"
#include "task3/given/online_softmax.h"

constexpr int THREADS_PER_ROW = 64;

__device__ __forceinline__ float power(float x, float m) { return m == -INFINITY ? 0.0f : __expf(x - m); }

__global__ void online_vector_kernel(const float* __restrict__ x, float* __restrict__ y, float* __restrict__ lse,
                                     int64_t rows, int64_t cols) {
    __shared__ float2 warps[2];
    const int t = threadIdx.x;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const float* in = x + row * cols;
        int64_t head = (16 - reinterpret_cast<size_t>(in) % 16) % 16 / 4;
        if (head > cols) head = cols;
        const int64_t vectors = (cols - head) / 4, tail = head + vectors * 4;

        float m = -INFINITY, l = 0.0f;
        for (int64_t v = t; v < vectors; v += THREADS_PER_ROW) {
            const float4 s = reinterpret_cast<const float4*>(in + head)[v];
            const float m_new = fmaxf(fmaxf(fmaxf(s.x, s.y), fmaxf(s.z, s.w)), m);
            l = l * power(m, m_new) + power(s.x, m_new) + power(s.y, m_new) + power(s.z, m_new) + power(s.w, m_new);
            m = m_new;
        }
        // at most 3 entries on either side: threads 0 .. 2 and 3 .. 5
        const int64_t single = t < 3 ? (t < head ? t : -1) : (t < 6 && tail + t - 3 < cols ? tail + t - 3 : -1);
        if (single >= 0) {
            const float m_new = fmaxf(m, in[single]);
            l = l * power(m, m_new) + power(in[single], m_new);
            m = m_new;
        }
        for (int distance = 1; distance < 32; distance *= 2) {
            const float other_m = __shfl_xor_sync(0xffffffff, m, distance);
            const float other_l = __shfl_xor_sync(0xffffffff, l, distance);
            const float m_new = fmaxf(m, other_m);
            l = l * power(m, m_new) + other_l * power(other_m, m_new);
            m = m_new;
        }
        if (t % 32 == 0) warps[t / 32] = make_float2(m, l);
        __syncthreads();
        const float2 a = warps[0], b = warps[1];
        __syncthreads();  // all have read; the next row may write
        m = fmaxf(a.x, b.x);
        l = a.y * power(a.x, m) + b.y * power(b.x, m);
        const float factor = l > 0.0f ? 1.0f / l : 0.0f;
        for (int64_t c = t; c < cols; c += THREADS_PER_ROW) y[row * cols + c] = power(in[c], m) * factor;
        if (t == 0) lse[row] = l > 0.0f ? m + logf(l) : -INFINITY;
    }
}

void online_softmax(const float* x, float* y, float* lse, int64_t rows, int64_t cols, cudaStream_t stream) {
    const int blocks = rows < 2048 ? static_cast<int>(rows) : 2048;
    online_vector_kernel<<<blocks, THREADS_PER_ROW, 0, stream>>>(x, y, lse, rows, cols);
    CUDA_CHECK_LAUNCH();
}
