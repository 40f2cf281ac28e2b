// Memory of the other side: host code that uses device memory, kernels that use host memory, copies that leave it.
#include "case.h"

__global__ void read_of_either_side(const float* in, float* out) {
    const int t = threadIdx.x;
    out[t] = 2 * in[t];  // line: kernel reads
}

CASE(host_reads_after_copy) {
    Array<float> in = ramp(64), out(64);
    read_of_either_side<<<1, 64>>>(in.data, out.data);
    float third = 0;
    require(cudaMemcpy(&third, out.data + 3, sizeof third, cudaMemcpyDeviceToHost));
    result[0] = third;
}
CASE(host_reads_device_memory) {
    Array<float> in = ramp(64), out(64);
    read_of_either_side<<<1, 64>>>(in.data, out.data);
    require(cudaDeviceSynchronize());
    const volatile float* values = out.data;
    result[0] = values[3];  // line: host read
}
CASE(host_writes_device_memory) {
    Array<float> in = ramp(64), out(64);
    volatile float* values = in.data;
    for (int i = 0; i < 64; ++i) values[i] = 1;  // line: host write
    read_of_either_side<<<1, 64>>>(in.data, out.data);
    out.download(result);
}
CASE(host_reads_pinned_memory) {
    Array<float> in = ramp(64);
    float* shared = nullptr;
    require(cudaMallocHost(&shared, 64 * sizeof(float)));
    read_of_either_side<<<1, 64>>>(in.data, shared);
    const cudaError_t error = cudaDeviceSynchronize();
    for (int i = 0; i < 64 && error == cudaSuccess; ++i) result[i] = shared[i];
    require(cudaFreeHost(shared));
    require(error);
}
CASE(kernel_reads_host_memory) {
    const std::vector<float> in = counting(64);
    Array<float> out(64);
    read_of_either_side<<<1, 64>>>(in.data(), out.data);
    out.download(result);
}
CASE(copied_past_the_end) {
    Array<float> in = ramp(64);
    const std::vector<float> values = counting(128);
    const cudaError_t error = cudaMemcpy(in.data, values.data(), 128 * sizeof(float), cudaMemcpyHostToDevice);
    cudaGetLastError();
    require(error);
}
