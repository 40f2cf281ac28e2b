// Shared memory in every style: sizes, types, scopes, alignments.
#include <cuda_fp16.h>
#include <stdint.h>
#include "test.h"

extern __shared__ float4 whole[];
__device__ float sum_of(int i) { return whole[i].x + whole[i].y + whole[i].z + whole[i].w; }
__global__ void namespace_extern(float* out) {
    whole[threadIdx.x] = make_float4(1, 2, 3, threadIdx.x);
    __syncthreads();
    float* flat = reinterpret_cast<float*>(whole);
    out[threadIdx.x] = sum_of(threadIdx.x ^ 1) + flat[3];
}
EXPORT(shared_namespace_extern, (float* out), { namespace_extern<<<2, 32, 32 * sizeof(float4)>>>(out); })

__shared__ int counters[4], total;
__device__ void count(int i) { atomicAdd(&counters[i % 4], 1); }
__global__ void namespace_static(int* out) {
    out[blockIdx.x * 8 + threadIdx.x % 4] = counters[threadIdx.x % 4];
    __syncthreads();
    if (threadIdx.x < 4) counters[threadIdx.x] = 0;
    if (threadIdx.x == 0) total = 1;
    __syncthreads();
    count(threadIdx.x);
    __syncthreads();
    if (threadIdx.x < 4) out[blockIdx.x * 8 + 4 + threadIdx.x] = counters[threadIdx.x] + total;
}
EXPORT(shared_namespace_static, (int* out), { namespace_static<<<6, 64>>>(out); })

struct Particle { float position[3]; int id; };
template <typename T> struct Traits { using Storage = T[2][16]; };
#define DECLARE(T, name) __shared__ T name[32]
template <typename T>
__global__ void many(T* out) {
    __shared__ T a[32], b[2][16]; __shared__ volatile int flag;   // several in a line
    static __shared__ __align__(16) T c[4 * (8)];
    __shared__ alignas(32) Particle
        particles[32];
    __shared__ typename Traits<T>::Storage
        stored;
    T __shared__ late[32];
    DECLARE(half, halves);
    extern __shared__ __align__(16) unsigned char raw[];
    T(*matrix)[8] = reinterpret_cast<T(*)[8]>(raw);
    const int t = threadIdx.x;
    switch (t) { default: a[t] = t; }
    b[t / 16][t % 16] = 2 * t, c[t] = 3 * t, matrix[t / 8][t % 8] = 4 * t, late[t] = 5 * t;
    particles[t] = {{1.0f, 2.0f, float(t)}, t};
    stored[t / 16][t % 16] = t;
    halves[t] = __float2half(t);
    if (t == 0) flag = 7;
    __syncthreads();
    const int o = 31 - t;
    out[t] = a[o] + b[o / 16][o % 16] + c[o] + matrix[o / 8][o % 8] + late[o] + flag + particles[o].id +
             T(particles[o].position[2]) + stored[o / 16][o % 16] + T(__half2float(halves[o]));
}
EXPORT(shared_many, (float* out), { many<float><<<1, 32, 32 * sizeof(float)>>>(out); })

// The usual work-around for dynamic shared memory in templates.
template <typename T> struct SharedMemory;
template <> struct SharedMemory<double> {
    static __device__ double* get() { extern __shared__ double shared_double[]; return shared_double; }
};
__global__ void worked_around(double* out) {
    double* s = SharedMemory<double>::get();
    s[threadIdx.x] = threadIdx.x * 0.5;
    __syncthreads();
    out[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
EXPORT(shared_work_around, (double* out), { worked_around<<<1, 64, 64 * sizeof(double)>>>(out); })

__global__ void two_dimensional(float* out) {
    extern __shared__ float rows[][8];
    rows[threadIdx.y][threadIdx.x] = threadIdx.y * 10 + threadIdx.x;
    __syncthreads();
    out[threadIdx.y * 8 + threadIdx.x] = rows[threadIdx.y][7 - threadIdx.x];
}
EXPORT(shared_two_dimensional, (float* out), { two_dimensional<<<1, dim3(8, 4), 32 * sizeof(float)>>>(out); })

struct Counted {
    int count;
    float values[7];
};
// No array of any length: nvcc takes it for a static one.
__global__ void one_object(float* out) {
    extern __shared__ Counted counted;
    if (threadIdx.x == 0) counted.count = blockDim.x;
    counted.values[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = counted.values[counted.count - 1 - threadIdx.x];
}
EXPORT(shared_object, (float* out), { one_object<<<1, 7>>>(out); })

__shared__ enum Side { LEFT, RIGHT } side;
__global__ void named_types(float* out) {
    __shared__ struct alignas(16) Sum { float sum, values[8]; } first, *second;
    const Sum copy{1, {2, 3}};
    if (threadIdx.x == 0) first = copy, second = &first, side = Side::RIGHT;
    __syncthreads();
    struct Sum* const same = second;
    out[threadIdx.x] = same->sum + same->values[threadIdx.x] + (side == RIGHT) + sizeof(Sum) + alignof(struct Sum);
}
EXPORT(shared_named_types, (float* out), { named_types<<<1, 2>>>(out); })

__global__ void addresses(uint64_t* out) {
    extern __shared__ __align__(128) float aligned[];
    __shared__ double d;
    __shared__ alignas(64) char line[64];
    __shared__ float4 v;
    out[0] = reinterpret_cast<uint64_t>(aligned) % 128;
    out[1] = reinterpret_cast<uint64_t>(&d) % 8;
    out[2] = reinterpret_cast<uint64_t>(line) % 64;
    out[3] = reinterpret_cast<uint64_t>(&v) % 16;
}
EXPORT(shared_alignment, (uint64_t* out), { addresses<<<1, 1, 100>>>(out); })

__global__ void fresh(float* out) {
    __shared__ float fixed[8];
    extern __shared__ float dynamic[];
    out[threadIdx.x] = fixed[threadIdx.x];
    out[8 + threadIdx.x] = dynamic[threadIdx.x];
    fixed[threadIdx.x] = dynamic[threadIdx.x] = 1.0f;
}
EXPORT(shared_fresh, (float* out), { for (int i = 0; i < 3; ++i) fresh<<<5, 8, 8 * sizeof(float)>>>(out); })

template <int ID>
__global__ void large(int* out, int n) {
    extern __shared__ int s[];
    s[n - 1] = 77;
    out[0] = s[n - 1];
}
EXPORT(shared_opt_in, (int* out, int n, int limit, int* codes), {
    codes[0] = cudaFuncSetAttribute(large<0>, cudaFuncAttributeMaxDynamicSharedMemorySize, limit);
    cudaGetLastError();
    large<0><<<1, 1, n * sizeof(int)>>>(out, n);
    codes[1] = cudaGetLastError();
    large<1><<<1, 1, n * sizeof(int)>>>(out + 1, n);  // another kernel: not opted in
    codes[2] = cudaGetLastError();
})
