// streams.h - streams and events. Work submitted to a stream runs at once, unless the stream is being captured: then it
// becomes a node of the graph (graphs.h) and runs when that is launched.
//
// Errors are those that the runtime API documents (runtime/streams.cpp): handles that were never created or have been
// destroyed, invalid flags, calls that a stream capture forbids.
#pragma once
#include <functional>

#include "host_api.h"

enum cudaGraphNodeType {
    cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy, cudaGraphNodeTypeMemset, cudaGraphNodeTypeHost, cudaGraphNodeTypeGraph,
    cudaGraphNodeTypeEmpty, cudaGraphNodeTypeWaitEvent, cudaGraphNodeTypeEventRecord
};
struct CUgraphNode_st;
using cudaGraph_t = CUgraph_st*;
using cudaGraphNode_t = CUgraphNode_st*;
using cudaHostFn_t = void (*)(void* data);
using cudaStreamCallback_t = void (*)(cudaStream_t stream, cudaError_t status, void* data);
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive, cudaStreamCaptureStatusInvalidated };
#define cudaStreamLegacy ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)
#define SIMULATOR_NEED(condition, error) \
    if (!(condition)) return simulator::finished(error)

namespace simulator {

bool is_stream(const CUstream_st* stream);  // true for the default streams, too
bool is_capturing(const CUstream_st* stream);
void capture(CUstream_st* stream, std::function<void()> work, cudaGraphNodeType type);
template <typename Work>
cudaError_t in_stream(cudaStream_t stream, Work work, cudaGraphNodeType type = cudaGraphNodeTypeKernel) {
    SIMULATOR_NEED(is_stream(stream), cudaErrorInvalidResourceHandle);
    if (!is_capturing(stream)) return work();
    capture(stream, [work] { work(); }, type);
    return cudaSuccess;
}

}  // namespace simulator

// ---- streams
inline cudaError_t cudaDeviceSynchronize() { return simulator::capture_forbids(cudaErrorStreamCaptureUnsupported); }
inline cudaError_t cudaDeviceReset() { return cudaSuccess; }
inline cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority);
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags);
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device);
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
inline cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
inline cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void* address, size_t = 0,
                                            unsigned flags = cudaMemAttachSingle) {
    SIMULATOR_NEED(simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    SIMULATOR_NEED(address && (flags == cudaMemAttachGlobal || flags == cudaMemAttachHost || flags == cudaMemAttachSingle), cudaErrorInvalidValue);
    return cudaSuccess;
}
inline cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    SIMULATOR_NEED(function, cudaErrorInvalidValue);
    return simulator::in_stream(stream, [=] { return function(data), cudaSuccess; }, cudaGraphNodeTypeHost);
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned flags);

// Cache policies and priorities are stored but have no effect.
enum cudaAccessProperty { cudaAccessPropertyNormal, cudaAccessPropertyStreaming, cudaAccessPropertyPersisting };
struct cudaAccessPolicyWindow {
    void* base_ptr;
    size_t num_bytes;
    float hitRatio;
    cudaAccessProperty hitProp, missProp;
};

// ---- copies in streams
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream = nullptr, simulator::Position at = simulator::here()) {
    return simulator::in_stream(stream, [=] { return simulator::copy(to, from, bytes, kind, at); }, cudaGraphNodeTypeMemcpy);
}
inline cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream = nullptr,
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
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
inline cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned flags = cudaEventDefault) {
    return cudaEventCreateWithFlags(event, flags);
}
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
inline cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream = nullptr, unsigned flags = 0);
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr) { return cudaEventRecordWithFlags(event, stream); }
// A stream that waits for an event recorded in a capture joins that capture.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to);

// ---- capture
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
struct cudaGraphEdgeData {
    unsigned char from_port, to_port, type, reserved[5];
};
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id = nullptr,
                                            cudaGraph_t* graph = nullptr, const cudaGraphNode_t** needs = nullptr,
                                            const cudaGraphEdgeData** edges = nullptr, size_t* count = nullptr);
