// Textures are not there.
#include <cuda_runtime.h>
__global__ void read(cudaTextureObject_t texture, float* out) { out[threadIdx.x] = tex1Dfetch<float>(texture, threadIdx.x); }
int main() { return 0; }
