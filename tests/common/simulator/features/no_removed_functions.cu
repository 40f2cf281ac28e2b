// What CUDA has removed: the message names what took its place.
#include <cuda_runtime.h>
__global__ void store(int* out) { *out = 3; }
int main() {
    int* out;
    cudaMalloc(&out, 4);
    store<<<1, 1>>>(out);
    return cudaThreadSynchronize();
}
