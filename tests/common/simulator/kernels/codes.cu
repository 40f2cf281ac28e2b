// Launches that a GPU refuses, and the codes it gives.
#include "test.h"

__global__ void writes(float* out) { out[threadIdx.x] = 3; }

EXPORT(launch_shape, (float* out, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                      unsigned bz, long bytes, int* codes, char* text), {
    writes<<<dim3(gx, gy, gz), dim3(bx, by, bz), bytes>>>(out);
    codes[0] = cudaPeekAtLastError();
    const cudaError_t error = cudaGetLastError();
    codes[1] = error;
    codes[2] = cudaGetLastError();
    snprintf(text, 100, "%s: %s", cudaGetErrorName(error), cudaGetErrorString(error));
})
__global__ void never() {}
EXPORT(opt_in_code, (int bytes, int* codes), {
    codes[0] = cudaFuncSetAttribute(never, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaGetLastError();
})
__global__ void fixed_and_dynamic(int* out) {
    __shared__ int fixed[10000];
    extern __shared__ int after_fixed[];
    fixed[threadIdx.x] = 1, after_fixed[threadIdx.x] = 2;
    out[0] = fixed[0] + after_fixed[0];
}
EXPORT(shared_fixed_and_dynamic, (int* out, int bytes, int* codes), {
    fixed_and_dynamic<<<1, 1, bytes>>>(out);
    codes[0] = cudaGetLastError();
    cudaFuncAttributes attributes;
    require(cudaFuncGetAttributes(&attributes, fixed_and_dynamic));
    codes[1] = static_cast<int>(attributes.sharedSizeBytes);
})
template <int MOST>
__global__ void __launch_bounds__(MOST + 1, 2) bounded(float* out) {
    out[threadIdx.x] = 3;
}
// The code, how many threads a block may have, and the code of another kernel of the template.
EXPORT(launch_bounds, (float* out, int threads, int* codes), {
    bounded<95><<<2, threads>>>(out);
    codes[0] = cudaGetLastError();
    cudaFuncAttributes attributes;
    require(cudaFuncGetAttributes(&attributes, bounded<95>));
    codes[1] = attributes.maxThreadsPerBlock;
    bounded<1023><<<1, 1>>>(out + 1023);
    codes[2] = cudaGetLastError();
})
// For the tests on a GPU: memory that both sides can read.
EXPORT(managed_allocate, (void** address, long bytes), { require(cudaMallocManaged(address, bytes)); })
EXPORT(managed_free, (void* address), { require(cudaFree(address)); })
