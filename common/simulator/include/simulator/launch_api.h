// launch_api.h - launches by function call (cudaLaunchKernel and its kin), attributes of kernels, occupancy.
//
// From a void* nobody could tell the sizes of a kernel's arguments; so the rewriter registers every kernel of a file that
// is no template: SIMULATOR_REGISTER(name).
#pragma once
#include <tuple>
#include <utility>

#include "streams.h"

namespace simulator {

struct RegisteredKernel {
    const char* name;
    // The arguments that the pointers point to, copied, so that a graph can keep them; running them is one thread's work.
    std::function<void()> (*bind)(const void* kernel, void** arguments);
};
void register_kernel(const void* address, const RegisteredKernel* kernel);
const RegisteredKernel* registered_kernel(const void* address);  // null: unknown

template <typename... Parameters>
std::function<void()> bind_arguments(void (*kernel)(Parameters...), void** arguments) {
    return [&]<size_t... I>(std::index_sequence<I...>) -> std::function<void()> {
        std::tuple<std::remove_cv_t<Parameters>...> copies(*static_cast<std::remove_cv_t<Parameters>*>(arguments[I])...);
        return [kernel, copies] { kernel(std::get<I>(copies)...); };
    }(std::index_sequence_for<Parameters...>());
}

template <typename... Parameters>
struct Registration {
    Registration(void (*kernel)(Parameters...), const char* name) : record{name, nullptr} {
        record.bind = [](const void* address, void** arguments) {
            return bind_arguments(reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(address)), arguments);
        };
        register_kernel(reinterpret_cast<const void*>(kernel), &record);
    }
    RegisteredKernel record;
};

inline cudaError_t launch_bound(const char* name, const void* address, std::function<void()> one_thread, dim3 grid, dim3 block,
                                size_t dynamic_bytes, cudaStream_t stream, bool cooperative, Position at) {
    return in_stream(stream, [=] {
        const std::function<void()>* work = &one_thread;
        launch({name, at, address, [](void* data) { (**static_cast<const std::function<void()>**>(data))(); }, &work, cooperative},
               grid, block, dynamic_bytes);
        return cudaPeekAtLastError();
    });
}
inline cudaError_t launch_unknown(const void* address, dim3 grid, dim3 block, void** arguments, size_t dynamic_bytes,
                                  cudaStream_t stream, bool cooperative, Position at) {
    const RegisteredKernel* kernel = registered_kernel(address);
    if (!kernel) return finished(cudaErrorInvalidDeviceFunction);
    return launch_bound(kernel->name, address, kernel->bind(address, arguments), grid, block, dynamic_bytes, stream, cooperative, at);
}
template <typename... Parameters>
const char* name_of(void (*kernel)(Parameters...)) {
    const RegisteredKernel* known = registered_kernel(reinterpret_cast<const void*>(kernel));
    return known ? known->name : "a kernel";
}

}  // namespace simulator

#define SIMULATOR_REGISTER(name)                                                                     \
    namespace {                                                                                      \
    [[maybe_unused]] const ::simulator::Registration simulator_registered_##name(&::name, #name);   \
    }

#define SIMULATOR_LAUNCH_FUNCTION(name, cooperative)                                                                           \
    template <typename... Parameters>                                                                                          \
    cudaError_t name(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments, size_t dynamic_bytes = 0,         \
                     cudaStream_t stream = nullptr, simulator::Position at = simulator::here()) {                              \
        return simulator::launch_bound(simulator::name_of(kernel), reinterpret_cast<const void*>(kernel),                      \
                                       simulator::bind_arguments(kernel, arguments), grid, block, dynamic_bytes, stream,       \
                                       cooperative, at);                                                                       \
    }                                                                                                                          \
    inline cudaError_t name(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t dynamic_bytes = 0,             \
                            cudaStream_t stream = nullptr, simulator::Position at = simulator::here()) {                       \
        return simulator::launch_unknown(kernel, grid, block, arguments, dynamic_bytes, stream, cooperative, at);              \
    }
SIMULATOR_LAUNCH_FUNCTION(cudaLaunchKernel, false)
SIMULATOR_LAUNCH_FUNCTION(cudaLaunchCooperativeKernel, true)
#undef SIMULATOR_LAUNCH_FUNCTION

// ---- launches with attributes
enum cudaLaunchAttributeID {
    cudaLaunchAttributeIgnore = 0,
    cudaLaunchAttributeCooperative = 2,
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
    cudaLaunchAttributePriority = 8
};
union cudaLaunchAttributeValue {
    int cooperative, priority, programmaticStreamSerializationAllowed;
    struct {
        unsigned x, y, z;
    } clusterDim;
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim_, blockDim_;  // gridDim and blockDim: the rewriter renames members, since these names are macros
    size_t dynamicSmemBytes = 0;
    cudaStream_t stream = nullptr;
    cudaLaunchAttribute* attrs = nullptr;
    unsigned numAttrs = 0;
};
namespace simulator {
inline bool wants_cooperation(const cudaLaunchConfig_t& config) {
    for (unsigned i = 0; i < config.numAttrs; ++i)
        if (config.attrs[i].id == cudaLaunchAttributeCooperative && config.attrs[i].val.cooperative) return true;
    return false;
}
}  // namespace simulator
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments... arguments) {
    const auto one_thread = [=] { kernel(Parameters(arguments)...); };
    return simulator::launch_bound(simulator::name_of(kernel), reinterpret_cast<const void*>(kernel), one_thread, config->gridDim_,
                                   config->blockDim_, config->dynamicSmemBytes, config->stream,
                                   simulator::wants_cooperation(*config), simulator::here());
}
inline cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments,
                                       simulator::Position at = simulator::here()) {
    return simulator::launch_unknown(kernel, config->gridDim_, config->blockDim_, arguments, config->dynamicSmemBytes, config->stream,
                                     simulator::wants_cooperation(*config), at);
}

// ---- nodes of graphs
struct cudaKernelNodeParams {
    void* func;
    dim3 gridDim_, blockDim_;
    unsigned sharedMemBytes;
    void** kernelParams;
    void** extra;
};
inline cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t,
                                          const cudaKernelNodeParams* p, simulator::Position at = simulator::here()) {
    const simulator::RegisteredKernel* kernel = simulator::registered_kernel(p->func);
    if (!kernel) return simulator::finished(cudaErrorInvalidDeviceFunction);
    return simulator::add_node(node, graph, [=, bound = kernel->bind(p->func, p->kernelParams), p = *p] {
        simulator::launch_bound(kernel->name, p.func, bound, p.gridDim_, p.blockDim_, p.sharedMemBytes, nullptr, false, at);
    });
}

// ---- attributes and occupancy
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
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, F* kernel, int block_size, size_t bytes) {
    return simulator::occupancy(blocks, reinterpret_cast<const void*>(kernel), block_size, bytes);
}
template <typename F>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, F* kernel, int block_size, size_t bytes,
                                                                   unsigned) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, block_size, bytes);
}
// The block size with the most threads at a time; of equals the largest, as on a GPU.
template <typename F, typename Bytes>
cudaError_t cudaOccupancyMaxPotentialBlockSizeVariableSMem(int* grid, int* block, F* kernel, Bytes bytes_of, int limit = 0) {
    int processors = 0, most = 0;
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0);
    *block = *grid = 0;
    for (int size = limit > 0 && limit < 1024 ? limit / 32 * 32 : 1024; size >= 32; size -= 32) {
        int blocks = 0;
        if (const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, size, bytes_of(size)))
            return error;
        if (blocks * size > most) most = blocks * size, *block = size, *grid = blocks * processors;
    }
    return cudaSuccess;
}
template <typename F>
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* block, F* kernel, size_t bytes = 0, int limit = 0) {
    return cudaOccupancyMaxPotentialBlockSizeVariableSMem(grid, block, kernel, [=](int) { return bytes; }, limit);
}
template <typename F>
cudaError_t cudaOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, F* kernel, size_t bytes = 0, int limit = 0,
                                                        unsigned = 0) {
    return cudaOccupancyMaxPotentialBlockSize(grid, block, kernel, bytes, limit);
}
