// streams.h - streams, events and graphs. Work is done when it is given to a stream, unless the stream is being captured:
// then it becomes a node of the graph, and runs when that is launched.
#pragma once
#include <functional>
#include <vector>

#include "host_api.h"

struct CUgraph_st {
    std::vector<std::function<void()>> nodes;  // in an order that their dependencies allow
};
struct CUgraphExec_st {
    std::vector<std::function<void()>> nodes;
};
struct CUgraphNode_st;
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraphExec_st*;
using cudaGraphNode_t = CUgraphNode_st*;
using cudaHostFn_t = void (*)(void* data);
using cudaStreamCallback_t = void (*)(cudaStream_t stream, cudaError_t status, void* data);
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive, cudaStreamCaptureStatusInvalidated };
#define cudaStreamLegacy ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)

namespace simulator {

inline bool is_capturing(const CUstream_st* stream) {
    return stream && stream != cudaStreamLegacy && stream != cudaStreamPerThread && stream->capturing;
}
inline void capture(CUstream_st* stream, std::function<void()> work) {
    stream->capturing->nodes.push_back(std::move(work));
}
template <typename Work>
cudaError_t in_stream(cudaStream_t stream, Work work) {
    if (!is_capturing(stream)) return work();
    capture(stream, [work] { work(); });
    return cudaSuccess;
}

}  // namespace simulator

// ---- streams
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaDeviceReset() { return cudaSuccess; }
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) { return *stream = new CUstream_st, cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return *stream = new CUstream_st{nullptr, flags}, cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    return *stream = new CUstream_st{nullptr, flags, priority}, cudaSuccess;
}
inline cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    return *priority = stream ? stream->priority : 0, cudaSuccess;
}
inline cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
    return *flags = stream ? stream->flags : 0, cudaSuccess;
}
inline cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return *least = 0, *greatest = -5, cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (stream != cudaStreamLegacy && stream != cudaStreamPerThread) delete stream;
    return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return simulator::is_capturing(stream) ? simulator::finished(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}
inline cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void*, size_t = 0, unsigned = cudaMemAttachSingle) {
    return cudaSuccess;
}
inline cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    return simulator::in_stream(stream, [=] { return function(data), cudaSuccess; });
}
inline cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
    return simulator::in_stream(stream, [=] { return function(stream, cudaSuccess, data), cudaSuccess; });
}

// ---- copies in streams
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream = nullptr, simulator::Position at = simulator::here()) {
    return simulator::in_stream(stream, [=] { return simulator::copy(to, from, bytes, kind, at); });
}
inline cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream = nullptr,
                                   simulator::Position at = simulator::here()) {
    return simulator::in_stream(stream, [=] { return simulator::fill(address, value, bytes, at); });
}
template <typename T>
cudaError_t cudaMemcpyToSymbolAsync(T& symbol, const void* from, size_t bytes, size_t offset = 0,
                                    cudaMemcpyKind kind = cudaMemcpyHostToDevice, cudaStream_t stream = nullptr) {
    return simulator::in_stream(stream, [=, &symbol] { return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind); });
}
template <typename T>
cudaError_t cudaMemcpyFromSymbolAsync(void* to, const T& symbol, size_t bytes, size_t offset = 0,
                                      cudaMemcpyKind kind = cudaMemcpyDeviceToHost, cudaStream_t stream = nullptr) {
    return simulator::in_stream(stream, [=, &symbol] { return cudaMemcpyFromSymbol(to, symbol, bytes, offset, kind); });
}

// ---- events
inline cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new CUevent_st(), cudaSuccess; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr) {
    event->capturing = simulator::is_capturing(stream) ? stream->capturing : nullptr;
    return clock_gettime(CLOCK_MONOTONIC, &event->time), cudaSuccess;
}
inline cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream = nullptr, unsigned = 0) {
    return cudaEventRecord(event, stream);
}
// A stream that waits for an event of a capture is captured into the same graph.
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned = 0) {
    if (event->capturing && stream) stream->capturing = event->capturing;
    return cudaSuccess;
}
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    *milliseconds = static_cast<float>((to->time.tv_sec - from->time.tv_sec) * 1e3 +
                                       (to->time.tv_nsec - from->time.tv_nsec) * 1e-6);
    return cudaSuccess;
}

// ---- graphs
inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    if (!stream || simulator::is_capturing(stream)) return simulator::finished(cudaErrorStreamCaptureUnsupported);
    return stream->capturing = new CUgraph_st, cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    if (!simulator::is_capturing(stream)) return simulator::finished(cudaErrorInvalidValue);
    *graph = stream->capturing;
    return stream->capturing = nullptr, cudaSuccess;
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    *status = simulator::is_capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
inline cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) { return *graph = new CUgraph_st, cudaSuccess; }
inline cudaError_t cudaGraphClone(cudaGraph_t* copy, cudaGraph_t graph) {
    return *copy = new CUgraph_st{graph->nodes}, cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
inline cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
    return *count = graph->nodes.size(), cudaSuccess;
}
// The last arguments have changed between versions of CUDA: flags, or where an error is described.
template <typename... Rest>
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, Rest...) {
    return *exec = new CUgraphExec_st{graph->nodes}, cudaSuccess;
}
inline cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long = 0) {
    return cudaGraphInstantiate(exec, graph);
}
template <typename... Rest>
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, Rest...) {
    return exec->nodes = graph->nodes, cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return delete exec, cudaSuccess; }
inline cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
    for (const auto& node : exec->nodes) node();
    return cudaPeekAtLastError();
}

namespace simulator {
inline cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, std::function<void()> work) {
    graph->nodes.push_back(std::move(work));
    if (node) *node = reinterpret_cast<cudaGraphNode_t>(graph->nodes.size());  // its number
    return cudaSuccess;
}
}  // namespace simulator

inline cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t) {
    return simulator::add_node(node, graph, [] {});
}
inline cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t, void* to,
                                            const void* from, size_t bytes, cudaMemcpyKind kind,
                                            simulator::Position at = simulator::here()) {
    return simulator::add_node(node, graph, [=] { simulator::copy(to, from, bytes, kind, at); });
}
struct cudaHostNodeParams {
    cudaHostFn_t fn;
    void* userData;
};
inline cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t,
                                        const cudaHostNodeParams* params) {
    return simulator::add_node(node, graph, [params = *params] { params.fn(params.userData); });
}
