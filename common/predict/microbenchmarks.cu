// microbenchmarks.cu - measures the figures of machine.py that no data sheet has; prints one "name value" per line.
//
// Latencies by pointer chasing (Mei and Chu, Dissecting GPU memory hierarchy through microbenchmarking, 2017): one thread, each
// load's address is the value before. Rates by enough blocks to fill the GPU. `python -m common.benchmark machine` runs it.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call) \
    if (cudaError_t error = call) fprintf(stderr, "line %d: %s\n", __LINE__, cudaGetErrorString(error)), exit(1)

constexpr int STEPS = 2048, ROUNDS = 9;
constexpr size_t FILLER = size_t{1} << 29;
static void* filler;

// WARM: walks the ring once beforehand; the walk must cover the whole ring
template <bool WARM>
__global__ void chase(const unsigned* next, unsigned steps, long long* cycles, unsigned* end) {
    unsigned at = 0;
    const auto walk = [&] {
        for (unsigned i = 0; i < steps; ++i) at = __ldcg(next + at);
    };
    if (WARM) walk();
    const long long start = clock64();
    walk();
    *cycles = clock64() - start, *end = at;
}
__global__ void chain_fma(float a, long long* cycles, float* end) {
    float x = a;
    const long long start = clock64();
#pragma unroll 64
    for (int i = 0; i < STEPS; ++i) x = x * a + a;
    *cycles = clock64() - start, *end = x;
}
__global__ void barriers(long long* cycles) {
    const long long start = clock64();
    for (int i = 0; i < STEPS; ++i) __syncthreads();
    if (!threadIdx.x) *cycles = clock64() - start;
}
__global__ void empty() {}
__global__ void empty_alone() { extern __shared__ float room[]; }  // takes all of an SM's shared memory
__global__ void copy(const float4* x, float4* y) {
    const size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
    y[i] = x[i];
}
__global__ void read_again(const float4* x, unsigned n, int times, float* end) {  // data that fits into L2
    float sum = 0;
    for (int t = 0; t < times; ++t)
        for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
            const float4 v = __ldcg(x + i);
            sum += v.x + v.y + v.z + v.w;
        }
    if (sum == 1.0f) *end = sum;
}
__device__ unsigned long long nanoseconds() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}
__global__ void busy(float a, int steps, long long* cycles, float* end) {  // all lanes: measures the clock under load
    float x[8];
    for (int k = 0; k < 8; ++k) x[k] = a + k;
    const unsigned long long begun = nanoseconds();
    const long long start = clock64();
    for (int i = 0; i < steps; ++i)
#pragma unroll
        for (int k = 0; k < 8; ++k) x[k] = x[k] * a + a;
    if (!threadIdx.x && !blockIdx.x) cycles[0] = clock64() - start, cycles[1] = nanoseconds() - begun;
    float sum = 0;
    for (int k = 0; k < 8; ++k) sum += x[k];
    if (sum == 1.0f) *end = sum;
}
template <class Launch>
static double seconds(Launch launch) {
    cudaEvent_t start, end;
    CHECK(cudaEventCreate(&start)); CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int round = 0; round < ROUNDS; ++round) {
        CHECK(cudaMemsetAsync(filler, round, FILLER));  // keeps the GPU busy while the launch is issued
        CHECK(cudaEventRecord(start));
        launch();
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        float milliseconds = 0;
        CHECK(cudaEventElapsedTime(&milliseconds, start, end));
        times.push_back(milliseconds);
    }
    std::sort(times.begin(), times.end());
    return 1e-3 * times[ROUNDS / 2];
}

int main() {
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    printf("gpu %s\n", device.name);
    long long* cycles;
    unsigned* end;
    CHECK(cudaMallocManaged(&cycles, 16)); CHECK(cudaMallocManaged(&end, 8)); CHECK(cudaMalloc(&filler, FILLER));
    float* const sink = reinterpret_cast<float*>(end);
    const size_t large = size_t{1} << 30;
    float4 *x, *y;
    CHECK(cudaMalloc(&x, large)); CHECK(cudaMalloc(&y, large));
    CHECK(cudaMemset(x, 0, large));
    const auto ring = [&](size_t count, size_t stride) {  // in words; each points `stride` words ahead
        std::vector<unsigned> next(count);
        for (size_t i = 0; i < count; ++i) next[i] = unsigned((i + stride) % count);
        CHECK(cudaMemcpy(x, next.data(), 4 * count, cudaMemcpyHostToDevice));
    };
    const auto words = reinterpret_cast<const unsigned*>(x);
    const int blocks = 8 * device.multiProcessorCount;
    const auto load = [&] { busy<<<blocks / 2, 512>>>(0.5f, 100000, cycles, sink); };
    const auto per_step = [&](const char* name, auto launch) {
        for (int i = 0; i < 20; ++i) load();  // lets the clocks ramp up
        launch();
        CHECK(cudaDeviceSynchronize());
        printf("%s %.2f\n", name, double(*cycles) / STEPS);
    };
    ring(size_t{STEPS} * 64, 64);
    per_step("l2", [&] { chase<true><<<1, 1>>>(words, STEPS, cycles, end); });
    ring(size_t{1} << 24, 32 * 33);  // over 64 MB, with a stride that does not miss the TLB
    CHECK(cudaMemset(y, 0, large));  // evicts the data from L2
    per_step("dram", [&] { chase<false><<<1, 1>>>(words, STEPS, cycles, end); });
    per_step("arithmetic", [&] { chain_fma<<<1, 1>>>(0.5f, cycles, sink); });
    per_step("barrier", [&] { barriers<<<1, 256>>>(cycles); });
    const double launch = seconds([] { empty<<<1, 32>>>(); });
    printf("launch %.3g\n", launch);
    const unsigned many = 1u << 20, waves = 4096;
    printf("block_rate %.4g\n", many / (seconds([&] { empty<<<many, 32>>>(); }) - launch));
    const int room = static_cast<int>(device.sharedMemPerBlockOptin);
    CHECK(cudaFuncSetAttribute(empty_alone, cudaFuncAttributeMaxDynamicSharedMemorySize, room));
    const unsigned grid = waves * unsigned(device.multiProcessorCount);
    printf("block %.4g\n", (seconds([&] { empty_alone<<<grid, 256, room>>>(); }) - launch) / waves);
    printf("dram_bandwidth %.4g\n", 2.0 * large / seconds([&] { copy<<<unsigned(large / 16 / 256), 256>>>(x, y); }));
    const size_t small = size_t(device.l2CacheSize) / 4;  // fits into one of two partitions
    const int times = 50;
    printf("l2_bandwidth %.4g\n", double(small) * times / seconds([&] { read_again<<<blocks, 256>>>(x, unsigned(small / 16), times, sink); }));
    load();
    CHECK(cudaDeviceSynchronize());
    printf("clock %.4g\n", 1e9 * double(cycles[0]) / double(cycles[1]));
    CHECK(cudaDeviceSynchronize());
}
