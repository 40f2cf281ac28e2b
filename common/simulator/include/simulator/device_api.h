// device_api.h - what programs ask of devices, pointers and pools, and what they tell them; most of it changes nothing
// here.
#pragma once
#include "host_api.h"

enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
struct cudaPointerAttributes {
    cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
};
enum cudaMemoryAdvise {
    cudaMemAdviseSetReadMostly = 1,
    cudaMemAdviseUnsetReadMostly,
    cudaMemAdviseSetPreferredLocation,
    cudaMemAdviseUnsetPreferredLocation,
    cudaMemAdviseSetAccessedBy,
    cudaMemAdviseUnsetAccessedBy
};
enum cudaMemLocationType { cudaMemLocationTypeInvalid, cudaMemLocationTypeDevice, cudaMemLocationTypeHost };
struct cudaMemLocation {
    cudaMemLocationType type;
    int id;
};
enum cudaLimit {
    cudaLimitStackSize,
    cudaLimitPrintfFifoSize,
    cudaLimitMallocHeapSize,
    cudaLimitDevRuntimeSyncDepth,
    cudaLimitDevRuntimePendingLaunchCount,
    cudaLimitMaxL2FetchGranularity,
    cudaLimitPersistingL2CacheSize
};
enum cudaSharedMemConfig { cudaSharedMemBankSizeDefault, cudaSharedMemBankSizeFourByte, cudaSharedMemBankSizeEightByte };
struct CUmemPoolHandle_st;
using cudaMemPool_t = CUmemPoolHandle_st*;
enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold = 4 };
constexpr int cudaCpuDeviceId = -1, cudaInvalidDeviceId = -2;

inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
    void* p = const_cast<void*>(address);
    switch (simulator::kind_of(address)) {
        case simulator::MemoryKind::device: *attributes = {cudaMemoryTypeDevice, 0, p, nullptr}; break;
        case simulator::MemoryKind::managed: *attributes = {cudaMemoryTypeManaged, 0, p, p}; break;
        case simulator::MemoryKind::host: *attributes = {cudaMemoryTypeHost, 0, p, p}; break;
        default: *attributes = {cudaMemoryTypeUnregistered, cudaInvalidDeviceId, nullptr, p};
    }
    return cudaSuccess;
}
inline cudaError_t cudaHostGetDevicePointer(void* device, void* host, unsigned) {
    return *static_cast<void**>(device) = host, cudaSuccess;
}
inline cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) { return simulator::register_host(address, bytes); }
inline cudaError_t cudaHostUnregister(void* address) { return simulator::unregister_host(address); }

template <typename Place>
cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, Place, unsigned = 0, cudaStream_t = nullptr) {
    return simulator::may_touch(address, bytes, "are fetched from", {"cudaMemPrefetchAsync", 0});
}
template <typename Place>
cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, Place place, cudaStream_t) {
    return cudaMemPrefetchAsync(address, bytes, place);
}
template <typename Place>
cudaError_t cudaMemAdvise(const void* address, size_t bytes, cudaMemoryAdvise, Place) {
    return simulator::may_touch(address, bytes, "are advised from", {"cudaMemAdvise", 0});
}

// The heap's counts; the others are remembered.
cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value);
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit);
inline cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
inline cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
template <typename F>
cudaError_t cudaFuncSetSharedMemConfig(F*, cudaSharedMemConfig) {
    return cudaSuccess;
}
inline cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceFlags(unsigned* flags) { return *flags = 0, cudaSuccess; }
inline cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
inline cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
inline cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp*) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int) {
    return snprintf(text, static_cast<size_t>(length), "0000:00:00.0"), cudaSuccess;
}
inline cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
inline cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return simulator::finished(cudaErrorInvalidDevice); }
inline cudaError_t cudaDeviceDisablePeerAccess(int) { return simulator::finished(cudaErrorPeerAccessNotEnabled); }
inline cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes,
                                  simulator::Position at = simulator::here()) {
    return simulator::copy(to, from, bytes, cudaMemcpyDeviceToDevice, at);
}
inline cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) { return *pool = nullptr, cudaSuccess; }
inline cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
inline cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
inline cudaError_t cudaProfilerStart() { return cudaSuccess; }
inline cudaError_t cudaProfilerStop() { return cudaSuccess; }
