// pitched_memory.h - pitched memory: cudaMallocPitch, cudaMemcpy2D, cudaMemset2D, and their 3D counterparts.
#pragma once
#include "streams.h"

struct cudaExtent {
    size_t width, height, depth;
};
struct cudaPos {
    size_t x, y, z;
};
struct cudaPitchedPtr {
    void* ptr;
    size_t pitch, xsize, ysize;
};
struct cudaMemcpy3DParms {
    struct cudaArray* srcArray;
    cudaPos srcPos;
    cudaPitchedPtr srcPtr;
    struct cudaArray* dstArray;
    cudaPos dstPos;
    cudaPitchedPtr dstPtr;
    cudaExtent extent;
    cudaMemcpyKind kind;
};
inline cudaExtent make_cudaExtent(size_t width, size_t height, size_t depth) { return {width, height, depth}; }
inline cudaPos make_cudaPos(size_t x, size_t y, size_t z) { return {x, y, z}; }
inline cudaPitchedPtr make_cudaPitchedPtr(void* address, size_t pitch, size_t width, size_t height) {
    return {address, pitch, width, height};
}

namespace simulator {

constexpr size_t PITCH_ALIGNMENT = 512;

inline cudaError_t copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                             cudaMemcpyKind kind, Position at) {
    if (!height || !width) return cudaSuccess;
    if (width > to_pitch || width > from_pitch) return finished(cudaErrorInvalidPitchValue);
    for (size_t row = 0; row < height; ++row)
        if (const cudaError_t error = copy(static_cast<char*>(to) + row * to_pitch,
                                           static_cast<const char*>(from) + row * from_pitch, width, kind, at))
            return error;
    return cudaSuccess;
}
inline cudaError_t fill_rows(void* address, size_t pitch, int value, size_t width, size_t height, Position at) {
    if (width > pitch && height > 1) return finished(cudaErrorInvalidPitchValue);
    for (size_t row = 0; row < height; ++row)
        if (const cudaError_t error = fill(static_cast<char*>(address) + row * pitch, value, width, at)) return error;
    return cudaSuccess;
}

}  // namespace simulator

template <typename T>
cudaError_t cudaMallocPitch(T** address, size_t* pitch, size_t width, size_t height,
                            simulator::Position at = simulator::here()) {
    SIMULATOR_NEED(address && pitch, cudaErrorInvalidValue);
    *pitch = (width + simulator::PITCH_ALIGNMENT - 1) / simulator::PITCH_ALIGNMENT * simulator::PITCH_ALIGNMENT;
    return cudaMalloc(address, *pitch * height, at);
}
inline cudaError_t cudaMalloc3D(cudaPitchedPtr* p, cudaExtent extent, simulator::Position at = simulator::here()) {
    SIMULATOR_NEED(p, cudaErrorInvalidValue);
    *p = {nullptr, 0, extent.width, extent.height};
    return cudaMallocPitch(&p->ptr, &p->pitch, extent.width, extent.height * extent.depth, at);
}
inline cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                size_t height, cudaMemcpyKind kind, simulator::Position at = simulator::here()) {
    return simulator::copy_rows(to, to_pitch, from, from_pitch, width, height, kind, at);
}
inline cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                     size_t height, cudaMemcpyKind kind, cudaStream_t stream = nullptr,
                                     simulator::Position at = simulator::here()) {
    return simulator::in_stream(
        stream, [=] { return simulator::copy_rows(to, to_pitch, from, from_pitch, width, height, kind, at); });
}
inline cudaError_t cudaMemset2D(void* address, size_t pitch, int value, size_t width, size_t height,
                                simulator::Position at = simulator::here()) {
    return simulator::fill_rows(address, pitch, value, width, height, at);
}
inline cudaError_t cudaMemset2DAsync(void* address, size_t pitch, int value, size_t width, size_t height,
                                     cudaStream_t stream = nullptr, simulator::Position at = simulator::here()) {
    return simulator::in_stream(stream, [=] { return simulator::fill_rows(address, pitch, value, width, height, at); });
}
inline cudaError_t cudaMemset3D(cudaPitchedPtr p, int value, cudaExtent extent,
                                simulator::Position at = simulator::here()) {
    cudaError_t error = cudaSuccess;
    for (size_t z = 0; z < extent.depth && !error; ++z)
        error = simulator::fill_rows(static_cast<char*>(p.ptr) + z * p.ysize * p.pitch, p.pitch, value, extent.width,
                                     extent.height, at);
    return error;
}
inline cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* p, simulator::Position at = simulator::here()) {
    SIMULATOR_NEED(p, cudaErrorInvalidValue);
    if (p->srcArray || p->dstArray) return simulator::finished(cudaErrorNotSupported);
    const auto row = [](const cudaPitchedPtr& of, const cudaPos& pos, size_t z) {
        return static_cast<char*>(of.ptr) + ((pos.z + z) * of.ysize + pos.y) * of.pitch + pos.x;
    };
    cudaError_t error = cudaSuccess;
    for (size_t z = 0; z < p->extent.depth && !error; ++z)
        error = simulator::copy_rows(row(p->dstPtr, p->dstPos, z), p->dstPtr.pitch, row(p->srcPtr, p->srcPos, z),
                                     p->srcPtr.pitch, p->extent.width, p->extent.height, p->kind, at);
    return error;
}
inline cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* p, cudaStream_t stream = nullptr,
                                     simulator::Position at = simulator::here()) {
    SIMULATOR_NEED(p, cudaErrorInvalidValue);
    return simulator::in_stream(stream, [p = *p, at] { return cudaMemcpy3D(&p, at); }, cudaGraphNodeTypeMemcpy);
}
inline cudaError_t cudaMemset3DAsync(cudaPitchedPtr p, int value, cudaExtent extent, cudaStream_t stream = nullptr,
                                     simulator::Position at = simulator::here()) {
    return simulator::in_stream(stream, [=] { return cudaMemset3D(p, value, extent, at); }, cudaGraphNodeTypeMemset);
}
