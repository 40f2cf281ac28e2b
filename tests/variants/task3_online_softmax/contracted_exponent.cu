// The powers of scores are exp2f(x * log2(e) - m * log2(e)), written without fmaf: nvcc makes one multiply-add of it, which
// rounds once. A warp per row, four scores at a time.
#include "common/cuda/check.h"
#include "common/cuda/logarithms.h"
#include "common/cuda/warp.cuh"
#include "task3/given/online_softmax.h"

__global__ void online_contracted_kernel(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {
    const int64_t row = int64_t{blockIdx.x} * 8 + threadIdx.y;
    if (row >= rows) return;
    x += row * cols;
    y += row * cols;
    // scaled_m: m * log2(e), rounded, as the powers have it; so its rounding is the same in all of them and cancels
    float m = -INFINITY, scaled_m = -INFINITY, l = 0.0f;
    for (int64_t first = threadIdx.x; first < cols; first += 4 * 32) {
        float four[4], m_new = m;
        for (int i = 0; i < 4; ++i) {
            four[i] = first + 32 * i < cols ? x[first + 32 * i] : -INFINITY;
            m_new = fmaxf(m_new, four[i]);
        }
        if (m_new == -INFINITY) continue;
        const float scaled = m_new * LOG2_E;
        l *= exp2f(scaled_m - scaled);
        for (int i = 0; i < 4; ++i) l += exp2f(four[i] * LOG2_E - scaled);
        m = m_new, scaled_m = scaled;
    }
    const float m_row = warp_max(m), scaled = m_row == -INFINITY ? 0.0f : m_row * LOG2_E;
    const float l_row = warp_sum(l * exp2f(scaled_m - scaled));
    const float factor = l_row > 0.0f ? 1.0f / l_row : 0.0f;
    for (int64_t c = threadIdx.x; c < cols; c += 32) y[c] = exp2f(x[c] * LOG2_E - scaled) * factor;
    if (threadIdx.x == 0) lse[row] = m_row == -INFINITY ? -INFINITY : m_row + logf(l_row);
}

void online_softmax(const float* x, float* y, float* lse, int64_t rows, int64_t cols, cudaStream_t stream) {
    const unsigned blocks = static_cast<unsigned>(ceil_div(rows, int64_t{8}));
    online_contracted_kernel<<<blocks, dim3(32, 8), 0, stream>>>(x, y, lse, rows, cols);
    CUDA_CHECK_LAUNCH();
}
