// What samples ask of the runtime: launches by address, graphs, pitched memory, occupancy, attributes, pointers, streams.
#include "feature.h"

__global__ void scale(float* values, float factor, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) values[i] *= factor;
}
template <typename T>
__global__ void add(T* values, T term) {
    values[threadIdx.x] += term;
}
__global__ void transpose(const float* in, size_t in_pitch, float* out, size_t out_pitch, int rows, int cols) {
    const int r = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows || c >= cols) return;
    ((float*)((char*)out + c * out_pitch))[r] = ((const float*)((const char*)in + r * in_pitch))[c];
}

static void by_address() {
    Buffer<float> values(100, 1);
    float* device = values.device();
    float factor = 3;
    int n = 90;
    void* arguments[] = {&device, &factor, &n};
    EXPECT(cudaLaunchKernel((void*)scale, dim3(4), dim3(32), arguments, 0, 0) == cudaSuccess);
    EXPECT(cudaLaunchKernel((const void*)&scale, dim3(4), dim3(32), arguments, 0, 0) == cudaSuccess);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(4), config.blockDim = dim3(32);
    EXPECT(cudaLaunchKernelEx(&config, scale, device, 2.0f, n) == cudaSuccess);
    values.fetch();
    EXPECT(values[0] == 18 && values[89] == 18 && values[90] == 1);
    void* others[] = {&device, &factor};
    EXPECT(cudaLaunchKernel((const void*)add<float>, 1, 32, others, 0, 0) == cudaSuccess);
    EXPECT(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(&add<float>), 1, 32, others, 0, 0) == cudaSuccess);
    auto chosen = add<float>;
    EXPECT(cudaLaunchKernel((const void*)chosen, 1, 32, others, 300 << 10, 0) == cudaErrorInvalidValue);
    EXPECT(cudaLaunchKernel((const void*)chosen, 1, 32, others, 0, 0) == cudaSuccess);
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
    values.fetch();
    EXPECT(values[0] == 27 && values[31] == 27 && values[32] == 18);
}

static void graphs() {
    Buffer<float> values(64, 1);
    float* device = values.device();
    cudaStream_t stream, other;
    cudaEvent_t fork, join;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStreamCreate(&stream), cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaEventCreate(&fork), cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    for (int i = 0; i < 3; ++i) scale<<<1, 64, 0, stream>>>(device, 2, 64);
    cudaEventRecord(fork, stream), cudaStreamWaitEvent(other, fork, 0);
    scale<<<1, 64, 0, other>>>(device, 10, 32);
    cudaEventRecord(join, other), cudaStreamWaitEvent(stream, join, 0);
    EXPECT(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    values.fetch();
    EXPECT(values[0] == 1);  // nothing has run yet
    EXPECT(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    for (int i = 0; i < 2; ++i) EXPECT(cudaGraphLaunch(exec, stream) == cudaSuccess);
    cudaStreamSynchronize(stream);
    values.fetch();
    EXPECT(values[0] == 6400 && values[63] == 64);
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
    cudaEventDestroy(fork), cudaEventDestroy(join), cudaStreamDestroy(stream), cudaStreamDestroy(other);
}

static void pitched() {
    const int rows = 10, cols = 7;
    float in[rows][cols], out[cols][rows], *a, *b;
    size_t a_pitch, b_pitch;
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < cols; ++c) in[r][c] = 100 * r + c;
    EXPECT(cudaMallocPitch(&a, &a_pitch, cols * sizeof(float), rows) == cudaSuccess && a_pitch % 32 == 0);
    EXPECT(cudaMallocPitch((void**)&b, &b_pitch, rows * sizeof(float), cols) == cudaSuccess);
    EXPECT(cudaMemcpy2D(a, a_pitch, in, sizeof in[0], sizeof in[0], rows, cudaMemcpyHostToDevice) == cudaSuccess);
    EXPECT(cudaMemset2D(b, b_pitch, 0, rows * sizeof(float), cols) == cudaSuccess);
    dim3 blockDim(16, 16), gridDim((cols + blockDim.x - 1) / blockDim.x, (rows + blockDim.y - 1) / blockDim.y);
    transpose<<<gridDim, blockDim>>>(a, a_pitch, b, b_pitch, rows, cols);
    EXPECT(cudaMemcpy2D(out, sizeof out[0], b, b_pitch, sizeof out[0], cols, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < cols; ++c) EXPECT(out[c][r] == 100 * r + c);
    cudaFree(a), cudaFree(b);
}

static void questions() {
    int blocks = 0, grid = 0, block = 0, value = 0, version = 0;
    EXPECT(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scale, 256, 0) == cudaSuccess && blocks >= 4);
    EXPECT(cudaOccupancyMaxPotentialBlockSize(&grid, &block, scale, 0, 0) == cudaSuccess && block % 32 == 0 && block >= 128);
    EXPECT(grid > 0);
    EXPECT(cudaDeviceGetAttribute(&value, cudaDevAttrMaxBlockDimX, 0) == cudaSuccess && value == 1024);
    EXPECT(cudaDeviceGetAttribute(&value, cudaDevAttrCooperativeLaunch, 0) == cudaSuccess && value == 1);
    EXPECT(cudaRuntimeGetVersion(&version) == cudaSuccess && version >= 11000);
    cudaFuncAttributes attributes;
    EXPECT(cudaFuncGetAttributes(&attributes, scale) == cudaSuccess && attributes.maxThreadsPerBlock == 1024);
    float *device, *pinned, *managed;
    cudaMalloc(&device, 400), cudaMallocHost(&pinned, 400), cudaMallocManaged(&managed, 400);
    cudaPointerAttributes p;
    EXPECT(cudaPointerGetAttributes(&p, device) == cudaSuccess && p.type == cudaMemoryTypeDevice);
    EXPECT(cudaPointerGetAttributes(&p, pinned) == cudaSuccess && p.type == cudaMemoryTypeHost);
    EXPECT(cudaPointerGetAttributes(&p, managed + 5) == cudaSuccess && p.type == cudaMemoryTypeManaged);
    for (int i = 0; i < 100; ++i) pinned[i] = managed[i] = 1;
    std::vector<float> own(100, 1);
    EXPECT(cudaHostRegister(own.data(), 400, cudaHostRegisterDefault) == cudaSuccess);
    EXPECT(cudaHostRegister(own.data(), 400, cudaHostRegisterDefault) == cudaErrorHostMemoryAlreadyRegistered);
    float* same = nullptr;
    EXPECT(cudaHostGetDevicePointer((void**)&same, own.data(), 0) == cudaSuccess);
    scale<<<1, 100>>>(same, 5, 100);
    scale<<<1, 100>>>(pinned, 6, 100);
    scale<<<1, 100>>>(managed, 7, 100);
    EXPECT(cudaDeviceSynchronize() == cudaSuccess);
    EXPECT(own[99] == 5 && pinned[99] == 6 && managed[99] == 7);
    EXPECT(cudaHostUnregister(own.data()) == cudaSuccess);
    cudaFree(device), cudaFreeHost(pinned), cudaFree(managed);
    int least, greatest;
    EXPECT(cudaDeviceGetStreamPriorityRange(&least, &greatest) == cudaSuccess && greatest <= least);
}

// A volume there and back, a copy between devices that are one, and managed memory that is asked to move.
static void volumes() {
    int in[24], out[24], result = 0, *a, *b, device = -1;
    for (int& v : in) v = 7;
    cudaPitchedPtr p;
    cudaStream_t stream;
    cudaMemcpy3DParms m = {};
    cudaMalloc3D(&p, make_cudaExtent(16, 3, 2)), cudaStreamCreate(&stream);
    EXPECT(cudaMemset3DAsync(p, 0, make_cudaExtent(16, 3, 2), stream) == cudaSuccess);
    m.srcPtr = make_cudaPitchedPtr(in, 16, 4, 3), m.dstPtr = p;
    m.extent = make_cudaExtent(16, 3, 2), m.kind = cudaMemcpyHostToDevice;
    EXPECT(cudaMemcpy3DAsync(&m, stream) == cudaSuccess);
    m.srcPtr = p, m.dstPtr = make_cudaPitchedPtr(out, 16, 4, 3), m.kind = cudaMemcpyDeviceToHost;
    EXPECT(cudaMemcpy3DAsync(&m, stream) == cudaSuccess && cudaStreamSynchronize(stream) == cudaSuccess && out[23] == 7);
    cudaMalloc(&a, 4), cudaMalloc(&b, 4), cudaMemcpy(a, in, 4, cudaMemcpyHostToDevice);
    EXPECT(cudaMemcpyPeerAsync(b, 0, a, 0, 4, stream) == cudaSuccess && cudaStreamSynchronize(stream) == cudaSuccess);
    EXPECT(cudaMemcpy(&result, b, 4, cudaMemcpyDeviceToHost) == cudaSuccess && result == 7);
    cudaFree(p.ptr), cudaFree(a), cudaFree(b);
    float* managed;
    cudaMallocManaged(&managed, 64), cudaGetDevice(&device);
#if CUDART_VERSION >= 13000
    cudaMemLocation place = {};
    place.type = cudaMemLocationTypeDevice, place.id = device;
    EXPECT(cudaMemPrefetchAsync(managed, 64, place, 0) == cudaSuccess);
    EXPECT(cudaMemPrefetchAsync(managed, 64, place, 0, stream) == cudaSuccess);
#endif
#if CUDART_VERSION < 13000 || defined(CUDA_SIMULATOR)  // here both are there
    EXPECT(cudaMemPrefetchAsync(managed, 64, device, NULL) == cudaSuccess);
    EXPECT(cudaMemPrefetchAsync(managed, 64, 0, 0) == cudaSuccess);
    EXPECT(cudaMemPrefetchAsync(managed, 64, cudaCpuDeviceId, stream) == cudaSuccess);
#endif
    cudaFree(managed), cudaStreamDestroy(stream);
}

int main() {
    volumes();
    by_address();
    graphs();
    pitched();
    questions();
    return done();
}
