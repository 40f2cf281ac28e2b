// malloc, free, new and delete in kernels; the size of their heap; complex numbers.
#include <cuComplex.h>

#include "feature.h"

struct Node {
    int value;
    Node* next;
    __device__ Node(int value_, Node* next_) : value(value_), next(next_) {}
};
__device__ Node* head;

__global__ void build(int n) {
    for (int i = 0; i < n; ++i) head = new Node(i, head);
}
__global__ void sum_up(int* out) {
    int sum = 0;
    for (Node* node = head; node; node = node->next) sum += node->value;
    out[0] = sum;
}
__global__ void take_apart(int* out) {
    while (head) {
        Node* next = head->next;
        delete head;
        head = next;
        ++out[1];
    }
}
__global__ void too_large(int* out) {
    void* all = malloc(size_t(1) << 40);
    out[2] = all == nullptr;
    double* some = static_cast<double*>(malloc(4 * sizeof(double)));
    some[3] = 7;
    out[3] = static_cast<int>(some[3]);
    free(some), free(all);
}
__global__ void complex_numbers(cuFloatComplex* out) {
    const cuFloatComplex a = make_cuFloatComplex(1, 2), b = make_cuFloatComplex(3, 4);
    out[0] = cuCmulf(a, b), out[1] = cuCdivf(a, b), out[2] = cuCfmaf(a, cuConjf(b), a);
    out[3] = make_cuFloatComplex(cuCabsf(b), cuCrealf(cuComplexDoubleToFloat(cuCadd(make_cuDoubleComplex(1, 2), make_cuDoubleComplex(3, 4)))));
}

int main() {
    EXPECT(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 16 << 20) == cudaSuccess);
    Buffer<int> out(4);
    int* device = out.device();
    build<<<1, 1>>>(1000);
    sum_up<<<1, 1>>>(device);
    take_apart<<<1, 1>>>(device);
    too_large<<<1, 1>>>(device);
    out.fetch();
    EXPECT(out[0] == 499500 && out[1] == 1000 && out[2] == 1 && out[3] == 7);
    Buffer<cuFloatComplex> numbers(4);
    complex_numbers<<<1, 1>>>(numbers.device());
    numbers.fetch();
    EXPECT(numbers[0].x == -5 && numbers[0].y == 10 && std::fabs(numbers[1].x - 0.44f) < 1e-6f && std::fabs(numbers[1].y - 0.08f) < 1e-6f);
    EXPECT(numbers[2].x == 12 && numbers[2].y == 4 && numbers[3].x == 5 && numbers[3].y == 4);
    return done();
}
