// Powers and logarithm of base 2; each thread has a piece of neighboring columns, eight rows share a block of 256
// threads, and the lanes of a row are merged through shared memory by one of them.
#include "common/cuda/check.h"
#include "common/cuda/logarithms.h"
#include "task3/given/online_softmax.h"

constexpr int ROWS = 8, LANES = 32;

__global__ void online_base_2_kernel(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {
    __shared__ float m_of[ROWS][LANES], l_of[ROWS][LANES];
    const int lane = threadIdx.x, r = threadIdx.y;
    const int64_t row = int64_t{blockIdx.x} * ROWS + r;
    const int64_t piece = ceil_div(cols, int64_t{LANES});
    const int64_t begin = lane * piece, end = row < rows ? min(begin + piece, cols) : begin;

    float m = -INFINITY, l = 0.0f;
    for (int64_t c = begin; c < end; ++c) {
        const float score = x[row * cols + c], before = m;
        m = fmaxf(m, score);
        const float shift = m == -INFINITY ? 0.0f : m;
        l = fmaf(l, exp2f((before - shift) * LOG2_E), exp2f((score - shift) * LOG2_E));
    }
    m_of[r][lane] = m;
    l_of[r][lane] = l;
    __syncthreads();
    if (lane == 0) {
        for (int i = 1; i < LANES; ++i) m = fmaxf(m, m_of[r][i]);
        const float shift = m == -INFINITY ? 0.0f : m;
        l = 0.0f;
        for (int i = 0; i < LANES; ++i) l += l_of[r][i] * exp2f((m_of[r][i] - shift) * LOG2_E);
        m_of[r][0] = shift;
        l_of[r][0] = l;
        if (row < rows) lse[row] = shift + log2f(l) * LN_2;
    }
    __syncthreads();
    const float shift = m_of[r][0], factor = l_of[r][0] == 0.0f ? 0.0f : 1.0f / l_of[r][0];
    for (int64_t c = begin; c < end; ++c) y[row * cols + c] = exp2f((x[row * cols + c] - shift) * LOG2_E) * factor;
}

void online_softmax(const float* x, float* y, float* lse, int64_t rows, int64_t cols, cudaStream_t stream) {
    const unsigned blocks = static_cast<unsigned>(ceil_div(rows, int64_t{ROWS}));
    online_base_2_kernel<<<blocks, dim3(LANES, ROWS), 0, stream>>>(x, y, lse, rows, cols);
    CUDA_CHECK_LAUNCH();
}
