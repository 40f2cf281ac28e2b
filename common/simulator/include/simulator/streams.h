// streams.h - streams and events. Work is done when it is given to a stream, unless the stream is being captured: then it
// becomes a node of the graph (graphs.h), and runs when that is launched.
//
// Errors are those that the runtime API documents: handles that were never created or are gone, flags that there are not,
// what a stream that is being captured must not be asked.
#pragma once
#include <any>
#include <functional>
#include <memory>
#include <vector>

#include "host_api.h"

enum cudaGraphNodeType {
    cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy, cudaGraphNodeTypeMemset, cudaGraphNodeTypeHost, cudaGraphNodeTypeGraph,
    cudaGraphNodeTypeEmpty, cudaGraphNodeTypeWaitEvent, cudaGraphNodeTypeEventRecord
};
struct CUgraphNode_st {
    CUgraph_st* graph;
    cudaGraphNodeType type;
    std::function<void()> work;
    std::vector<CUgraphNode_st*> needs;
    std::any parameters;               // as the program gave them
    const CUgraphNode_st* original = nullptr;  // in a clone
};
struct CUgraph_st {
    std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
    // While streams are captured into it:
    CUstream_st* origin = nullptr;
    std::vector<CUstream_st*> streams, unjoined;
};
struct CUstream_st {
    unsigned flags = 0;
    int priority = 0;
    CUgraph_st* capturing = nullptr;       // what is launched here goes into the graph, and does not run
    std::vector<CUgraphNode_st*> latest;   // what the next node must wait for
};
struct CUevent_st {
    unsigned flags = 0;
    bool recorded = false;
    timespec time = {};
    CUstream_st* captured = nullptr;       // the stream where it was recorded, if that was being captured
    std::vector<CUgraphNode_st*> latest;
};
using cudaGraph_t = CUgraph_st*;
using cudaGraphNode_t = CUgraphNode_st*;
using cudaHostFn_t = void (*)(void* data);
using cudaStreamCallback_t = void (*)(cudaStream_t stream, cudaError_t status, void* data);
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive, cudaStreamCaptureStatusInvalidated };
#define cudaStreamLegacy ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)
// Apart: where a caller does not look at the error, compilers would say that what it asked for may be unset.
#define SIMULATOR_API __attribute__((noinline)) inline
#define SIMULATOR_NEED(condition, error) \
    if (!(condition)) return simulator::finished(error)

namespace simulator {

inline bool is_default(const CUstream_st* stream) { return !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread; }
inline bool is_stream(const CUstream_st* stream) { return is_default(stream) || is_alive(stream, Handle::stream); }
inline bool is_capturing(const CUstream_st* stream) { return !is_default(stream) && stream->capturing; }
inline cudaGraphNode_t new_node(cudaGraph_t graph, cudaGraphNodeType type, std::function<void()> work,
                                std::vector<CUgraphNode_st*> needs, std::any parameters = {}) {
    graph->nodes.push_back(std::make_unique<CUgraphNode_st>(
        CUgraphNode_st{graph, type, std::move(work), std::move(needs), std::move(parameters)}));
    return graph->nodes.back().get();
}
inline void capture(CUstream_st* stream, std::function<void()> work, cudaGraphNodeType type) {
    stream->latest = {new_node(stream->capturing, type, std::move(work), stream->latest)};
    if (stream != stream->capturing->origin) stream->capturing->unjoined.push_back(stream);
}
inline void capture(CUstream_st* stream, std::function<void()> work) { capture(stream, std::move(work), cudaGraphNodeTypeKernel); }
template <typename Work>
cudaError_t in_stream(cudaStream_t stream, Work work, cudaGraphNodeType type = cudaGraphNodeTypeKernel) {
    SIMULATOR_NEED(is_stream(stream), cudaErrorInvalidResourceHandle);
    if (!is_capturing(stream)) return work();
    capture(stream, [work] { work(); }, type);
    return cudaSuccess;
}
// A call that would wait for a stream that is being captured: the capture is lost.
inline cudaError_t not_while_capturing(cudaStream_t stream) {
    if (!is_capturing(stream)) return cudaSuccess;
    capture_state().invalid = true;
    return finished(cudaErrorStreamCaptureUnsupported);
}

}  // namespace simulator

// ---- streams
SIMULATOR_API cudaError_t cudaDeviceSynchronize() { return simulator::capture_forbids(cudaErrorStreamCaptureUnsupported); }
SIMULATOR_API cudaError_t cudaDeviceReset() { return cudaSuccess; }
SIMULATOR_API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
SIMULATOR_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    SIMULATOR_NEED(stream && flags <= cudaStreamNonBlocking, cudaErrorInvalidValue);
    *stream = new CUstream_st{flags, priority > 0 ? 0 : priority < -5 ? -5 : priority};
    return simulator::born(*stream, simulator::Handle::stream), cudaSuccess;
}
SIMULATOR_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
SIMULATOR_API cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
SIMULATOR_API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    SIMULATOR_NEED(simulator::dies(stream, simulator::Handle::stream), cudaErrorInvalidResourceHandle);
    return delete stream, cudaSuccess;
}
#define SIMULATOR_OF_STREAM(name, T, value)                                                    \
    SIMULATOR_API cudaError_t name(cudaStream_t stream, T* result) {                                  \
        SIMULATOR_NEED(simulator::is_stream(stream), cudaErrorInvalidResourceHandle);          \
        SIMULATOR_NEED(result, cudaErrorInvalidValue);                                         \
        return *result = value, cudaSuccess;                                                   \
    }
SIMULATOR_OF_STREAM(cudaStreamGetPriority, int, simulator::is_default(stream) ? 0 : stream->priority)
SIMULATOR_OF_STREAM(cudaStreamGetFlags, unsigned, simulator::is_default(stream) ? 0 : stream->flags)
SIMULATOR_OF_STREAM(cudaStreamGetDevice, int, 0)
SIMULATOR_OF_STREAM(cudaStreamGetId, unsigned long long, reinterpret_cast<unsigned long long>(stream))
SIMULATOR_OF_STREAM(cudaStreamIsCapturing, cudaStreamCaptureStatus,
                    !simulator::is_capturing(stream)            ? cudaStreamCaptureStatusNone
                    : simulator::capture_state().invalid        ? cudaStreamCaptureStatusInvalidated
                                                                : cudaStreamCaptureStatusActive)
#undef SIMULATOR_OF_STREAM
SIMULATOR_API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    SIMULATOR_NEED(simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    return simulator::not_while_capturing(stream);
}
SIMULATOR_API cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
SIMULATOR_API cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void* address, size_t = 0, unsigned flags = cudaMemAttachSingle) {
    SIMULATOR_NEED(simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    SIMULATOR_NEED(address && (flags == cudaMemAttachGlobal || flags == cudaMemAttachHost || flags == cudaMemAttachSingle), cudaErrorInvalidValue);
    return cudaSuccess;
}
SIMULATOR_API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    SIMULATOR_NEED(function, cudaErrorInvalidValue);
    return simulator::in_stream(stream, [=] { return function(data), cudaSuccess; }, cudaGraphNodeTypeHost);
}
SIMULATOR_API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned flags) {
    SIMULATOR_NEED(function && !flags, cudaErrorInvalidValue);
    SIMULATOR_NEED(simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    if (const cudaError_t error = simulator::not_while_capturing(stream)) return error;
    return function(stream, cudaSuccess, data), cudaSuccess;
}

// What a stream is told of caches and priorities is remembered and changes nothing.
enum cudaAccessProperty { cudaAccessPropertyNormal, cudaAccessPropertyStreaming, cudaAccessPropertyPersisting };
struct cudaAccessPolicyWindow {
    void* base_ptr;
    size_t num_bytes;
    float hitRatio;
    cudaAccessProperty hitProp, missProp;
};

// ---- copies in streams
SIMULATOR_API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream = nullptr, simulator::Position at = simulator::here()) {
    return simulator::in_stream(stream, [=] { return simulator::copy(to, from, bytes, kind, at); }, cudaGraphNodeTypeMemcpy);
}
SIMULATOR_API cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream = nullptr,
                                   simulator::Position at = simulator::here()) {
    return simulator::in_stream(stream, [=] { return simulator::fill(address, value, bytes, at); }, cudaGraphNodeTypeMemset);
}
template <typename T>
cudaError_t cudaMemcpyToSymbolAsync(T& symbol, const void* from, size_t bytes, size_t offset = 0,
                                    cudaMemcpyKind kind = cudaMemcpyHostToDevice, cudaStream_t stream = nullptr) {
    return simulator::in_stream(stream, [=, &symbol] { return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind); },
                                cudaGraphNodeTypeMemcpy);
}
template <typename T>
cudaError_t cudaMemcpyFromSymbolAsync(void* to, const T& symbol, size_t bytes, size_t offset = 0,
                                      cudaMemcpyKind kind = cudaMemcpyDeviceToHost, cudaStream_t stream = nullptr) {
    return simulator::in_stream(stream, [=, &symbol] { return cudaMemcpyFromSymbol(to, symbol, bytes, offset, kind); },
                                cudaGraphNodeTypeMemcpy);
}

// ---- events
SIMULATOR_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    SIMULATOR_NEED(event && flags < 8 && !(flags & cudaEventInterprocess && !(flags & cudaEventDisableTiming)), cudaErrorInvalidValue);
    *event = new CUevent_st{flags};
    return simulator::born(*event, simulator::Handle::event), cudaSuccess;
}
SIMULATOR_API cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
SIMULATOR_API cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned flags) { return cudaEventCreateWithFlags(event, flags); }
SIMULATOR_API cudaError_t cudaEventDestroy(cudaEvent_t event) {
    SIMULATOR_NEED(simulator::dies(event, simulator::Handle::event), cudaErrorInvalidResourceHandle);
    return delete event, cudaSuccess;
}
SIMULATOR_API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    SIMULATOR_NEED(simulator::is_alive(event, simulator::Handle::event), cudaErrorInvalidResourceHandle);
    SIMULATOR_NEED(!event->captured, cudaErrorCapturedEvent);
    return cudaSuccess;
}
SIMULATOR_API cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
SIMULATOR_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream = nullptr, unsigned flags = 0) {
    SIMULATOR_NEED(simulator::is_alive(event, simulator::Handle::event) && simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    SIMULATOR_NEED(flags <= 1, cudaErrorInvalidValue);
    event->captured = simulator::is_capturing(stream) ? stream : nullptr;
    if (event->captured)
        event->latest = stream->latest;
    else
        event->recorded = true;
    return clock_gettime(CLOCK_MONOTONIC, &event->time), cudaSuccess;
}
SIMULATOR_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr) { return cudaEventRecordWithFlags(event, stream); }
// A stream that waits for an event of a capture is captured into the same graph.
SIMULATOR_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0) {
    SIMULATOR_NEED(simulator::is_alive(event, simulator::Handle::event) && simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    SIMULATOR_NEED(flags <= 1, cudaErrorInvalidValue);
    CUstream_st* from = event->captured;
    if (!from || !from->capturing || from == stream) {
        SIMULATOR_NEED(!simulator::is_capturing(stream) || !event->recorded || flags, cudaErrorStreamCaptureIsolation);
        return cudaSuccess;
    }
    SIMULATOR_NEED(!simulator::is_default(stream), cudaErrorStreamCaptureImplicit);
    SIMULATOR_NEED(!stream->capturing || stream->capturing == from->capturing, cudaErrorStreamCaptureMerge);
    CUgraph_st* graph = from->capturing;
    if (!stream->capturing) graph->streams.push_back(stream), stream->latest.clear();
    stream->capturing = graph;
    stream->latest.insert(stream->latest.end(), event->latest.begin(), event->latest.end());
    std::erase(graph->unjoined, from);
    if (stream != graph->origin) graph->unjoined.push_back(stream);
    return cudaSuccess;
}
SIMULATOR_API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    SIMULATOR_NEED(milliseconds, cudaErrorInvalidValue);
    for (const cudaEvent_t event : {from, to}) {
        SIMULATOR_NEED(simulator::is_alive(event, simulator::Handle::event), cudaErrorInvalidResourceHandle);
        SIMULATOR_NEED(!event->captured, cudaErrorCapturedEvent);
        SIMULATOR_NEED(event->recorded && !(event->flags & cudaEventDisableTiming), cudaErrorInvalidResourceHandle);
    }
    *milliseconds = static_cast<float>((to->time.tv_sec - from->time.tv_sec) * 1e3 +
                                       (to->time.tv_nsec - from->time.tv_nsec) * 1e-6);
    return cudaSuccess;
}

// ---- capture
SIMULATOR_API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    SIMULATOR_NEED(mode >= cudaStreamCaptureModeGlobal && mode <= cudaStreamCaptureModeRelaxed, cudaErrorInvalidValue);
    SIMULATOR_NEED(stream && stream != cudaStreamLegacy, cudaErrorStreamCaptureUnsupported);
    SIMULATOR_NEED(simulator::is_alive(stream, simulator::Handle::stream), cudaErrorInvalidResourceHandle);
    SIMULATOR_NEED(!stream->capturing, cudaErrorIllegalState);
    stream->capturing = new CUgraph_st{{}, stream, {stream}, {}};
    stream->latest.clear();
    simulator::capture_state() = {mode != cudaStreamCaptureModeRelaxed, !(stream->flags & cudaStreamNonBlocking), false};
    return simulator::born(stream->capturing, simulator::Handle::graph), cudaSuccess;
}
SIMULATOR_API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    SIMULATOR_NEED(graph, cudaErrorInvalidValue);
    SIMULATOR_NEED(simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    SIMULATOR_NEED(simulator::is_capturing(stream), cudaErrorIllegalState);
    CUgraph_st* captured = stream->capturing;
    SIMULATOR_NEED(captured->origin == stream, cudaErrorStreamCaptureUnmatched);
    const cudaError_t error = simulator::capture_state().invalid   ? cudaErrorStreamCaptureInvalidated
                              : !captured->unjoined.empty()        ? cudaErrorStreamCaptureUnjoined
                                                                   : cudaSuccess;
    simulator::capture_state() = {};
    for (CUstream_st* one : captured->streams)
        if (simulator::is_alive(one, simulator::Handle::stream)) one->capturing = nullptr;
    *graph = error ? nullptr : captured;
    if (error) simulator::dies(captured, simulator::Handle::graph), delete captured;
    return simulator::finished(error);
}
SIMULATOR_API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    SIMULATOR_NEED(mode && *mode >= cudaStreamCaptureModeGlobal && *mode <= cudaStreamCaptureModeRelaxed, cudaErrorInvalidValue);
    static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
    std::swap(*mode, current);
    simulator::capture_state().forbids = current != cudaStreamCaptureModeRelaxed && simulator::capture_state().forbids;
    return cudaSuccess;
}
struct cudaGraphEdgeData {
    unsigned char from_port, to_port, type, reserved[5];
};
SIMULATOR_API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id = nullptr,
                                            cudaGraph_t* graph = nullptr, const cudaGraphNode_t** needs = nullptr,
                                            const cudaGraphEdgeData** edges = nullptr, size_t* count = nullptr) {
    if (const cudaError_t error = cudaStreamIsCapturing(stream, status)) return error;
    if (*status == cudaStreamCaptureStatusNone) return cudaSuccess;
    if (id) *id = reinterpret_cast<unsigned long long>(stream->capturing);
    if (graph) *graph = stream->capturing;
    if (needs) *needs = stream->latest.data();
    if (edges) *edges = nullptr;
    if (count) *count = stream->latest.size();
    return cudaSuccess;
}
