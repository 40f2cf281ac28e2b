// The error codes that the runtime API documents for events, streams, graphs and memory; graphs with dependencies.
#include "feature.h"

#include <algorithm>
#include <cstring>

// The call's result; the error is not left for cudaGetLastError().
#define GIVES(error, ...)                                                                      \
    do {                                                                                       \
        const cudaError_t got = (__VA_ARGS__);                                                 \
        if (got != error) printf("%s: %s\n", #__VA_ARGS__, cudaGetErrorName(got)), ++failures; \
        cudaGetLastError();                                                                    \
    } while (0)

__global__ void twice_plus(int* value, int more) { *value = 2 * *value + more; }

static void events() {
    cudaEvent_t recorded, never, untimed;
    float ms = 0;
    cudaEventCreate(&recorded), cudaEventCreate(&never), cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming);
    GIVES(cudaSuccess, cudaEventRecord(recorded));
    GIVES(cudaSuccess, cudaEventRecord(untimed));
    GIVES(cudaSuccess, cudaEventSynchronize(never));
    GIVES(cudaSuccess, cudaEventSynchronize(recorded));
    GIVES(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, recorded, never));
    GIVES(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, recorded, untimed));
    GIVES(cudaErrorInvalidValue, cudaEventElapsedTime(nullptr, recorded, recorded));
    GIVES(cudaSuccess, cudaEventElapsedTime(&ms, recorded, recorded));
    GIVES(cudaErrorInvalidValue, cudaEventCreateWithFlags(&never, 1024));
    GIVES(cudaErrorInvalidResourceHandle, cudaEventRecord(nullptr));
    cudaEventDestroy(recorded), cudaEventDestroy(never), cudaEventDestroy(untimed);
}

static void streams() {
    cudaStream_t stream, other;
    cudaEvent_t event;
    cudaGraph_t graph = nullptr;
    cudaStreamCreate(&stream), cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaEventCreate(&event);
    GIVES(cudaErrorInvalidValue, cudaStreamCreateWithFlags(&other, 77));
    GIVES(cudaErrorInvalidValue, cudaStreamCreate(nullptr));
    GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal));
    GIVES(cudaErrorIllegalState, cudaStreamEndCapture(stream, &graph));
    // Waiting for a stream that is being captured loses the capture.
    GIVES(cudaSuccess, cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream));
    GIVES(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
    EXPECT(graph == nullptr);
    // A fork that never comes back.
    GIVES(cudaSuccess, cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    GIVES(cudaSuccess, cudaEventRecord(event, stream));
    GIVES(cudaErrorCapturedEvent, cudaEventSynchronize(event));
    cudaStreamEndCapture(stream, &graph), cudaGetLastError();
    GIVES(cudaSuccess, cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    GIVES(cudaSuccess, cudaEventRecord(event, stream));
    GIVES(cudaSuccess, cudaStreamWaitEvent(other, event, 0));
    GIVES(cudaErrorStreamCaptureUnmatched, cudaStreamEndCapture(other, &graph));
    cudaStreamEndCapture(stream, &graph), cudaGetLastError();
    GIVES(cudaSuccess, cudaStreamSynchronize(other));  // it is no longer captured
    cudaEventDestroy(event), cudaStreamDestroy(stream), cudaStreamDestroy(other);
}

static void graphs() {
    Buffer<int> value(1, 1);
    int* device = value.device();
    int one = 1, ten = 10;
    void *first_arguments[] = {&device, &one}, *second_arguments[] = {&device, &ten};
    cudaKernelNodeParams first = {}, second = {};
    first.func = second.func = (void*)twice_plus;
    first.gridDim = first.blockDim = second.gridDim = second.blockDim = dim3(1);
    first.kernelParams = first_arguments, second.kernelParams = second_arguments;
    cudaGraph_t graph, child;
    cudaGraphExec_t exec;
    cudaGraphNode_t a, b, c, nodes[8];
    size_t count = 0;
    GIVES(cudaErrorInvalidValue, cudaGraphCreate(nullptr, 0));
    cudaGraphCreate(&graph, 0), cudaGraphCreate(&child, 0);
    // Added in one order, run in the other.
    EXPECT(cudaGraphAddKernelNode(&b, graph, nullptr, 0, &second) == cudaSuccess);
    EXPECT(cudaGraphAddKernelNode(&a, graph, nullptr, 0, &first) == cudaSuccess);
    EXPECT(cudaGraphAddEmptyNode(&c, graph, &b, 1) == cudaSuccess);
#if CUDART_VERSION >= 13000
    EXPECT(cudaGraphAddDependencies(graph, &a, &b, nullptr, 1) == cudaSuccess);
    GIVES(cudaErrorInvalidValue, cudaGraphAddDependencies(graph, &a, &a, nullptr, 1));
#else
    EXPECT(cudaGraphAddDependencies(graph, &a, &b, 1) == cudaSuccess);
#endif
    EXPECT(cudaGraphGetNodes(graph, nullptr, &count) == cudaSuccess && count == 3);
    EXPECT(cudaGraphGetRootNodes(graph, nullptr, &count) == cudaSuccess && count == 1);
    count = 8;
    EXPECT(cudaGraphGetNodes(graph, nodes, &count) == cudaSuccess && std::count(nodes, nodes + count, a) == 1);
    EXPECT(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    EXPECT(cudaGraphLaunch(exec, 0) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
    value.fetch();
    EXPECT(value[0] == 16);  // 2 * (2 * 1 + 1) + 10
    one = 5;
    EXPECT(cudaGraphExecKernelNodeSetParams(exec, a, &first) == cudaSuccess);
    EXPECT(cudaGraphLaunch(exec, 0) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
    value.fetch();
    EXPECT(value[0] == 84);
    cudaGraphNodeType type;
    EXPECT(cudaGraphNodeGetType(c, &type) == cudaSuccess && type == cudaGraphNodeTypeEmpty);
    EXPECT(cudaGraphExecDestroy(exec) == cudaSuccess);
    // As a child of another graph, which keeps a copy.
    EXPECT(cudaGraphAddChildGraphNode(&c, child, nullptr, 0, graph) == cudaSuccess);
    GIVES(cudaErrorInvalidValue, cudaGraphAddChildGraphNode(&c, child, nullptr, 1, graph));
    EXPECT(cudaGraphDestroy(graph) == cudaSuccess);
    EXPECT(cudaGraphInstantiate(&exec, child, 0) == cudaSuccess);
    EXPECT(cudaGraphLaunch(exec, 0) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
    value.fetch();
    EXPECT(value[0] == 2 * (2 * 84 + 1) + 10);
    // It outlives the graph that it was made from, and takes what another one of the same shape does.
    cudaGraphExecUpdateResultInfo info;
    EXPECT(cudaGraphClone(&graph, child) == cudaSuccess && cudaGraphDestroy(child) == cudaSuccess);
    EXPECT(cudaGraphExecUpdate(exec, graph, &info) == cudaSuccess);
    cudaGraphCreate(&child, 0);
    GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(exec, child, &info));
    EXPECT(cudaGraphDestroy(graph) == cudaSuccess && cudaGraphLaunch(exec, 0) == cudaSuccess);
    EXPECT(cudaDeviceSynchronize() == cudaSuccess);
    value.fetch();
    EXPECT(value[0] == 2 * (2 * (2 * (2 * 84 + 1) + 10) + 1) + 10);
    GIVES(cudaErrorInvalidValue, cudaGraphLaunch(nullptr, 0));
    GIVES(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, nullptr, 0));
    cudaGraphExecDestroy(exec), cudaGraphDestroy(child);
}

__device__ int variable;
static void memory() {
    float *device = nullptr, *pinned = nullptr, *managed = nullptr, own[4];
    size_t limit = 0;
    GIVES(cudaErrorInvalidValue, cudaMalloc((void**)nullptr, 4));
    GIVES(cudaSuccess, cudaMallocManaged(&managed, 0));  // an H100's answer; the reference says cudaErrorInvalidValue
    GIVES(cudaErrorMemoryAllocation, cudaMalloc(&device, size_t(1) << 50));
    cudaMalloc(&device, 64), cudaMallocHost(&pinned, 64), cudaMallocManaged(&managed, 64);
    GIVES(cudaErrorInvalidValue, cudaFree(own));
    GIVES(cudaErrorInvalidValue, cudaFreeHost(device));
    GIVES(cudaErrorInvalidMemcpyDirection, cudaMemcpy(own, device, 4, (cudaMemcpyKind)77));
    GIVES(cudaErrorInvalidMemcpyDirection, cudaMemcpyToSymbol(variable, own, 4, 0, cudaMemcpyDeviceToHost));
    GIVES(cudaErrorInvalidValue, cudaMemcpyToSymbol(variable, own, 8));
    GIVES(cudaErrorInvalidPitchValue, cudaMemcpy2D(device, 4, own, 4, 8, 2, cudaMemcpyHostToDevice));
    GIVES(cudaErrorInvalidValue, cudaHostGetDevicePointer((void**)&pinned, nullptr, 0));
    GIVES(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(own));
    GIVES(cudaErrorInvalidValue, cudaMemAdvise(device, 64, cudaMemAdviseSetReadMostly, {}));
    GIVES(cudaErrorInvalidValue, cudaDeviceGetLimit(&limit, (cudaLimit)77));
    GIVES(cudaSuccess, cudaDeviceSetLimit(cudaLimitMallocHeapSize, 16 << 20));
    GIVES(cudaSuccess, cudaDeviceGetLimit(&limit, cudaLimitMallocHeapSize));
    EXPECT(limit >= 16 << 20);
    GIVES(cudaErrorInvalidDevice, cudaSetDevice(4711));
    EXPECT(strcmp(cudaGetErrorName(cudaErrorStreamCaptureUnjoined), "cudaErrorStreamCaptureUnjoined") == 0);
    cudaFree(device), cudaFreeHost(pinned), cudaFree(managed);
}

int main() {
    events();
    streams();
    graphs();
    memory();
    return done();
}
