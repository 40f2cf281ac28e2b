// The driver API is not there, but for tensor maps.
#include <cuda.h>
int main() {
    cuInit(0);
    CUdevice device;
    return cuDeviceGet(&device, 0);
}
