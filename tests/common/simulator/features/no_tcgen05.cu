// PTX beyond compute capability 9.0 is not there: tcgen05 and tensor memory.
#include <cuda_runtime.h>
__global__ void fence() { asm volatile("tcgen05.fence::before_thread_sync;\n" ::: "memory"); }
int main() { return 0; }
