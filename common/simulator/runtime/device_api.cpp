// device_api.cpp - memory in rows, devices, pools: include/simulator/pitched_memory.h and device_api.h.
#include "../include/simulator/device_api.h"

cudaError_t cudaMalloc3D(cudaPitchedPtr* p, cudaExtent extent, simulator::Position at) {
    SIMULATOR_NEED(p, cudaErrorInvalidValue);
    *p = {nullptr, 0, extent.width, extent.height};
    return cudaMallocPitch(&p->ptr, &p->pitch, extent.width, extent.height * extent.depth, at);
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
        cudaMemcpyKind kind, simulator::Position at) {
    return simulator::copy_rows(to, to_pitch, from, from_pitch, width, height, kind, at);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
        cudaMemcpyKind kind, cudaStream_t stream,
        simulator::Position at) {
    return simulator::in_stream(
        stream, [=] { return simulator::copy_rows(to, to_pitch, from, from_pitch, width, height, kind, at); });
}
cudaError_t cudaMemset2D(void* address, size_t pitch, int value, size_t width, size_t height,
        simulator::Position at) {
    return simulator::fill_rows(address, pitch, value, width, height, at);
}
cudaError_t cudaMemset2DAsync(void* address, size_t pitch, int value, size_t width, size_t height,
        cudaStream_t stream, simulator::Position at) {
    return simulator::in_stream(stream, [=] { return simulator::fill_rows(address, pitch, value, width, height, at); });
}
cudaError_t cudaMemset3D(cudaPitchedPtr p, int value, cudaExtent extent, simulator::Position at) {
    for (size_t z = 0; z < extent.depth; ++z)
        if (const cudaError_t error = simulator::fill_rows(static_cast<char*>(p.ptr) + z * p.ysize * p.pitch, p.pitch, value,
        extent.width, extent.height, at))
        return error;
    return cudaSuccess;
}
cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* p, simulator::Position at) {
    SIMULATOR_NEED(p, cudaErrorInvalidValue);
    if (p->srcArray || p->dstArray) return simulator::finished(cudaErrorNotSupported);
    const auto row = [](const cudaPitchedPtr& of, const cudaPos& pos, size_t z) {
        return static_cast<char*>(of.ptr) + ((pos.z + z) * of.ysize + pos.y) * of.pitch + pos.x;
    };
    for (size_t z = 0; z < p->extent.depth; ++z)
        if (const cudaError_t error = simulator::copy_rows(row(p->dstPtr, p->dstPos, z), p->dstPtr.pitch,
        row(p->srcPtr, p->srcPos, z), p->srcPtr.pitch, p->extent.width,
        p->extent.height, p->kind, at))
        return error;
    return cudaSuccess;
}
cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* p, cudaStream_t stream,
        simulator::Position at) {
    SIMULATOR_NEED(p, cudaErrorInvalidValue);
    return simulator::in_stream(stream, [p = *p, at] { return cudaMemcpy3D(&p, at); }, cudaGraphNodeTypeMemcpy);
}
cudaError_t cudaMemset3DAsync(cudaPitchedPtr p, int value, cudaExtent extent, cudaStream_t stream,
        simulator::Position at) {
    return simulator::in_stream(stream, [=] { return cudaMemset3D(p, value, extent, at); }, cudaGraphNodeTypeMemset);
}
cudaError_t cudaMemcpy3DPeerAsync(const cudaMemcpy3DPeerParms* p, cudaStream_t stream,
        simulator::Position at) {
    SIMULATOR_NEED(p, cudaErrorInvalidValue);
    SIMULATOR_NEED(!p->srcDevice && !p->dstDevice, cudaErrorInvalidDevice);
    const cudaMemcpy3DParms same = {p->srcArray, p->srcPos, p->srcPtr, p->dstArray, p->dstPos, p->dstPtr, p->extent, cudaMemcpyDeviceToDevice};
    return cudaMemcpy3DAsync(&same, stream, at);
}
cudaError_t cudaMemcpy3DPeer(const cudaMemcpy3DPeerParms* p, simulator::Position at) {
    return cudaMemcpy3DPeerAsync(p, nullptr, at);
}

struct CUmemPoolHandle_st {
    unsigned long long attributes[cudaMemPoolAttrUsedMemHigh + 1] = {0, 1, 1, 1};
};
namespace simulator {
static CUmemPoolHandle_st default_pool;
static cudaMemPool_t current_pool = &default_pool;
bool is_pool(const CUmemPoolHandle_st* pool) { return pool == &default_pool || is_alive(pool, Handle::pool); }
}  // namespace simulator
namespace simulator {
static bool is_place(int device) { return device == 0 || device == cudaCpuDeviceId; }
static cudaError_t of_managed(const void* address, size_t bytes, bool place_is_right, const char* what, Position at) {
    SIMULATOR_NEED(bytes && kind_of(address) == MemoryKind::managed, cudaErrorInvalidValue);
    SIMULATOR_NEED(place_is_right, cudaErrorInvalidDevice);
    return may_touch(address, bytes, what, at);
}
static bool is_place(const cudaMemLocation& place) {
    return place.type == cudaMemLocationTypeDevice ? place.id == 0 : place.type >= cudaMemLocationTypeHost && place.type <= cudaMemLocationTypeHostNumaCurrent;
}
}  // namespace simulator
#define SIMULATOR_ADVISE(Place)                                                                                     \
    cudaError_t cudaMemAdvise(const void* address, size_t bytes, cudaMemoryAdvise advice, Place place,       \
                              simulator::Position at) {                                  \
        SIMULATOR_NEED(advice >= cudaMemAdviseSetReadMostly && advice <= cudaMemAdviseUnsetAccessedBy, cudaErrorInvalidValue); \
        const bool counts = advice > cudaMemAdviseUnsetReadMostly && advice != cudaMemAdviseUnsetPreferredLocation; \
        return simulator::of_managed(address, bytes, !counts || simulator::is_place(place), "are advised from", at); \
    }
SIMULATOR_ADVISE(int)
SIMULATOR_ADVISE(cudaMemLocation)
#undef SIMULATOR_ADVISE

#define SIMULATOR_ANSWER(name, T, value) \
    cudaError_t name(T* answer) { \
        SIMULATOR_NEED(answer, cudaErrorInvalidValue); \
        return *answer = value, cudaSuccess; \
    }
SIMULATOR_ANSWER(cudaDeviceGetCacheConfig, cudaFuncCache, cudaFuncCachePreferNone)
SIMULATOR_ANSWER(cudaDeviceGetSharedMemConfig, cudaSharedMemConfig, cudaSharedMemBankSizeFourByte)
SIMULATOR_ANSWER(cudaGetDeviceFlags, unsigned, 0)
SIMULATOR_ANSWER(cudaDriverGetVersion, int, CUDART_VERSION)
SIMULATOR_ANSWER(cudaRuntimeGetVersion, int, CUDART_VERSION)
#undef SIMULATOR_ANSWER
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
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
cudaError_t cudaHostGetFlags(unsigned* flags, void* host) {
    SIMULATOR_NEED(flags && simulator::kind_of(host) == simulator::MemoryKind::host, cudaErrorInvalidValue);
    return *flags = cudaHostAllocMapped, cudaSuccess;
}
cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned flags) {
    SIMULATOR_NEED(flags < 16, cudaErrorInvalidValue);
    return simulator::register_host(address, bytes);
}
cudaError_t cudaHostUnregister(void* address) {
    SIMULATOR_NEED(address, cudaErrorInvalidValue);
    return simulator::unregister_host(address);
}
cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, cudaMemLocation place, unsigned flags,
        cudaStream_t stream, simulator::Position at) {
    SIMULATOR_NEED(simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    SIMULATOR_NEED(!flags, cudaErrorInvalidValue);
    return simulator::of_managed(address, bytes, simulator::is_place(place), "are fetched from", at);
}
cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, int device, cudaStream_t stream,
        simulator::Position at) {
    SIMULATOR_NEED(simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    return simulator::of_managed(address, bytes, simulator::is_place(device), "are fetched from", at);
}
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaInitDevice(int device, unsigned, unsigned) { return cudaSetDevice(device); }
cudaError_t cudaSetValidDevices(int* devices, int count) {
    for (int i = 0; i < count; ++i) SIMULATOR_NEED(devices[i] == 0, cudaErrorInvalidDevice);
    return cudaSuccess;
}
cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp*) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int) {
    return snprintf(text, static_cast<size_t>(length), "0000:00:00.0"), cudaSuccess;
}
cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* id) {
    SIMULATOR_NEED(device && id, cudaErrorInvalidValue);
    SIMULATOR_NEED(!strcmp(id, "0000:00:00.0"), cudaErrorInvalidDevice);
    return *device = 0, cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    SIMULATOR_NEED(can, cudaErrorInvalidValue);
    SIMULATOR_NEED(!device && !peer, cudaErrorInvalidDevice);
    return *can = 0, cudaSuccess;
}
cudaError_t cudaDeviceGetP2PAttribute(int*, cudaDeviceP2PAttr, int, int) { return simulator::finished(cudaErrorInvalidDevice); }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return simulator::finished(cudaErrorInvalidDevice); }
cudaError_t cudaDeviceDisablePeerAccess(int) { return simulator::finished(cudaErrorPeerAccessNotEnabled); }
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
        cudaStream_t stream, simulator::Position at) {
    SIMULATOR_NEED(!to_device && !from_device, cudaErrorInvalidDevice);
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream, at);
}
cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t bytes,
        simulator::Position at) {
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, nullptr, at);
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
    SIMULATOR_NEED(pool, cudaErrorInvalidValue);
    SIMULATOR_NEED(!device, cudaErrorInvalidDevice);
    return *pool = &simulator::default_pool, cudaSuccess;
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
    const cudaError_t error = cudaDeviceGetDefaultMemPool(pool, device);
    if (!error) *pool = simulator::current_pool;
    return error;
}
cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
    SIMULATOR_NEED(!device, cudaErrorInvalidDevice);
    SIMULATOR_NEED(simulator::is_pool(pool), cudaErrorInvalidValue);
    return simulator::current_pool = pool, cudaSuccess;
}
cudaError_t cudaMemGetDefaultMemPool(cudaMemPool_t* pool, cudaMemLocation* place, cudaMemAllocationType) {
    SIMULATOR_NEED(place, cudaErrorInvalidValue);
    return cudaDeviceGetDefaultMemPool(pool, place->id);
}
cudaError_t cudaMemGetMemPool(cudaMemPool_t* pool, cudaMemLocation* place, cudaMemAllocationType) {
    SIMULATOR_NEED(place, cudaErrorInvalidValue);
    return cudaDeviceGetMemPool(pool, place->id);
}
cudaError_t cudaMemSetMemPool(cudaMemLocation* place, cudaMemAllocationType, cudaMemPool_t pool) {
    SIMULATOR_NEED(place, cudaErrorInvalidValue);
    return cudaDeviceSetMemPool(place->id, pool);
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* p) {
    SIMULATOR_NEED(pool && p && p->allocType != cudaMemAllocationTypeInvalid, cudaErrorInvalidValue);
    SIMULATOR_NEED(!p->handleTypes, cudaErrorNotSupported);
    *pool = new CUmemPoolHandle_st;
    return simulator::born(*pool, simulator::Handle::pool), cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
    SIMULATOR_NEED(simulator::dies(pool, simulator::Handle::pool), cudaErrorInvalidValue);
    if (simulator::current_pool == pool) simulator::current_pool = &simulator::default_pool;
    return delete pool, cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
    SIMULATOR_NEED(simulator::is_pool(pool) && value && attribute >= 1 && attribute <= cudaMemPoolAttrUsedMemHigh, cudaErrorInvalidValue);
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    if (attribute <= cudaMemPoolReuseAllowInternalDependencies)
        *static_cast<int*>(value) = static_cast<int>(pool->attributes[attribute]);
    else
        *static_cast<uint64_t*>(value) = attribute == cudaMemPoolAttrReleaseThreshold ? pool->attributes[attribute] : total - available;
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
    SIMULATOR_NEED(simulator::is_pool(pool) && value && attribute >= 1 && attribute <= cudaMemPoolAttrUsedMemHigh, cudaErrorInvalidValue);
    const bool is_int = attribute <= cudaMemPoolReuseAllowInternalDependencies;
    pool->attributes[attribute] = is_int ? static_cast<unsigned long long>(*static_cast<int*>(value)) : *static_cast<uint64_t*>(value);
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* all, size_t count) {
    SIMULATOR_NEED(simulator::is_pool(pool) && (all || !count), cudaErrorInvalidValue);
    for (size_t i = 0; i < count; ++i) SIMULATOR_NEED(simulator::is_place(all[i].location), cudaErrorInvalidDevice);
    return cudaSuccess;
}
cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t pool, cudaMemLocation* place) {
    SIMULATOR_NEED(flags && simulator::is_pool(pool) && place && simulator::is_place(*place), cudaErrorInvalidValue);
    return *flags = cudaMemAccessFlagsProtReadWrite, cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t) {
    SIMULATOR_NEED(simulator::is_pool(pool), cudaErrorInvalidValue);
    return cudaSuccess;
}
cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaStreamAttrID, const cudaStreamAttrValue* value) {
    SIMULATOR_NEED(simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    SIMULATOR_NEED(value, cudaErrorInvalidValue);
    return cudaSuccess;
}
cudaError_t cudaStreamGetAttribute(cudaStream_t stream, cudaStreamAttrID, cudaStreamAttrValue* value) {
    SIMULATOR_NEED(simulator::is_stream(stream), cudaErrorInvalidResourceHandle);
    SIMULATOR_NEED(value, cudaErrorInvalidValue);
    return *value = {}, cudaSuccess;
}
cudaError_t cudaStreamCopyAttributes(cudaStream_t to, cudaStream_t from) {
    SIMULATOR_NEED(simulator::is_stream(to) && simulator::is_stream(from), cudaErrorInvalidResourceHandle);
    return cudaSuccess;
}
cudaError_t cudaCtxResetPersistingL2Cache() { return cudaSuccess; }
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
