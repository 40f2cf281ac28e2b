// Atomic operations, from many blocks on several OS threads.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "test.h"

template <typename T>
__global__ void add(T* out) { atomicAdd(out + threadIdx.x % 2, T(1)); }
#define ADD(name, T, blocks) EXPORT(atomic_add_##name, (T * out), { add<<<blocks, 128>>>(out); })
ADD(int, int, 300)
ADD(unsigned, unsigned, 300)
ADD(long, unsigned long long, 300)
ADD(float, float, 300)
ADD(double, double, 300)
ADD(half, half, 20)
ADD(bf16, nv_bfloat16, 2)

template <typename T>
__global__ void others(T* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if constexpr (sizeof(T) == 4)
        atomicSub(&out[0], 1);
    else
        atomicAdd(&out[0], T(-1));
    atomicMin(&out[1], 1000 - i);
    atomicMax(&out[2], i);
    atomicAnd(&out[3], ~(1 << i % 8));
    atomicOr(&out[4], 1 << i % 8);
    atomicXor(&out[5], 1 << i % 8);
    if (i == 5) atomicExch(&out[6], 42);
    T seen = out[7], expected;
    do expected = seen, seen = atomicCAS(&out[7], expected, expected + 2);
    while (seen != expected);
}
EXPORT(atomic_int, (int* out), { others<<<10, 100>>>(out); })
EXPORT(atomic_unsigned, (unsigned* out), { others<<<10, 100>>>(out); })
EXPORT(atomic_long, (unsigned long long* out), { others<<<10, 100>>>(out); })

__global__ void wrapping(unsigned* out) { atomicInc(&out[0], 6), atomicDec(&out[1], 6); }
EXPORT(atomic_wrapping, (unsigned* out), { wrapping<<<2, 50>>>(out); })

// A spin lock and a flag: a thread that waits must let the others run.
__device__ int lock = 0;
__global__ void locked(int* out) {
    while (atomicCAS(&lock, 0, 1) != 0) {}
    __threadfence();
    *reinterpret_cast<volatile int*>(out) = *reinterpret_cast<volatile int*>(out) + 1;
    __threadfence();
    atomicExch(&lock, 0);
}
EXPORT(atomic_lock, (int* out), { locked<<<8, 64>>>(out); })
__global__ void flag_waits(int* out) {
    if (threadIdx.x == 0) while (atomicAdd(&out[0], 0) == 0) __nanosleep(10);
    if (threadIdx.x == 40) atomicExch(&out[0], 1);
    out[1 + threadIdx.x] = 1;
}
EXPORT(atomic_flag, (int* out), { flag_waits<<<1, 64>>>(out); })
