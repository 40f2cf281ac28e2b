// streams.cpp - streams, events, captures: include/simulator/streams.h.
#include <memory>
#include <utility>
#include <vector>

#include "../include/simulator/streams.h"

struct CUgraphNode_st {
    cudaGraphNodeType type;
    std::function<void()> work;
    std::vector<CUgraphNode_st*> needs;
};
struct CUgraph_st {
    std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
    // During a capture:
    CUstream_st* origin = nullptr;
    std::vector<CUstream_st*> streams, unjoined;
};
struct CUstream_st {
    unsigned flags = 0;
    int priority = 0;
    CUgraph_st* capturing = nullptr;       // launches are added to this graph instead of running
    std::vector<CUgraphNode_st*> latest;   // the next node's dependencies
};
struct CUevent_st {
    unsigned flags = 0;
    bool recorded = false;
    timespec time = {};
    CUstream_st* captured = nullptr;       // the stream on which it was recorded, if that was capturing
    std::vector<CUgraphNode_st*> latest;
};

namespace simulator {

static bool is_default(const CUstream_st* stream) { return !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread; }
bool is_stream(const CUstream_st* stream) { return is_default(stream) || is_alive(stream, Handle::stream); }
bool is_capturing(const CUstream_st* stream) { return !is_default(stream) && stream->capturing; }
static cudaGraphNode_t new_node(cudaGraph_t graph, cudaGraphNodeType type, std::function<void()> work,
                                std::vector<CUgraphNode_st*> needs) {
    graph->nodes.push_back(std::make_unique<CUgraphNode_st>(CUgraphNode_st{type, std::move(work), std::move(needs)}));
    return graph->nodes.back().get();
}
void capture(CUstream_st* stream, std::function<void()> work, cudaGraphNodeType type) {
    stream->latest = {new_node(stream->capturing, type, std::move(work), stream->latest)};
    if (stream != stream->capturing->origin) stream->capturing->unjoined.push_back(stream);
}
void capture(CUstream_st* stream, std::function<void()> work) { capture(stream, std::move(work), cudaGraphNodeTypeKernel); }
// Waiting for a capturing stream is an error and invalidates the capture.
static cudaError_t not_while_capturing(cudaStream_t stream) {
    if (!is_capturing(stream)) return cudaSuccess;
    capture_state().invalid = true;
    return finished(cudaErrorStreamCaptureUnsupported);
}

}  // namespace simulator

#define SIMULATOR_OF_STREAM(name, T, value)                                                    \
    cudaError_t name(cudaStream_t stream, T* result) {                                  \
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
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    SIMULATOR_NEED(stream && flags <= cudaStreamNonBlocking, cudaErrorInvalidValue);
    SIMULATOR_NEED(!simulator::is_host_alone(), cudaErrorNotSupported);  // they'd run in a fixed order
    *stream = new CUstream_st{flags, priority > 0 ? 0 : priority < -5 ? -5 : priority};
    return simulator::born(*stream, simulator::Handle::stream), cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    SIMULATOR_NEED(simulator::dies(stream, simulator::Handle::stream), cudaErrorInvalidResourceHandle);
    return delete stream, cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    SIMULATOR_NEED(simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    return simulator::not_while_capturing(stream);
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned flags) {
    SIMULATOR_NEED(function && !flags, cudaErrorInvalidValue);
    SIMULATOR_NEED(simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    if (const cudaError_t error = simulator::not_while_capturing(stream)) return error;
    return function(stream, cudaSuccess, data), cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    SIMULATOR_NEED(event && flags < 8 && !(flags & cudaEventInterprocess && !(flags & cudaEventDisableTiming)), cudaErrorInvalidValue);
    *event = new CUevent_st{flags};
    return simulator::born(*event, simulator::Handle::event), cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    SIMULATOR_NEED(simulator::dies(event, simulator::Handle::event), cudaErrorInvalidResourceHandle);
    return delete event, cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    SIMULATOR_NEED(simulator::is_alive(event, simulator::Handle::event), cudaErrorInvalidResourceHandle);
    SIMULATOR_NEED(!event->captured, cudaErrorCapturedEvent);
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    SIMULATOR_NEED(simulator::is_alive(event, simulator::Handle::event) && simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    SIMULATOR_NEED(flags <= 1, cudaErrorInvalidValue);
    event->captured = simulator::is_capturing(stream) ? stream : nullptr;
    if (event->captured)
        event->latest = stream->latest;
    else
        event->recorded = true;
    return clock_gettime(CLOCK_MONOTONIC, &event->time), cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
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
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
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
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    SIMULATOR_NEED(mode >= cudaStreamCaptureModeGlobal && mode <= cudaStreamCaptureModeRelaxed, cudaErrorInvalidValue);
    SIMULATOR_NEED(stream && stream != cudaStreamLegacy, cudaErrorStreamCaptureUnsupported);
    SIMULATOR_NEED(simulator::is_alive(stream, simulator::Handle::stream), cudaErrorInvalidResourceHandle);
    SIMULATOR_NEED(!stream->capturing, cudaErrorIllegalState);
    stream->capturing = new CUgraph_st{{}, stream, {stream}, {}};
    stream->latest.clear();
    simulator::capture_state() = {mode != cudaStreamCaptureModeRelaxed, !(stream->flags & cudaStreamNonBlocking), false};
    return simulator::born(stream->capturing, simulator::Handle::graph), cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
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
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    SIMULATOR_NEED(mode && *mode >= cudaStreamCaptureModeGlobal && *mode <= cudaStreamCaptureModeRelaxed, cudaErrorInvalidValue);
    static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
    std::swap(*mode, current);
    simulator::capture_state().forbids = current != cudaStreamCaptureModeRelaxed && simulator::capture_state().forbids;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
        cudaGraph_t* graph, const cudaGraphNode_t** needs,
        const cudaGraphEdgeData** edges, size_t* count) {
    if (const cudaError_t error = cudaStreamIsCapturing(stream, status)) return error;
    if (*status == cudaStreamCaptureStatusNone) return cudaSuccess;
    if (id) *id = reinterpret_cast<unsigned long long>(stream->capturing);
    if (graph) *graph = stream->capturing;
    if (needs) *needs = stream->latest.data();
    if (edges) *edges = nullptr;
    if (count) *count = stream->latest.size();
    return cudaSuccess;
}
