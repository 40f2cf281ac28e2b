// PTX beyond what ptx.py knows is not there: wgmma, TMA, mbarriers, tcgen05.
#include <cuda_runtime.h>
__global__ void fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
int main() { return 0; }
