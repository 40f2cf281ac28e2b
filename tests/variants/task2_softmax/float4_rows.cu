// Reads and writes four floats at a time; the entries before the first 16-byte boundary of a row and behind the
// last one are taken one by one. The exponentials are stored in y and scaled there.
#include <cstdint>

#include "common/cuda/check.h"
#include "task2/given/attention_kernel.h"

constexpr int BLOCK = 128;

template <typename F>
__device__ float reduce_in_block(float value, float neutral, F combine) {
    __shared__ float lane_results[BLOCK / 32];
    for (int mask = 16; mask; mask /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, mask));
    __syncthreads();  // the result of an earlier call may still be read
    if ((threadIdx.x & 31) == 0) lane_results[threadIdx.x >> 5] = value;
    __syncthreads();
    value = neutral;
    for (int w = 0; w < BLOCK / 32; ++w) value = combine(value, lane_results[w]);
    return value;
}

__global__ void softmax_vector_kernel(const float* x, float* y, int cols) {
    x += int64_t{blockIdx.x} * cols;
    y += int64_t{blockIdx.x} * cols;
    // x and y may be misaligned differently: then everything is "head"
    const unsigned long long x_at = reinterpret_cast<unsigned long long>(x) / 4 % 4;
    const unsigned long long y_at = reinterpret_cast<unsigned long long>(y) / 4 % 4;
    int head = x_at == y_at ? static_cast<int>((4 - x_at) % 4) : cols;
    if (head > cols) head = cols;
    const int vectors = (cols - head) / 4;
    const int tail = head + 4 * vectors;
    const float4* x4 = reinterpret_cast<const float4*>(x + head);
    float4* y4 = reinterpret_cast<float4*>(y + head);
    const int t = threadIdx.x;

    float m = -INFINITY;
    for (int i = t; i < head; i += BLOCK) m = max(m, x[i]);
    for (int i = t; i < vectors; i += BLOCK) {
        const float4 v = x4[i];
        m = max(m, max(max(v.x, v.y), max(v.z, v.w)));
    }
    for (int i = tail + t; i < cols; i += BLOCK) m = max(m, x[i]);
    m = reduce_in_block(m, -INFINITY, [](float a, float b) { return max(a, b); });
    if (isinf(m)) m = 0.0f;

    float sum = 0.0f;
    for (int i = t; i < head; i += BLOCK) sum += y[i] = expf(x[i] - m);
    for (int i = t; i < vectors; i += BLOCK) {
        float4 v = x4[i];
        v = make_float4(expf(v.x - m), expf(v.y - m), expf(v.z - m), expf(v.w - m));
        sum += v.x + v.y + v.z + v.w;
        y4[i] = v;
    }
    for (int i = tail + t; i < cols; i += BLOCK) sum += y[i] = expf(x[i] - m);
    sum = reduce_in_block(sum, 0.0f, [](float a, float b) { return a + b; });
    if (sum == 0.0f) return;  // the zeros are there already

    const float factor = __frcp_rn(sum);
    for (int i = t; i < head; i += BLOCK) y[i] *= factor;
    for (int i = t; i < vectors; i += BLOCK) {
        const float4 v = y4[i];
        y4[i] = make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
    }
    for (int i = tail + t; i < cols; i += BLOCK) y[i] *= factor;
}

void softmax(const float* x, float* y, int64_t rows, int cols, cudaStream_t stream) {
    softmax_vector_kernel<<<rows, BLOCK, 0, stream>>>(x, y, cols);
    CUDA_CHECK_LAUNCH();
}
