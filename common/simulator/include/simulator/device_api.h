// device_api.h - getters and setters for devices, pointers, memory pools and stream attributes; most settings have no
// effect here.
#pragma once
#include "graphs.h"

enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
struct cudaPointerAttributes {
    cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
};
enum cudaMemoryAdvise {
    cudaMemAdviseSetReadMostly = 1, cudaMemAdviseUnsetReadMostly, cudaMemAdviseSetPreferredLocation,
    cudaMemAdviseUnsetPreferredLocation, cudaMemAdviseSetAccessedBy, cudaMemAdviseUnsetAccessedBy
};
enum cudaMemLocationType {
    cudaMemLocationTypeInvalid, cudaMemLocationTypeNone = 0, cudaMemLocationTypeDevice, cudaMemLocationTypeHost,
    cudaMemLocationTypeHostNuma, cudaMemLocationTypeHostNumaCurrent
};
struct cudaMemLocation {
    cudaMemLocationType type;
    int id;
};
enum cudaLimit {
    cudaLimitStackSize, cudaLimitPrintfFifoSize, cudaLimitMallocHeapSize, cudaLimitDevRuntimeSyncDepth,
    cudaLimitDevRuntimePendingLaunchCount, cudaLimitMaxL2FetchGranularity, cudaLimitPersistingL2CacheSize
};
enum cudaSharedMemConfig { cudaSharedMemBankSizeDefault, cudaSharedMemBankSizeFourByte, cudaSharedMemBankSizeEightByte };
enum cudaMemPoolAttr {
    cudaMemPoolReuseFollowEventDependencies = 1, cudaMemPoolReuseAllowOpportunistic, cudaMemPoolReuseAllowInternalDependencies,
    cudaMemPoolAttrReleaseThreshold, cudaMemPoolAttrReservedMemCurrent, cudaMemPoolAttrReservedMemHigh,
    cudaMemPoolAttrUsedMemCurrent, cudaMemPoolAttrUsedMemHigh
};
struct CUmemPoolHandle_st;
using cudaMemPool_t = CUmemPoolHandle_st*;
enum cudaMemAllocationType { cudaMemAllocationTypeInvalid, cudaMemAllocationTypePinned, cudaMemAllocationTypeManaged };
enum cudaMemAllocationHandleType { cudaMemHandleTypeNone, cudaMemHandleTypePosixFileDescriptor };
enum cudaMemAccessFlags { cudaMemAccessFlagsProtNone = 0, cudaMemAccessFlagsProtRead = 1, cudaMemAccessFlagsProtReadWrite = 3 };
struct cudaMemAccessDesc {
    cudaMemLocation location;
    cudaMemAccessFlags flags;
};
struct cudaMemPoolProps {
    cudaMemAllocationType allocType;
    cudaMemAllocationHandleType handleTypes;
    cudaMemLocation location;
    void* win32SecurityAttributes;
    size_t maxSize;
    unsigned short usage;
    unsigned char reserved[54];
};
enum cudaDeviceP2PAttr { cudaDevP2PAttrPerformanceRank = 1, cudaDevP2PAttrAccessSupported, cudaDevP2PAttrNativeAtomicSupported, cudaDevP2PAttrCudaArrayAccessSupported };
enum cudaStreamAttrID { cudaStreamAttributeAccessPolicyWindow = 1, cudaStreamAttributeSynchronizationPolicy = 3, cudaStreamAttributePriority = 8 };
union cudaStreamAttrValue {
    cudaAccessPolicyWindow accessPolicyWindow;
    int priority, syncPolicy;
};
constexpr int cudaCpuDeviceId = -1, cudaInvalidDeviceId = -2;

inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
    SIMULATOR_NEED(attributes, cudaErrorInvalidValue);
    void* p = const_cast<void*>(address);
    switch (simulator::kind_of(address)) {
        case simulator::MemoryKind::device: *attributes = {cudaMemoryTypeDevice, 0, p, nullptr}; break;
        case simulator::MemoryKind::managed: *attributes = {cudaMemoryTypeManaged, 0, p, p}; break;
        case simulator::MemoryKind::host: *attributes = {cudaMemoryTypeHost, 0, p, p}; break;
        default: *attributes = {cudaMemoryTypeUnregistered, cudaInvalidDeviceId, nullptr, p};
    }
    return cudaSuccess;
}
template <typename T>
cudaError_t cudaHostGetDevicePointer(T** device, void* host, unsigned flags) {
    // memory that the simulator did not allocate, such as PyTorch's, is treated as pinned
    SIMULATOR_NEED(device && host && !flags && simulator::kind_of(host) != simulator::MemoryKind::device, cudaErrorInvalidValue);
    return *device = static_cast<T*>(host), cudaSuccess;
}
inline cudaError_t cudaHostGetFlags(unsigned* flags, void* host) {
    SIMULATOR_NEED(flags && simulator::kind_of(host) == simulator::MemoryKind::host, cudaErrorInvalidValue);
    return *flags = cudaHostAllocMapped, cudaSuccess;
}
inline cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned flags) {
    SIMULATOR_NEED(flags < 16, cudaErrorInvalidValue);
    return simulator::register_host(address, bytes);
}
inline cudaError_t cudaHostUnregister(void* address) {
    SIMULATOR_NEED(address, cudaErrorInvalidValue);
    return simulator::unregister_host(address);
}

namespace simulator {
inline bool is_place(int device) { return device == 0 || device == cudaCpuDeviceId; }
inline bool is_place(const cudaMemLocation& place) {
    return place.type == cudaMemLocationTypeDevice
               ? place.id == 0
               : place.type >= cudaMemLocationTypeHost && place.type <= cudaMemLocationTypeHostNumaCurrent;
}
inline cudaError_t of_managed(const void* address, size_t bytes, bool place_is_right, const char* what, Position at) {
    SIMULATOR_NEED(bytes && kind_of(address) == MemoryKind::managed, cudaErrorInvalidValue);
    SIMULATOR_NEED(place_is_right, cudaErrorInvalidDevice);
    return may_touch(address, bytes, what, at);
}
}  // namespace simulator
// The destination is a device number (up to CUDA 12) or a location (since CUDA 13). Nothing moves.
inline cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, cudaMemLocation place, unsigned flags = 0,
                                        cudaStream_t stream = nullptr, simulator::Position at = simulator::here()) {
    SIMULATOR_NEED(simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    SIMULATOR_NEED(!flags, cudaErrorInvalidValue);
    return simulator::of_managed(address, bytes, simulator::is_place(place), "are fetched from", at);
}
inline cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, int device, cudaStream_t stream = nullptr,
                                        simulator::Position at = simulator::here()) {
    SIMULATOR_NEED(simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    return simulator::of_managed(address, bytes, simulator::is_place(device), "are fetched from", at);
}
// Place: a device number or a location, as above.
template <typename Place = int>
cudaError_t cudaMemAdvise(const void* address, size_t bytes, cudaMemoryAdvise advice, Place place,
                          simulator::Position at = simulator::here()) {
    SIMULATOR_NEED(advice >= cudaMemAdviseSetReadMostly && advice <= cudaMemAdviseUnsetAccessedBy, cudaErrorInvalidValue);
    const bool counts = advice > cudaMemAdviseUnsetReadMostly && advice != cudaMemAdviseUnsetPreferredLocation;
    return simulator::of_managed(address, bytes, !counts || simulator::is_place(place), "are advised from", at);
}

// Only the heap size limit takes effect; the others are stored.
cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value);
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit);
inline cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
inline cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
template <typename F>
cudaError_t cudaFuncSetSharedMemConfig(F*, cudaSharedMemConfig) {
    return cudaSuccess;
}
#define SIMULATOR_ANSWER(name, T, value)               \
    inline cudaError_t name(T* answer) {               \
        SIMULATOR_NEED(answer, cudaErrorInvalidValue); \
        return *answer = value, cudaSuccess;           \
    }
SIMULATOR_ANSWER(cudaDeviceGetCacheConfig, cudaFuncCache, cudaFuncCachePreferNone)
SIMULATOR_ANSWER(cudaDeviceGetSharedMemConfig, cudaSharedMemConfig, cudaSharedMemBankSizeFourByte)
SIMULATOR_ANSWER(cudaGetDeviceFlags, unsigned, 0)
SIMULATOR_ANSWER(cudaDriverGetVersion, int, CUDART_VERSION)
SIMULATOR_ANSWER(cudaRuntimeGetVersion, int, CUDART_VERSION)
#undef SIMULATOR_ANSWER
inline cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
inline cudaError_t cudaInitDevice(int device, unsigned, unsigned) { return cudaSetDevice(device); }
inline cudaError_t cudaSetValidDevices(int* devices, int count) {
    for (int i = 0; i < count; ++i) SIMULATOR_NEED(devices[i] == 0, cudaErrorInvalidDevice);
    return cudaSuccess;
}
inline cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp*) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int) {
    return snprintf(text, static_cast<size_t>(length), "0000:00:00.0"), cudaSuccess;
}
inline cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* id) {
    SIMULATOR_NEED(device && id, cudaErrorInvalidValue);
    SIMULATOR_NEED(!strcmp(id, "0000:00:00.0"), cudaErrorInvalidDevice);
    return *device = 0, cudaSuccess;
}
inline cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    SIMULATOR_NEED(can, cudaErrorInvalidValue);
    SIMULATOR_NEED(!device && !peer, cudaErrorInvalidDevice);
    return *can = 0, cudaSuccess;
}
inline cudaError_t cudaDeviceGetP2PAttribute(int*, cudaDeviceP2PAttr, int, int) { return simulator::finished(cudaErrorInvalidDevice); }
inline cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return simulator::finished(cudaErrorInvalidDevice); }
inline cudaError_t cudaDeviceDisablePeerAccess(int) { return simulator::finished(cudaErrorPeerAccessNotEnabled); }
inline cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                       cudaStream_t stream = nullptr, simulator::Position at = simulator::here()) {
    SIMULATOR_NEED(!to_device && !from_device, cudaErrorInvalidDevice);
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream, at);
}
inline cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                  simulator::Position at = simulator::here()) {
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, nullptr, at);
}

// ---- memory pools: attributes are stored; the memory comes from cudaMalloc's allocator
struct CUmemPoolHandle_st {
    unsigned long long attributes[cudaMemPoolAttrUsedMemHigh + 1] = {0, 1, 1, 1};
};
namespace simulator {
inline CUmemPoolHandle_st default_pool;
inline cudaMemPool_t current_pool = &default_pool;
inline bool is_pool(const CUmemPoolHandle_st* pool) { return pool == &default_pool || is_alive(pool, Handle::pool); }
}  // namespace simulator
inline cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
    SIMULATOR_NEED(pool, cudaErrorInvalidValue);
    SIMULATOR_NEED(!device, cudaErrorInvalidDevice);
    return *pool = &simulator::default_pool, cudaSuccess;
}
inline cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
    const cudaError_t error = cudaDeviceGetDefaultMemPool(pool, device);
    if (!error) *pool = simulator::current_pool;
    return error;
}
inline cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
    SIMULATOR_NEED(!device, cudaErrorInvalidDevice);
    SIMULATOR_NEED(simulator::is_pool(pool), cudaErrorInvalidValue);
    return simulator::current_pool = pool, cudaSuccess;
}
inline cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* p) {
    SIMULATOR_NEED(pool && p && p->allocType != cudaMemAllocationTypeInvalid, cudaErrorInvalidValue);
    SIMULATOR_NEED(!p->handleTypes, cudaErrorNotSupported);
    *pool = new CUmemPoolHandle_st;
    return simulator::born(*pool, simulator::Handle::pool), cudaSuccess;
}
inline cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
    SIMULATOR_NEED(simulator::dies(pool, simulator::Handle::pool), cudaErrorInvalidValue);
    if (simulator::current_pool == pool) simulator::current_pool = &simulator::default_pool;
    return delete pool, cudaSuccess;
}
// Reserved memory equals used memory.
inline cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
    SIMULATOR_NEED(simulator::is_pool(pool) && value && attribute >= 1 && attribute <= cudaMemPoolAttrUsedMemHigh, cudaErrorInvalidValue);
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    if (attribute <= cudaMemPoolReuseAllowInternalDependencies)
        *static_cast<int*>(value) = static_cast<int>(pool->attributes[attribute]);
    else
        *static_cast<uint64_t*>(value) = attribute == cudaMemPoolAttrReleaseThreshold ? pool->attributes[attribute] : total - available;
    return cudaSuccess;
}
inline cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
    SIMULATOR_NEED(simulator::is_pool(pool) && value && attribute >= 1 && attribute <= cudaMemPoolAttrUsedMemHigh, cudaErrorInvalidValue);
    const bool is_int = attribute <= cudaMemPoolReuseAllowInternalDependencies;
    pool->attributes[attribute] = is_int ? static_cast<unsigned long long>(*static_cast<int*>(value)) : *static_cast<uint64_t*>(value);
    return cudaSuccess;
}
inline cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* all, size_t count) {
    SIMULATOR_NEED(simulator::is_pool(pool) && (all || !count), cudaErrorInvalidValue);
    for (size_t i = 0; i < count; ++i) SIMULATOR_NEED(simulator::is_place(all[i].location), cudaErrorInvalidDevice);
    return cudaSuccess;
}
inline cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t) {
    SIMULATOR_NEED(simulator::is_pool(pool), cudaErrorInvalidValue);
    return cudaSuccess;
}
template <typename T>
cudaError_t cudaMallocFromPoolAsync(T** address, size_t bytes, cudaMemPool_t pool, cudaStream_t stream,
                                    simulator::Position at = simulator::here()) {
    SIMULATOR_NEED(simulator::is_pool(pool), cudaErrorInvalidValue);
    return cudaMallocAsync(address, bytes, stream, at);
}
template <typename T>
cudaError_t cudaMallocAsync(T** address, size_t bytes, cudaMemPool_t pool, cudaStream_t stream,
                            simulator::Position at = simulator::here()) {
    return cudaMallocFromPoolAsync(address, bytes, pool, stream, at);
}

// ---- attributes of streams: caches are not modeled
inline cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaStreamAttrID, const cudaStreamAttrValue* value) {
    SIMULATOR_NEED(simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    SIMULATOR_NEED(value, cudaErrorInvalidValue);
    return cudaSuccess;
}
inline cudaError_t cudaStreamGetAttribute(cudaStream_t stream, cudaStreamAttrID, cudaStreamAttrValue* value) {
    SIMULATOR_NEED(simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    SIMULATOR_NEED(value, cudaErrorInvalidValue);
    return *value = {}, cudaSuccess;
}
inline cudaError_t cudaStreamCopyAttributes(cudaStream_t to, cudaStream_t from) {
    SIMULATOR_NEED(simulator::is_stream(to) && simulator::is_stream(from), cudaErrorInvalidResourceHandle);
    return cudaSuccess;
}
inline cudaError_t cudaCtxResetPersistingL2Cache() { return cudaSuccess; }
inline cudaError_t cudaProfilerStart() { return cudaSuccess; }
inline cudaError_t cudaProfilerStop() { return cudaSuccess; }
