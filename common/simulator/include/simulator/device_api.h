// device_api.h - what programs ask of devices, pointers and pools, and what they tell them; most of it changes nothing
// here.
#pragma once
#include "graphs.h"

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
enum cudaMemLocationType {
    cudaMemLocationTypeInvalid,
    cudaMemLocationTypeNone = 0,
    cudaMemLocationTypeDevice,
    cudaMemLocationTypeHost,
    cudaMemLocationTypeHostNuma,
    cudaMemLocationTypeHostNumaCurrent
};
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

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address);
template <typename T>
cudaError_t cudaHostGetDevicePointer(T** device, void* host, unsigned flags) {
    // memory that the simulator did not give out, such as PyTorch's, passes for pinned memory
    SIMULATOR_NEED(device && host && !flags && simulator::kind_of(host) != simulator::MemoryKind::device, cudaErrorInvalidValue);
    return *device = static_cast<T*>(host), cudaSuccess;
}
cudaError_t cudaHostGetFlags(unsigned* flags, void* host);
cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* address);

// Where managed memory is, is said by a number (until CUDA 12) or a location (since). Nothing moves.
cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, cudaMemLocation place, unsigned flags = 0,
                                        cudaStream_t stream = nullptr, simulator::Position at = simulator::here());
cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, int device, cudaStream_t stream = nullptr,
                                        simulator::Position at = simulator::here());
cudaError_t cudaMemAdvise(const void* address, size_t bytes, cudaMemoryAdvise advice, int device,
                          simulator::Position at = simulator::here());
cudaError_t cudaMemAdvise(const void* address, size_t bytes, cudaMemoryAdvise advice, cudaMemLocation place,
                          simulator::Position at = simulator::here());

// The heap's counts; the others are remembered.
cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value);
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit);
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache);
cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig);
template <typename F>
cudaError_t cudaFuncSetSharedMemConfig(F*, cudaSharedMemConfig) {
    return cudaSuccess;
}
cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config);
cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig* config);
cudaError_t cudaGetDeviceFlags(unsigned* flags);
cudaError_t cudaSetDeviceFlags(unsigned);
cudaError_t cudaInitDevice(int device, unsigned, unsigned);
cudaError_t cudaSetValidDevices(int* devices, int count);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp*);
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int);
cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* id);
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer);
cudaError_t cudaDeviceGetP2PAttribute(int*, cudaDeviceP2PAttr, int, int);
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned);
cudaError_t cudaDeviceDisablePeerAccess(int);
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                       cudaStream_t stream = nullptr, simulator::Position at = simulator::here());
cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                  simulator::Position at = simulator::here());

// ---- memory pools: attributes are kept, memory comes from where cudaMalloc takes it
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device);
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device);
cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool);
cudaError_t cudaMemGetDefaultMemPool(cudaMemPool_t* pool, cudaMemLocation* place, cudaMemAllocationType);
cudaError_t cudaMemGetMemPool(cudaMemPool_t* pool, cudaMemLocation* place, cudaMemAllocationType);
cudaError_t cudaMemSetMemPool(cudaMemLocation* place, cudaMemAllocationType, cudaMemPool_t pool);
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* p);
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool);
// What is reserved is what is in use.
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* all, size_t count);
cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t pool, cudaMemLocation* place);
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t);
namespace simulator {
bool is_pool(const CUmemPoolHandle_st* pool);
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

// ---- attributes of streams: caches are not modelled
cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaStreamAttrID, const cudaStreamAttrValue* value);
cudaError_t cudaStreamGetAttribute(cudaStream_t stream, cudaStreamAttrID, cudaStreamAttrValue* value);
cudaError_t cudaStreamCopyAttributes(cudaStream_t to, cudaStream_t from);
cudaError_t cudaCtxResetPersistingL2Cache();
cudaError_t cudaProfilerStart();
cudaError_t cudaProfilerStop();
