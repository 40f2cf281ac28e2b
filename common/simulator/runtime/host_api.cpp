// host_api.cpp - the state behind the host API: each host thread's last error, each kernel's attributes, and the
// properties of the simulated device (an H100's, where they matter to a kernel).
#include <stdio.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "../include/simulator/device_api.h"
#include "../include/simulator/launch_api.h"
#include "apart.h"
#include "worker.h"

static thread_local cudaError_t last_error = cudaSuccess;

cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetLastError() {
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
// The runner, before each call: an error of an earlier case is no error of this one.
extern "C" __attribute__((visibility("default"), used)) void simulator_forget_error() { last_error = cudaSuccess; }

#define SIMULATOR_ERROR_TEXT(name, code, text) case name: return text;
#define SIMULATOR_ERROR_NAME(name, code, text) case name: return #name;
const char* cudaGetErrorString(cudaError_t error) {
    switch (error) { SIMULATOR_ERRORS(SIMULATOR_ERROR_TEXT) }
    return "unrecognized error code";
}
const char* cudaGetErrorName(cudaError_t error) {
    switch (error) { SIMULATOR_ERRORS(SIMULATOR_ERROR_NAME) }
    return "unrecognized error code";
}

// ---- the device

// __CUDA_ARCH__ of the library's kernels, see nvcc_names.h
extern "C" __attribute__((weak, visibility("hidden"))) const int simulator_architecture;
static int compiled_for() { return &simulator_architecture ? simulator_architecture : 890; }

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
    return simulator::finished(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    if (device != 0) return simulator::finished(cudaErrorInvalidDevice);
    cudaDeviceProp p = {};
    snprintf(p.name, sizeof p.name, "CUDA simulator");
    const int architecture = compiled_for();
    p.major = architecture / 100, p.minor = architecture / 10 % 10;
    p.totalGlobalMem = size_t(16) << 30;
    p.totalConstMem = 64 << 10;
    p.sharedMemPerBlock = simulator::DEFAULT_SHARED_LIMIT;
    p.sharedMemPerBlockOptin = simulator::OPTIN_SHARED_LIMIT;
    p.sharedMemPerMultiprocessor = 228 << 10;
    p.regsPerBlock = p.regsPerMultiprocessor = 64 << 10;
    p.warpSize = 32;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024, p.maxThreadsDim[2] = 64;
    p.maxGridSize[0] = 2147483647, p.maxGridSize[1] = p.maxGridSize[2] = 65535;
    p.multiProcessorCount = 132;
    p.maxThreadsPerMultiProcessor = 2048;
    p.maxBlocksPerMultiProcessor = 32;
    p.l2CacheSize = 50 << 20;
    p.clockRate = 1980000;
    p.memoryClockRate = 2619000;
    p.memoryBusWidth = 5120;
    p.memPitch = 2147483647;
    p.textureAlignment = p.surfaceAlignment = 512, p.texturePitchAlignment = 32;
    p.reservedSharedMemPerBlock = 1024;
    p.canMapHostMemory = p.concurrentKernels = p.unifiedAddressing = p.managedMemory = p.concurrentManagedAccess = 1;
    p.streamPrioritiesSupported = p.globalL1CacheSupported = p.localL1CacheSupported = p.cooperativeLaunch = 1;
    p.asyncEngineCount = 3, p.deviceOverlap = 1;
    p.singleToDoublePrecisionPerfRatio = 2;
    *properties = p;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, device) != cudaSuccess) return cudaErrorInvalidDevice;
#define SIMULATOR_ATTRIBUTE_VALUE(name, number, from) case name: *value = static_cast<int>(from); break;
    switch (attribute) {
        SIMULATOR_ATTRIBUTES(SIMULATOR_ATTRIBUTE_VALUE)
        default: return simulator::finished(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

static size_t limits[] = {1024, 1 << 20, 0, 2, 2048, 64, 0};
constexpr int LIMITS = sizeof limits / sizeof *limits;
cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
    if (limit == cudaLimitMallocHeapSize) return simulator::set_heap_limit(value);
    if (limit < 0 || limit >= LIMITS) return simulator::finished(cudaErrorInvalidValue);
    return limits[limit] = value, cudaSuccess;
}
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
    if (!value || limit < 0 || limit >= LIMITS) return simulator::finished(cudaErrorInvalidValue);
    return *value = limit == cudaLimitMallocHeapSize ? simulator::heap_limit() : limits[limit], cudaSuccess;
}

namespace simulator {

// ---- handles, captures

static std::mutex handles_lock;
static std::map<const void*, Handle>& handles() { return lasting<std::map<const void*, Handle>>(); }
void born(const void* handle, Handle kind) {
    std::lock_guard<std::mutex> lock(handles_lock);
    handles()[handle] = kind;
}
bool is_alive(const void* handle, Handle kind) {
    std::lock_guard<std::mutex> lock(handles_lock);
    const auto found = handles().find(handle);
    return found != handles().end() && found->second == kind;
}
bool dies(const void* handle, Handle kind) {
    if (!is_alive(handle, kind)) return false;
    std::lock_guard<std::mutex> lock(handles_lock);
    return handles().erase(handle);
}

CaptureState& capture_state() {
    static thread_local CaptureState state;
    return state;
}
cudaError_t capture_forbids(cudaError_t error) {
    if (!capture_state().forbids) return cudaSuccess;
    capture_state().invalid = true;
    return finished(error);
}
cudaError_t capture_forbids_legacy() {
    return capture_state().blocking ? capture_forbids(cudaErrorStreamCaptureImplicit) : cudaSuccess;
}

cudaError_t finished(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}

void written_by_host(const void* address, size_t bytes) {
    if constexpr (CHECKED) check_written_by_host(address, bytes);
}

// ---- kernels

static std::map<const void*, KernelState>& kernel_states() { return lasting<std::map<const void*, KernelState>>(); }

// ---- kernels by address, for callers without their type (cudaLaunchKernel with a void*)

// the linker defines both if the section is there
extern const RegisteredKernel first_kernel[] __asm__("__start_simulator_kernels") __attribute__((weak, visibility("hidden")));
extern const RegisteredKernel last_kernel[] __asm__("__stop_simulator_kernels") __attribute__((weak, visibility("hidden")));
const RegisteredKernel* registered_kernel(const void* address) {
    for (const RegisteredKernel* one = first_kernel; one != last_kernel; ++one)
        if (one->address() == address) return one;
    return nullptr;
}

KernelState& kernel_state(const void* address) {
    auto& states = kernel_states();
    const bool known = states.count(address) != 0;
    KernelState& state = states[address];
    if (address || known) return state;
    for (const auto& [other, its] : states)
        if (its.dynamic_limit > state.dynamic_limit) state.dynamic_limit = its.dynamic_limit;
    return state;
}

size_t static_bytes_of(const void* kernel) {
    LaunchLock lock;
    return kernel_state(kernel).static_bytes;
}

cudaError_t set_attribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    LaunchLock lock;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    const size_t most = OPTIN_SHARED_LIMIT - kernel_state(kernel).static_bytes;
    if (value < 0 || static_cast<size_t>(value) > most) return finished(cudaErrorInvalidValue);
    kernel_state(kernel).dynamic_limit = static_cast<size_t>(value);
    return is_host_alone() ? send_limit(kernel, static_cast<size_t>(value)) : cudaSuccess;
}

cudaError_t get_attributes(cudaFuncAttributes* attributes, const void* kernel) {
    LaunchLock lock;
    KernelState& state = kernel_state(kernel);
    if (is_host_alone()) state.static_bytes = ask_static_bytes(kernel);
    *attributes = {};
    attributes->sharedSizeBytes = state.static_bytes;
    attributes->maxThreadsPerBlock = static_cast<int>(state.most_threads);
    attributes->numRegs = state.registers ? static_cast<int>(state.registers) : 32;
    attributes->ptxVersion = attributes->binaryVersion = 90;
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(state.dynamic_limit);
    return cudaSuccess;
}

cudaError_t occupancy(int* blocks, const void* kernel, int block_size, size_t dynamic_bytes) {
    if (block_size < 1) return finished(cudaErrorInvalidValue);
    LaunchLock lock;
    *blocks = 0;
    const KernelState& state = kernel_state(kernel);
    const size_t shared = state.static_bytes + dynamic_bytes + 1024;  // 1 KB is reserved per block
    if (static_cast<unsigned>(block_size) > state.most_threads || shared > OPTIN_SHARED_LIMIT + 1024) return cudaSuccess;
    const int by_threads = 2048 / ((block_size + 31) / 32 * 32),
              by_shared = static_cast<int>((228 << 10) / shared);
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    if (const uint64_t registers = state.registers_of_block(static_cast<unsigned>(block_size)))
        *blocks = std::min(*blocks, static_cast<int>(MOST_REGISTERS / registers));
    if (*blocks > 32) *blocks = 32;
    return cudaSuccess;
}

}  // namespace simulator
