// NVIDIA's libraries are not there.
#include <thrust/device_vector.h>
int main() { return 0; }
