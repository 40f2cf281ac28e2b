// Kernels that launch kernels are not there.
#include <cuda_runtime.h>
__global__ void child(int* out) { out[threadIdx.x] = 1; }
__global__ void parent(int* out) { child<<<1, 32>>>(out); }
int main() {
    int* out;
    cudaMalloc(&out, 128);
    parent<<<1, 1>>>(out);
    return cudaDeviceSynchronize();
}
