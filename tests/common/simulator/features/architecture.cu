// Code chosen by __CUDA_ARCH__ and __CUDACC__: in kernels, in helpers, in functions of host and device, and outside.
#include "feature.h"

#ifdef __CUDACC__
#define BOTH __host__ __device__
#else
#error "nvcc defines __CUDACC__, for host code as well"
#endif

// As many programs bring it: for old GPUs only.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 600
#else
__device__ double atomicAdd(double* address, double value) { return *address += value; }
#endif

#if __CUDA_ARCH__ < 500
#define DEVICE_IS_OLD 1
#else
#define DEVICE_IS_OLD 0
#endif

#ifndef __CUDA_ARCH__
static int for_the_host_only() { return 5; }
#endif

struct Side {
    int value = 1;
    BOTH int operator()() const {
#ifdef __CUDA_ARCH__
        return 10 * value;
#else
        return 20 * value;
#endif
    }
};

// What it returns on the host is also the line, so that lines are seen to be counted as before.
BOTH int line_or_architecture() {
    int result = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
    result = __CUDA_ARCH__;
#else
    result = -__LINE__;
#endif
    return result;
}

template <typename T>
__host__ __device__ inline T reciprocal_root(T x) {
#ifdef __CUDA_ARCH__
    return rsqrtf(x);
#else
    return 1 / std::sqrt(x);
#endif
}

__host__ __device__ constexpr int doubled(int x) {
#if __CUDA_ARCH__ >= 700
    return x + x;
#else
    const int two = 2;
    return two * x;
#endif
}
static_assert(doubled(4) == 8);

__device__ int gated() {
    int taken = 0;
#if __CUDA_ARCH__ >= 800
    taken += 1;
#endif
#if !defined(__CUDA_ARCH__)
    taken += 10;
#elif __CUDA_ARCH__ >= 700
    taken += 100;
#else
    taken += 1000;
#endif
    return taken;
}

__global__ void kernel(int* out, double* sum) {
    out[0] = gated();
    out[1] = line_or_architecture();
    out[2] = Side{}();
    out[3] = int(100 * reciprocal_root(4.0f) + 0.5f);
    out[4] = doubled(21);
    out[5] = DEVICE_IS_OLD;
#ifndef __CUDA_ARCH__
    out[6] = 1;
#endif
    atomicAdd(sum, 1.5);
}

int main() {
    Buffer<int> out(7);
    Buffer<double> sum(1);
    kernel<<<1, 2>>>(out.device(), sum.device());
    out.fetch(), sum.fetch();
    cudaDeviceProp properties;
    EXPECT(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
    const int architecture = 100 * properties.major + 10 * properties.minor;
    EXPECT(out[0] == (architecture >= 800 ? 101 : 100) && out[1] == architecture);
    EXPECT(out[2] == 10 && out[3] == 50 && out[4] == 42 && out[5] == 0 && out[6] == 0);
    EXPECT(sum[0] == 3);
    EXPECT(line_or_architecture() == -43 && Side{}() == 20 && reciprocal_root(4.0) == 0.5 && doubled(21) == 42);
#ifdef __CUDA_ARCH__
    EXPECT(!"main() is host code");
#else
    EXPECT(for_the_host_only() == 5);
#endif
    return done();
}
