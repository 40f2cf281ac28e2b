// host_api.h - the CUDA runtime API: types, errors, devices, memory. Every call is synchronous.
//
// launch_api.h, streams.h, pitched_memory.h and device_api.h hold the rest; functions with state are in
// runtime/host_api.cpp and memory.cpp.
#pragma once
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "errors.h"
#include "language.h"

// ---- types and constants
// Samples test these with #ifdef.
#define __DRIVER_TYPES_H__
#define __CUDA_RUNTIME_H__
#define __CUDA_RUNTIME_API_H__
#define CUDART_VERSION 13000
#define CUDART_CB
#define CUDARTAPI
#define SIMULATOR_ERROR_CODE(name, code, text) name = code,
enum cudaError { SIMULATOR_ERRORS(SIMULATOR_ERROR_CODE) };
#undef SIMULATOR_ERROR_CODE
using cudaError_t = cudaError;

struct CUgraph_st;
struct CUstream_st;
struct CUevent_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9,
    cudaFuncAttributeClusterDimMustBeSet = 10, cudaFuncAttributeRequiredClusterWidth,
    cudaFuncAttributeRequiredClusterHeight, cudaFuncAttributeRequiredClusterDepth,
    cudaFuncAttributeNonPortableClusterSizeAllowed
};
enum cudaSharedCarveout {
    cudaSharedmemCarveoutDefault = -1, cudaSharedmemCarveoutMaxL1 = 0, cudaSharedmemCarveoutMaxShared = 100
};
enum cudaFuncCache {
    cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1, cudaFuncCachePreferEqual
};
// name, number, value on the simulated device (p: its cudaDeviceProp)
#define SIMULATOR_ATTRIBUTES(X)                                                        \
    X(cudaDevAttrMaxThreadsPerBlock, 1, p.maxThreadsPerBlock)                          \
    X(cudaDevAttrMaxBlockDimX, 2, p.maxThreadsDim[0])                                  \
    X(cudaDevAttrMaxBlockDimY, 3, p.maxThreadsDim[1])                                  \
    X(cudaDevAttrMaxBlockDimZ, 4, p.maxThreadsDim[2])                                  \
    X(cudaDevAttrMaxGridDimX, 5, p.maxGridSize[0])                                     \
    X(cudaDevAttrMaxGridDimY, 6, p.maxGridSize[1])                                     \
    X(cudaDevAttrMaxGridDimZ, 7, p.maxGridSize[2])                                     \
    X(cudaDevAttrMaxSharedMemoryPerBlock, 8, p.sharedMemPerBlock)                      \
    X(cudaDevAttrTotalConstantMemory, 9, p.totalConstMem)                              \
    X(cudaDevAttrWarpSize, 10, p.warpSize)                                             \
    X(cudaDevAttrMaxPitch, 11, p.memPitch)                                             \
    X(cudaDevAttrMaxRegistersPerBlock, 12, p.regsPerBlock)                             \
    X(cudaDevAttrClockRate, 13, p.clockRate)                                           \
    X(cudaDevAttrTextureAlignment, 14, p.textureAlignment)                             \
    X(cudaDevAttrGpuOverlap, 15, 1)                                                    \
    X(cudaDevAttrMultiProcessorCount, 16, p.multiProcessorCount)                       \
    X(cudaDevAttrKernelExecTimeout, 17, 0)                                             \
    X(cudaDevAttrIntegrated, 18, p.integrated)                                         \
    X(cudaDevAttrCanMapHostMemory, 19, p.canMapHostMemory)                             \
    X(cudaDevAttrComputeMode, 20, p.computeMode)                                       \
    X(cudaDevAttrConcurrentKernels, 31, p.concurrentKernels)                           \
    X(cudaDevAttrEccEnabled, 32, p.ECCEnabled)                                         \
    X(cudaDevAttrPciBusId, 33, p.pciBusID)                                             \
    X(cudaDevAttrPciDeviceId, 34, p.pciDeviceID)                                       \
    X(cudaDevAttrMemoryClockRate, 36, p.memoryClockRate)                               \
    X(cudaDevAttrGlobalMemoryBusWidth, 37, p.memoryBusWidth)                           \
    X(cudaDevAttrL2CacheSize, 38, p.l2CacheSize)                                       \
    X(cudaDevAttrMaxThreadsPerMultiProcessor, 39, p.maxThreadsPerMultiProcessor)       \
    X(cudaDevAttrAsyncEngineCount, 40, p.asyncEngineCount)                             \
    X(cudaDevAttrUnifiedAddressing, 41, p.unifiedAddressing)                           \
    X(cudaDevAttrComputeCapabilityMajor, 75, p.major)                                  \
    X(cudaDevAttrComputeCapabilityMinor, 76, p.minor)                                  \
    X(cudaDevAttrStreamPrioritiesSupported, 78, p.streamPrioritiesSupported)           \
    X(cudaDevAttrMaxSharedMemoryPerMultiprocessor, 81, p.sharedMemPerMultiprocessor)   \
    X(cudaDevAttrMaxRegistersPerMultiprocessor, 82, p.regsPerMultiprocessor)           \
    X(cudaDevAttrManagedMemory, 83, p.managedMemory)                                   \
    X(cudaDevAttrPageableMemoryAccess, 88, p.pageableMemoryAccess)                     \
    X(cudaDevAttrConcurrentManagedAccess, 89, p.concurrentManagedAccess)               \
    X(cudaDevAttrCooperativeLaunch, 95, p.cooperativeLaunch)                           \
    X(cudaDevAttrMaxSharedMemoryPerBlockOptin, 97, p.sharedMemPerBlockOptin)           \
    X(cudaDevAttrClusterLaunch, 120, p.major >= 9)                                     \
    X(cudaDevAttrMaxBlocksPerMultiprocessor, 106, p.maxBlocksPerMultiProcessor)        \
    X(cudaDevAttrReservedSharedMemoryPerBlock, 111, p.reservedSharedMemPerBlock)       \
    X(cudaDevAttrMemoryPoolsSupported, 115, 1)
#define SIMULATOR_ATTRIBUTE_NUMBER(name, number, value) name = number,
enum cudaDeviceAttr { SIMULATOR_ATTRIBUTES(SIMULATOR_ATTRIBUTE_NUMBER) };
#undef SIMULATOR_ATTRIBUTE_NUMBER
enum cudaComputeMode { cudaComputeModeDefault, cudaComputeModeExclusive, cudaComputeModeProhibited, cudaComputeModeExclusiveProcess };
enum {
    cudaStreamDefault = 0, cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventBlockingSync = 1,
    cudaEventDisableTiming = 2, cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2,
    cudaHostAllocWriteCombined = 4, cudaHostRegisterDefault = 0, cudaHostRegisterPortable = 1,
    cudaHostRegisterMapped = 2, cudaHostRegisterIoMemory = 4, cudaHostRegisterReadOnly = 8, cudaEventRecordDefault = 0,
    cudaEventRecordExternal = 1, cudaEventWaitDefault = 0, cudaEventWaitExternal = 1, cudaEventInterprocess = 4,
    cudaOccupancyDefault = 0, cudaDeviceScheduleAuto = 0, cudaDeviceScheduleSpin = 1, cudaDeviceScheduleYield = 2,
    cudaDeviceScheduleBlockingSync = 4, cudaDeviceBlockingSync = 4, cudaDeviceMapHost = 8, cudaMemAttachHost = 2,
    cudaMemAttachSingle = 4, cudaMemAttachGlobal = 1
};
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor,
        totalConstMem;
    int regsPerBlock, regsPerMultiprocessor, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
    int multiProcessorCount, maxThreadsPerMultiProcessor, maxBlocksPerMultiProcessor, l2CacheSize;
    int major, minor, clockRate, memoryClockRate, memoryBusWidth;
    size_t memPitch, textureAlignment, texturePitchAlignment, surfaceAlignment, reservedSharedMemPerBlock;
    int integrated, canMapHostMemory, computeMode, concurrentKernels, ECCEnabled, tccDriver, asyncEngineCount, deviceOverlap;
    int unifiedAddressing, managedMemory, concurrentManagedAccess, pageableMemoryAccess, hostNativeAtomicSupported;
    int streamPrioritiesSupported, globalL1CacheSupported, localL1CacheSupported, cooperativeLaunch, isMultiGpuBoard;
    int directManagedMemAccessFromHost, kernelExecTimeoutEnabled, singleToDoublePrecisionPerfRatio;
    int persistingL2CacheMaxSize, accessPolicyMaxWindowSize, clusterLaunch;
    int pciBusID, pciDeviceID, pciDomainID;
    int maxTexture1D, maxTexture2D[2], maxTexture3D[3], maxTexture1DLayered[2], maxTexture2DLayered[3];
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
cudaError_t register_host(void* address, size_t bytes);
cudaError_t unregister_host(void* address);
cudaError_t memory_info(size_t* available, size_t* total);
// cudaErrorInvalidValue unless the bytes are within an allocation and on the side that the copy's kind names.
cudaError_t may_copy(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Position at);
cudaError_t may_touch(const void* address, size_t bytes, const char* what, Position at);
cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Position at);
cudaError_t copy_symbol(void* to, const void* from, size_t bytes);
cudaError_t fill(void* address, int value, size_t bytes, Position at);
void written_by_host(const void* address, size_t bytes);
size_t heap_limit();
cudaError_t set_heap_limit(size_t bytes);
// Live handles. An address alone proves nothing: its handle may have been destroyed.
enum class Handle { stream, event, graph, graph_exec, pool };
void born(const void* handle, Handle kind);
bool is_alive(const void* handle, Handle kind);
bool dies(const void* handle, Handle kind);  // false: not alive
// The stream capture that this host thread has begun.
struct CaptureState {
    bool forbids = false;    // forbids calls that might wait or allocate
    bool blocking = false;   // the stream synchronizes with the legacy stream
    bool invalid = false;
};
CaptureState& capture_state();
cudaError_t capture_forbids(cudaError_t error);  // if so, invalidates the capture and returns `error`
cudaError_t capture_forbids_legacy();
cudaError_t finished(cudaError_t error);  // remembers an error for cudaGetLastError() and returns it
}  // namespace simulator

// ---- memory
template <typename T>
cudaError_t cudaMalloc(T** address, size_t bytes, simulator::Position at = simulator::here()) {
    if (!address) return simulator::finished(cudaErrorInvalidValue);
    if (const cudaError_t error = simulator::capture_forbids(cudaErrorStreamCaptureUnsupported)) return error;
    return simulator::allocate(reinterpret_cast<void**>(address), bytes, simulator::MemoryKind::device, at);
}
template <typename T>
cudaError_t cudaMallocAsync(T** address, size_t bytes, cudaStream_t, simulator::Position at = simulator::here()) {
    if (!address) return simulator::finished(cudaErrorInvalidValue);
    return simulator::allocate(reinterpret_cast<void**>(address), bytes, simulator::MemoryKind::device, at);
}
template <typename T>
cudaError_t cudaMallocManaged(T** address, size_t bytes, unsigned flags = cudaMemAttachGlobal,
                              simulator::Position at = simulator::here()) {
    if (!address || (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost))
        return simulator::finished(cudaErrorInvalidValue);
    return simulator::allocate(reinterpret_cast<void**>(address), bytes, simulator::MemoryKind::managed, at);
}
template <typename T>
cudaError_t cudaMallocHost(T** address, size_t bytes, unsigned flags = 0, simulator::Position at = simulator::here()) {
    if (!address || flags > 7) return simulator::finished(cudaErrorInvalidValue);
    return simulator::allocate(reinterpret_cast<void**>(address), bytes, simulator::MemoryKind::host, at);
}
template <typename T>
cudaError_t cudaHostAlloc(T** address, size_t bytes, unsigned flags, simulator::Position at = simulator::here()) {
    return cudaMallocHost(address, bytes, flags, at);
}
inline cudaError_t cudaFree(void* address, simulator::Position at = simulator::here()) {
    return simulator::release(address, at);
}
inline cudaError_t cudaFreeAsync(void* address, cudaStream_t, simulator::Position at = simulator::here()) {
    return cudaFree(address, at);
}
inline cudaError_t cudaFreeHost(void* address, simulator::Position at = simulator::here()) {
    const simulator::MemoryKind kind = simulator::kind_of(address);
    if (address && (kind == simulator::MemoryKind::device || kind == simulator::MemoryKind::managed))
        return simulator::finished(cudaErrorInvalidValue);
    return simulator::release(address, at);
}

inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                              simulator::Position at = simulator::here()) {
    if (const cudaError_t error = simulator::capture_forbids_legacy()) return error;
    return simulator::copy(to, from, bytes, kind, at);
}
inline cudaError_t cudaMemset(void* address, int value, size_t bytes, simulator::Position at = simulator::here()) {
    if (const cudaError_t error = simulator::capture_forbids_legacy()) return error;
    return simulator::fill(address, value, bytes, at);
}
template <typename T>
cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, size_t bytes, size_t offset = 0,
                               cudaMemcpyKind kind = cudaMemcpyHostToDevice) {
    if (kind != cudaMemcpyHostToDevice && kind != cudaMemcpyDeviceToDevice && kind != cudaMemcpyDefault)
        return simulator::finished(cudaErrorInvalidMemcpyDirection);
    if (offset + bytes > sizeof(T)) return simulator::finished(cudaErrorInvalidValue);
    return simulator::copy_symbol((char*)&symbol + offset, from, bytes);
}
template <typename T>
cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, size_t bytes, size_t offset = 0,
                                 cudaMemcpyKind kind = cudaMemcpyDeviceToHost) {
    if (kind != cudaMemcpyDeviceToHost && kind != cudaMemcpyDeviceToDevice && kind != cudaMemcpyDefault)
        return simulator::finished(cudaErrorInvalidMemcpyDirection);
    if (offset + bytes > sizeof(T)) return simulator::finished(cudaErrorInvalidValue);
    return simulator::copy_symbol(to, (const char*)&symbol + offset, bytes);
}
template <typename T>
cudaError_t cudaGetSymbolSize(size_t* size, const T&) {
    return *size = sizeof(T), cudaSuccess;
}
template <typename P, typename T>
cudaError_t cudaGetSymbolAddress(P** address, T& symbol) {
    return *address = (P*)&symbol, cudaSuccess;
}
inline cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
    return simulator::memory_info(available, total);
}
