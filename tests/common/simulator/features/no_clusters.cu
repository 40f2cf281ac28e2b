// Thread block clusters are not there.
#include <cooperative_groups.h>
__global__ void __cluster_dims__(2, 1, 1) pair(int* out) { out[0] = cooperative_groups::this_cluster().num_blocks(); }
int main() { return 0; }
