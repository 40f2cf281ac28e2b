// host_api.h - the part of the CUDA runtime API that host code uses. Device memory is host memory, every call
// is done when it returns, streams and events only exist so that code compiles (an event does take the time).
//
// What needs state (errors, attributes of kernels) is in runtime/host_api.cpp.
#pragma once
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <utility>

#include "language.h"

// ---- types and constants
#define SIMULATOR_ERRORS(X)                                                          \
    X(cudaSuccess, 0, "no error")                                                    \
    X(cudaErrorInvalidValue, 1, "invalid argument")                                  \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                                 \
    X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")            \
    X(cudaErrorInvalidSymbol, 13, "invalid device symbol")                           \
    X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")      \
    X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                 \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                         \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                \
    X(cudaErrorNotReady, 600, "device not ready")                                    \
    X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")      \
    X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch") \
    X(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated")        \
    X(cudaErrorAssert, 710, "device-side assert triggered")                          \
    X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                     \
    X(cudaErrorNotSupported, 801, "operation not supported")                         \
    X(cudaErrorUnknown, 999, "unknown error")
#define SIMULATOR_ERROR_CODE(name, code, text) name = code,
enum cudaError { SIMULATOR_ERRORS(SIMULATOR_ERROR_CODE) };
#undef SIMULATOR_ERROR_CODE
using cudaError_t = cudaError;

struct CUstream_st;
struct CUevent_st {
    timespec time;
};
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum cudaFuncCache {
    cudaFuncCachePreferNone,
    cudaFuncCachePreferShared,
    cudaFuncCachePreferL1,
    cudaFuncCachePreferEqual
};
enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrMaxRegistersPerBlock = 12,
    cudaDevAttrClockRate = 13,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrCooperativeLaunch = 95,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
enum {
    cudaStreamDefault = 0,
    cudaStreamNonBlocking = 1,
    cudaEventDefault = 0,
    cudaEventBlockingSync = 1,
    cudaEventDisableTiming = 2,
    cudaHostAllocDefault = 0,
    cudaMemAttachGlobal = 1
};
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor,
        totalConstMem;
    int regsPerBlock, regsPerMultiprocessor, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
    int multiProcessorCount, maxThreadsPerMultiProcessor, maxBlocksPerMultiProcessor, l2CacheSize;
    int major, minor, clockRate, memoryClockRate, memoryBusWidth;
};
struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes,
        localSizeBytes;  // sharedSizeBytes is known after the kernel's first run
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, maxDynamicSharedSizeBytes;
};

// ---- errors, devices, kernels (runtime/host_api.cpp)
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);

namespace simulator {
cudaError_t set_attribute(const void* kernel, cudaFuncAttribute attribute, int value);
cudaError_t get_attributes(cudaFuncAttributes* attributes, const void* kernel);
cudaError_t occupancy(int* blocks, const void* kernel, int block_size, size_t dynamic_bytes);
enum class MemoryKind { device, managed, host, unknown };
cudaError_t allocate(void** address, size_t bytes, MemoryKind kind, Position at);
cudaError_t release(void* address, Position at);
MemoryKind kind_of(const void* address);
cudaError_t memory_info(size_t* available, size_t* total);
// Whether the bytes lie within what was allocated, and where the copy's kind says; if not, cudaErrorInvalidValue.
cudaError_t may_copy(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Position at);
cudaError_t may_touch(const void* address, size_t bytes, const char* what, Position at);
cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Position at);
cudaError_t fill(void* address, int value, size_t bytes, Position at);
void written_by_host(const void* address, size_t bytes);
cudaError_t finished(cudaError_t error);  // remembers an error for cudaGetLastError() and returns it
}  // namespace simulator

template <typename F>
cudaError_t cudaFuncSetAttribute(F* kernel, cudaFuncAttribute attribute, int value) {
    return simulator::set_attribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <typename F>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, F* kernel) {
    return simulator::get_attributes(attributes, reinterpret_cast<const void*>(kernel));
}
template <typename F>
cudaError_t cudaFuncSetCacheConfig(F*, cudaFuncCache) {
    return cudaSuccess;
}
template <typename F>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, F* kernel, int block_size,
                                                          size_t bytes) {
    return simulator::occupancy(blocks, reinterpret_cast<const void*>(kernel), block_size, bytes);
}
// Only with a typed kernel: from a void* nobody could tell the sizes of its arguments.
template <typename... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             size_t dynamic_bytes = 0, cudaStream_t = nullptr) {
    auto one_thread = [=] {
        [=]<size_t... I>(std::index_sequence<I...>) { kernel(*static_cast<Parameters*>(arguments[I])...); }
        (std::index_sequence_for<Parameters...>());
    };
    simulator::launch({"kernel of cudaLaunchKernel", simulator::here(), reinterpret_cast<const void*>(kernel),
                       [](void* data) { (*static_cast<decltype(one_thread)*>(data))(); }, &one_thread},
                      grid, block, dynamic_bytes);
    return cudaPeekAtLastError();
}

// ---- memory
template <typename T>
cudaError_t cudaMalloc(T** address, size_t bytes, simulator::Position at = simulator::here()) {
    return simulator::allocate(reinterpret_cast<void**>(address), bytes, simulator::MemoryKind::device, at);
}
template <typename T>
cudaError_t cudaMallocAsync(T** address, size_t bytes, cudaStream_t, simulator::Position at = simulator::here()) {
    return cudaMalloc(address, bytes, at);
}
template <typename T>
cudaError_t cudaMallocManaged(T** address, size_t bytes, unsigned = cudaMemAttachGlobal,
                              simulator::Position at = simulator::here()) {
    return simulator::allocate(reinterpret_cast<void**>(address), bytes, simulator::MemoryKind::managed, at);
}
template <typename T>
cudaError_t cudaMallocHost(T** address, size_t bytes, unsigned = 0, simulator::Position at = simulator::here()) {
    return simulator::allocate(reinterpret_cast<void**>(address), bytes, simulator::MemoryKind::host, at);
}
template <typename T>
cudaError_t cudaHostAlloc(T** address, size_t bytes, unsigned, simulator::Position at = simulator::here()) {
    return cudaMallocHost(address, bytes, 0, at);
}
inline cudaError_t cudaFree(void* address, simulator::Position at = simulator::here()) {
    return simulator::release(address, at);
}
inline cudaError_t cudaFreeAsync(void* address, cudaStream_t, simulator::Position at = simulator::here()) {
    return cudaFree(address, at);
}
inline cudaError_t cudaFreeHost(void* address, simulator::Position at = simulator::here()) {
    return cudaFree(address, at);
}

inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                              simulator::Position at = simulator::here()) {
    return simulator::copy(to, from, bytes, kind, at);
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t = nullptr, simulator::Position at = simulator::here()) {
    return simulator::copy(to, from, bytes, kind, at);
}
inline cudaError_t cudaMemset(void* address, int value, size_t bytes, simulator::Position at = simulator::here()) {
    return simulator::fill(address, value, bytes, at);
}
inline cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t = nullptr,
                                   simulator::Position at = simulator::here()) {
    return simulator::fill(address, value, bytes, at);
}
template <typename T>
cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, size_t bytes, size_t offset = 0,
                               cudaMemcpyKind = cudaMemcpyHostToDevice) {
    if (offset + bytes > sizeof(T)) return simulator::finished(cudaErrorInvalidValue);
    return memcpy((char*)&symbol + offset, from, bytes), cudaSuccess;
}
template <typename T>
cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, size_t bytes, size_t offset = 0,
                                 cudaMemcpyKind = cudaMemcpyDeviceToHost) {
    if (offset + bytes > sizeof(T)) return simulator::finished(cudaErrorInvalidValue);
    return memcpy(to, (const char*)&symbol + offset, bytes), cudaSuccess;
}
template <typename P, typename T>
cudaError_t cudaGetSymbolAddress(P** address, T& symbol) {
    return *address = (P*)&symbol, cudaSuccess;
}
inline cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
    return simulator::memory_info(available, total);
}

// ---- streams and events
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaDeviceReset() { return cudaSuccess; }
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) { return *stream = nullptr, cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    return cudaStreamCreate(stream);
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0) { return cudaSuccess; }
inline cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new CUevent_st(), cudaSuccess; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t = nullptr) {
    return clock_gettime(CLOCK_MONOTONIC, &event->time), cudaSuccess;
}
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    *milliseconds = static_cast<float>((to->time.tv_sec - from->time.tv_sec) * 1e3 +
                                       (to->time.tv_nsec - from->time.tv_nsec) * 1e-6);
    return cudaSuccess;
}
