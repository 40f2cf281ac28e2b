// kernels.cu - kernels whose memory transactions can be counted by hand. Each is launched once, mostly with one warp;
// sizes and strides come in as arguments, so that no compiler knows them.
//
//   1. Global memory    load_strided, load_offset, load_vector, load_shuffled, load_half, load_some_lanes, store_strided
//   2. Shared memory    read_shared<T>, read_alike<T>, write_shared<T>, read_chunks
//   3. Both             copy_transposed: a 32 x 32 tile through shared memory
#include <cuda_fp16.h>

#include "tests/common/simulator/kernels/test.h"

// ---- 1. Global memory

__global__ void load_strided(const float* in, float* out, int stride) { out[threadIdx.x] = in[threadIdx.x * stride]; }
__global__ void load_offset(const float* in, float* out, int offset) { out[threadIdx.x] = in[threadIdx.x + offset]; }
__global__ void load_vector(const float4* in, float4* out) { out[threadIdx.x] = in[threadIdx.x]; }
__global__ void load_shuffled(const float* in, float* out, int factor) {
    out[threadIdx.x] = in[threadIdx.x * factor % 32];  // all lanes within 128 bytes, out of order
}
__global__ void load_half(const __half* in, __half* out) { out[threadIdx.x] = in[threadIdx.x]; }
__global__ void load_some_lanes(const float* in, float* out, int lanes) {
    if (threadIdx.x < lanes) out[threadIdx.x] = in[threadIdx.x];
}
__global__ void store_strided(float* out, int stride) { out[threadIdx.x * stride] = 1.0f; }

// ---- 2. Shared memory: every lane writes neighbors, then reads with a stride (in elements)

constexpr int WORDS = 2048;

template <typename T>
__global__ void read_shared(T* out, int stride, int n) {
    __shared__ T s[WORDS * 4 / sizeof(T)];
    for (int i = threadIdx.x; i < n; i += 32) s[i] = out[i];
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x * stride % n];
}
// Lane i reads element i / divisor % modulus: several lanes want the same one.
template <typename T>
__global__ void read_alike(T* out, int divisor, int modulus, int n) {
    __shared__ T s[WORDS * 4 / sizeof(T)];
    for (int i = threadIdx.x; i < n; i += 32) s[i] = out[i];
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x / divisor % modulus];
}
template <typename T>
__global__ void write_shared(T* out, int stride, int n) {
    __shared__ T s[WORDS * 4 / sizeof(T)];
    s[threadIdx.x * stride % n] = out[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x * stride % n];
}

// Rows of 16 chunks of 16 bytes each: 8 lanes that read chunk `column` of 8 rows, as ldmatrix does. With `swizzle` the
// chunk is at column ^ (row % 8).
__global__ void read_chunks(float4* out, int column, int swizzle) {
    __shared__ float4 s[32 * 8];
    for (int i = threadIdx.x; i < 32 * 8; i += 32) s[i] = out[i];
    __syncthreads();
    const int row = threadIdx.x;
    out[threadIdx.x] = s[row * 8 + (column ^ (swizzle ? row % 8 : 0))];
}

// ---- 3. Both: block (32, 8)

template <int WIDTH>
__global__ void copy_transposed(const float* in, float* out, int n) {
    __shared__ float tile[32][WIDTH];
    for (int r = threadIdx.y; r < 32; r += 8) tile[r][threadIdx.x] = in[(blockIdx.y * 32 + r) * n + blockIdx.x * 32 + threadIdx.x];
    __syncthreads();
    for (int r = threadIdx.y; r < 32; r += 8) out[(blockIdx.x * 32 + r) * n + blockIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][r];
}

__global__ void load_each(const float* const* in, float* out, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) sum += in[i][threadIdx.x];
    out[threadIdx.x] = sum;
}

// ---- the host

template <typename T>
struct Buffer {
    T* data;
    explicit Buffer(size_t n) {
        require(cudaMalloc(&data, n * sizeof(T)));
        require(cudaMemset(data, 0, n * sizeof(T)));
    }
    ~Buffer() { cudaFree(data); }
    operator T*() const { return data; }
};

EXPORT(load_strided_1, (), { Buffer<float> in(4096), out(4096); load_strided<<<1, 32>>>(in, out, 1); })
EXPORT(load_strided_2, (), { Buffer<float> in(4096), out(4096); load_strided<<<1, 32>>>(in, out, 2); })
EXPORT(load_strided_32, (), { Buffer<float> in(4096), out(4096); load_strided<<<1, 32>>>(in, out, 32); })
EXPORT(load_broadcast, (), { Buffer<float> in(4096), out(4096); load_strided<<<1, 32>>>(in, out, 0); })
EXPORT(load_offset_1, (), { Buffer<float> in(4096), out(4096); load_offset<<<1, 32>>>(in, out, 1); })
EXPORT(load_offset_8, (), { Buffer<float> in(4096), out(4096); load_offset<<<1, 32>>>(in, out, 8); })
EXPORT(load_float4, (), { Buffer<float4> in(4096), out(4096); load_vector<<<1, 32>>>(in, out); })
EXPORT(load_shuffled_7, (), { Buffer<float> in(4096), out(4096); load_shuffled<<<1, 32>>>(in, out, 7); })
EXPORT(load_half_1, (), { Buffer<__half> in(4096), out(4096); load_half<<<1, 32>>>(in, out); })
EXPORT(load_20_lanes, (), { Buffer<float> in(4096), out(4096); load_some_lanes<<<1, 32>>>(in, out, 20); })
EXPORT(load_4_warps, (), { Buffer<float> in(8192), out(4096); load_strided<<<3, 128>>>(in, out, 2); })
EXPORT(load_two_arrays, (), {
    Buffer<const float*> in(2);
    Buffer<float> a(32), out(32);
    float* b;
    require(cudaMalloc(&b, 32 * sizeof(float)));
    const float* const both[2] = {a, b};
    require(cudaMemcpy(in, both, sizeof(both), cudaMemcpyHostToDevice));
    load_each<<<1, 32>>>(in, out, 2);
    cudaFree(b);
})
EXPORT(store_strided_1, (), { Buffer<float> out(4096); store_strided<<<1, 32>>>(out, 1); })
EXPORT(store_strided_8, (), { Buffer<float> out(4096); store_strided<<<1, 32>>>(out, 8); })

EXPORT(shared_float_1, (), { Buffer<float> out(WORDS); read_shared<float><<<1, 32>>>(out, 1, WORDS); })
EXPORT(shared_float_2, (), { Buffer<float> out(WORDS); read_shared<float><<<1, 32>>>(out, 2, WORDS); })
EXPORT(shared_float_32, (), { Buffer<float> out(WORDS); read_shared<float><<<1, 32>>>(out, 32, WORDS); })
EXPORT(shared_float_33, (), { Buffer<float> out(WORDS); read_shared<float><<<1, 32>>>(out, 33, WORDS); })
EXPORT(shared_float_broadcast, (), { Buffer<float> out(WORDS); read_shared<float><<<1, 32>>>(out, 0, WORDS); })
EXPORT(shared_half_1, (), { Buffer<__half> out(WORDS); read_shared<__half><<<1, 32>>>(out, 1, WORDS); })
EXPORT(shared_half_64, (), { Buffer<__half> out(WORDS); read_shared<__half><<<1, 32>>>(out, 64, WORDS); })
EXPORT(shared_float2_1, (), { Buffer<float2> out(WORDS / 2); read_shared<float2><<<1, 32>>>(out, 1, WORDS / 2); })
EXPORT(shared_float2_16, (), { Buffer<float2> out(WORDS / 2); read_shared<float2><<<1, 32>>>(out, 16, WORDS / 2); })
EXPORT(shared_float2_broadcast, (), { Buffer<float2> out(WORDS / 2); read_shared<float2><<<1, 32>>>(out, 0, WORDS / 2); })
EXPORT(shared_float4_1, (), { Buffer<float4> out(WORDS / 4); read_shared<float4><<<1, 32>>>(out, 1, WORDS / 4); })
EXPORT(shared_float4_2, (), { Buffer<float4> out(WORDS / 4); read_shared<float4><<<1, 32>>>(out, 2, WORDS / 4); })
EXPORT(shared_float4_9, (), { Buffer<float4> out(WORDS / 4); read_shared<float4><<<1, 32>>>(out, 9, WORDS / 4); })
EXPORT(shared_float4_broadcast, (), { Buffer<float4> out(WORDS / 4); read_shared<float4><<<1, 32>>>(out, 0, WORDS / 4); })
EXPORT(alike_float2_2_32, (), { Buffer<float2> out(WORDS / 2); read_alike<float2><<<1, 32>>>(out, 2, 32, WORDS / 2); })
EXPORT(alike_float2_4_32, (), { Buffer<float2> out(WORDS / 2); read_alike<float2><<<1, 32>>>(out, 4, 32, WORDS / 2); })
EXPORT(alike_float2_8_32, (), { Buffer<float2> out(WORDS / 2); read_alike<float2><<<1, 32>>>(out, 8, 32, WORDS / 2); })
EXPORT(alike_float2_16_32, (), { Buffer<float2> out(WORDS / 2); read_alike<float2><<<1, 32>>>(out, 16, 32, WORDS / 2); })
EXPORT(alike_float2_1_16, (), { Buffer<float2> out(WORDS / 2); read_alike<float2><<<1, 32>>>(out, 1, 16, WORDS / 2); })
EXPORT(alike_float2_1_8, (), { Buffer<float2> out(WORDS / 2); read_alike<float2><<<1, 32>>>(out, 1, 8, WORDS / 2); })
EXPORT(alike_float2_1_4, (), { Buffer<float2> out(WORDS / 2); read_alike<float2><<<1, 32>>>(out, 1, 4, WORDS / 2); })
EXPORT(alike_float2_1_2, (), { Buffer<float2> out(WORDS / 2); read_alike<float2><<<1, 32>>>(out, 1, 2, WORDS / 2); })
EXPORT(alike_float2_2_8, (), { Buffer<float2> out(WORDS / 2); read_alike<float2><<<1, 32>>>(out, 2, 8, WORDS / 2); })
EXPORT(alike_float2_4_4, (), { Buffer<float2> out(WORDS / 2); read_alike<float2><<<1, 32>>>(out, 4, 4, WORDS / 2); })
EXPORT(alike_float4_2_32, (), { Buffer<float4> out(WORDS / 4); read_alike<float4><<<1, 32>>>(out, 2, 32, WORDS / 4); })
EXPORT(alike_float4_4_32, (), { Buffer<float4> out(WORDS / 4); read_alike<float4><<<1, 32>>>(out, 4, 32, WORDS / 4); })
EXPORT(alike_float4_8_32, (), { Buffer<float4> out(WORDS / 4); read_alike<float4><<<1, 32>>>(out, 8, 32, WORDS / 4); })
EXPORT(alike_float4_16_32, (), { Buffer<float4> out(WORDS / 4); read_alike<float4><<<1, 32>>>(out, 16, 32, WORDS / 4); })
EXPORT(alike_float4_1_16, (), { Buffer<float4> out(WORDS / 4); read_alike<float4><<<1, 32>>>(out, 1, 16, WORDS / 4); })
EXPORT(alike_float4_1_8, (), { Buffer<float4> out(WORDS / 4); read_alike<float4><<<1, 32>>>(out, 1, 8, WORDS / 4); })
EXPORT(alike_float4_1_4, (), { Buffer<float4> out(WORDS / 4); read_alike<float4><<<1, 32>>>(out, 1, 4, WORDS / 4); })
EXPORT(alike_float4_1_2, (), { Buffer<float4> out(WORDS / 4); read_alike<float4><<<1, 32>>>(out, 1, 2, WORDS / 4); })
EXPORT(alike_float4_2_8, (), { Buffer<float4> out(WORDS / 4); read_alike<float4><<<1, 32>>>(out, 2, 8, WORDS / 4); })
EXPORT(alike_float4_4_4, (), { Buffer<float4> out(WORDS / 4); read_alike<float4><<<1, 32>>>(out, 4, 4, WORDS / 4); })
EXPORT(shared_write_2, (), { Buffer<float> out(WORDS); write_shared<float><<<1, 32>>>(out, 2, WORDS); })
EXPORT(shared_write_float4_2, (), { Buffer<float4> out(WORDS / 4); write_shared<float4><<<1, 32>>>(out, 2, WORDS / 4); })
EXPORT(chunks_plain, (), { Buffer<float4> out(256); read_chunks<<<1, 32>>>(out, 3, 0); })
EXPORT(chunks_swizzled, (), { Buffer<float4> out(256); read_chunks<<<1, 32>>>(out, 3, 1); })
EXPORT(transposed_32, (), { Buffer<float> in(64 * 64), out(64 * 64); copy_transposed<32><<<dim3(2, 2), dim3(32, 8)>>>(in, out, 64); })
EXPORT(transposed_33, (), { Buffer<float> in(64 * 64), out(64 * 64); copy_transposed<33><<<dim3(2, 2), dim3(32, 8)>>>(in, out, 64); })
