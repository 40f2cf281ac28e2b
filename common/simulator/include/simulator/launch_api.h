// launch_api.h - launches by function call (cudaLaunchKernel and its variants), kernel attributes, occupancy.
//
// A void* does not reveal the sizes of a kernel's arguments, so the rewriter registers every non-template kernel of a
// file: SIMULATOR_REGISTER(name) makes a record in a section of its own, since graded code may run nothing when it is
// loaded.
#pragma once
#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "streams.h"

namespace simulator {

// A kernel with copies of its arguments, for graphs. The part that runs on CUDA threads calls no library function: the
// checked build would attribute its accesses to the kernel.
struct BoundKernel {
    void (*run)(const void* kernel, void* const* arguments);
    const void* kernel;
    void* const* arguments;
    std::vector<void*> pointers;
    std::vector<bool> are_pointers;
    struct alignas(128) Unit {
        char bytes[128];
    };
    std::vector<std::unique_ptr<Unit[]>> storage;
};
using Bound = std::shared_ptr<const BoundKernel>;

struct RegisteredKernel {
    const void* (*address)();
    const char* name;
    Bound (*bind)(const void* kernel, void** arguments);
};
const RegisteredKernel* registered_kernel(const void* address);  // null: unknown

template <typename... Parameters>
struct Binding {
    template <size_t... I>
    SIMULATOR_UNWATCHED static void call(const void* kernel, void* const* arguments, std::index_sequence<I...>) {
        reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(kernel))(*static_cast<Parameters*>(arguments[I])...);
    }
    SIMULATOR_UNWATCHED static void run(const void* kernel, void* const* arguments) {
        call(kernel, arguments, std::index_sequence_for<Parameters...>());
    }
    static Bound bind(const void* kernel, void** arguments) {
        auto bound = std::make_shared<BoundKernel>();
        size_t i = 0;
        const auto keep = [&](size_t bytes) {
            bound->storage.push_back(std::make_unique<BoundKernel::Unit[]>(bytes / sizeof(BoundKernel::Unit) + 1));
            bound->pointers.push_back(memcpy(bound->storage.back().get(), arguments[i++], bytes));
        };
        (keep(sizeof(Parameters)), ...);
        bound->are_pointers = {std::is_pointer_v<Parameters>...};
        bound->run = run;
        bound->kernel = kernel;
        bound->arguments = bound->pointers.data();
        return bound;
    }
};

template <auto kernel>
const void* registered_address() {
    return reinterpret_cast<const void*>(kernel);
}
template <typename... Parameters>
constexpr auto bind_of(void (*)(Parameters...)) {
    return Binding<Parameters...>::bind;
}

SIMULATOR_UNWATCHED inline void run_bound(void* data) {
    const BoundKernel& bound = *static_cast<const BoundKernel*>(data);
    bound.run(bound.kernel, bound.arguments);
}
// The error of this work alone; an earlier one stays the last error.
template <typename Work>
cudaError_t error_alone(Work work) {
    const cudaError_t before = cudaGetLastError();
    work();
    const cudaError_t error = cudaPeekAtLastError();
    if (error == cudaSuccess) finished(before);
    return error;
}
inline cudaError_t launch_bound(const char* name, const Bound& bound, dim3 grid, dim3 block, size_t dynamic_bytes,
                                cudaStream_t stream, bool cooperative, Position at, dim3 cluster = {0, 0, 0}) {
    const auto work = [=] {
#ifdef SIMULATOR_GRADED
        for (size_t i = 0; i < bound->are_pointers.size(); ++i)
            if (bound->are_pointers[i])
                check_kernel_argument(*static_cast<void**>(bound->arguments[i]), static_cast<int>(i) + 1, name, at);
        launch_apart([&] { bound->run(bound->kernel, bound->arguments); }, name, at, grid, block, dynamic_bytes, cooperative, cluster);
#else
        launch({name, at, bound->kernel, run_bound, const_cast<BoundKernel*>(bound.get()), cooperative, cluster}, grid, block,
               dynamic_bytes);
#endif
    };
    return in_stream(stream, [=] { return simulator::error_alone(work); });
}
inline cudaError_t launch_unknown(const void* address, dim3 grid, dim3 block, void** arguments, size_t dynamic_bytes,
                                  cudaStream_t stream, bool cooperative, Position at, dim3 cluster = {0, 0, 0}) {
    const RegisteredKernel* kernel = registered_kernel(address);
    if (!kernel) return finished(cudaErrorInvalidDeviceFunction);
    return launch_bound(kernel->name, kernel->bind(address, arguments), grid, block, dynamic_bytes, stream, cooperative, at, cluster);
}
template <typename... Parameters>
const char* name_of(void (*kernel)(Parameters...)) {
    const RegisteredKernel* known = registered_kernel(reinterpret_cast<const void*>(kernel));
    return known ? known->name : "a kernel";
}

}  // namespace simulator

#define SIMULATOR_REGISTER(name)                                                                                        \
    namespace {                                                                                                         \
    [[gnu::section("simulator_kernels"), gnu::used]] alignas(8) constinit ::simulator::RegisteredKernel                 \
        simulator_registered_##name = {::simulator::registered_address<&::name>, #name, ::simulator::bind_of(&::name)}; \
    }

#define SIMULATOR_LAUNCH_FUNCTION(name, cooperative)                                                                           \
    template <typename... Parameters>                                                                                          \
    cudaError_t name(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments, size_t dynamic_bytes = 0,         \
                     cudaStream_t stream = nullptr, simulator::Position at = simulator::here()) {                              \
        const auto bound = simulator::Binding<Parameters...>::bind(reinterpret_cast<const void*>(kernel), arguments);          \
        return simulator::launch_bound(simulator::name_of(kernel), bound, grid, block, dynamic_bytes, stream, cooperative, at); \
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
    dim3 gridDim_, blockDim_;  // the rewriter renames members gridDim and blockDim, since these names are macros
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
// Programmatic dependent launch attributes are ignored: here a kernel starts after the previous one has ended.
inline dim3 wanted_cluster(const cudaLaunchConfig_t& config) {
    for (unsigned i = 0; i < config.numAttrs; ++i)
        if (config.attrs[i].id == cudaLaunchAttributeClusterDimension) {
            const auto& shape = config.attrs[i].val.clusterDim;
            return {shape.x, shape.y, shape.z};
        }
    return {0, 0, 0};
}
}  // namespace simulator
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments... arguments) {
    std::tuple<std::remove_cv_t<Parameters>...> converted(arguments...);
    return std::apply(
        [&](auto&... each) {
            void* pointers[] = {&each..., nullptr};
            const auto bound = simulator::Binding<Parameters...>::bind(reinterpret_cast<const void*>(kernel), pointers);
            return simulator::launch_bound(simulator::name_of(kernel), bound, config->gridDim_, config->blockDim_,
                                           config->dynamicSmemBytes, config->stream, simulator::wants_cooperation(*config),
                                           simulator::here(), simulator::wanted_cluster(*config));
        },
        converted);
}
inline cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments,
                                       simulator::Position at = simulator::here()) {
    return simulator::launch_unknown(kernel, config->gridDim_, config->blockDim_, arguments, config->dynamicSmemBytes, config->stream,
                                     simulator::wants_cooperation(*config), at, simulator::wanted_cluster(*config));
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
cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, F*, const cudaLaunchConfig_t*) {
    return *size = 8, cudaSuccess;
}
template <typename F>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, F* kernel, const cudaLaunchConfig_t* config) {
    const dim3 shape = simulator::wanted_cluster(*config), block = config->blockDim_;
    int blocks = 0;
    const cudaError_t error = simulator::occupancy(&blocks, reinterpret_cast<const void*>(kernel),
                                                   static_cast<int>(block.x * block.y * block.z), config->dynamicSmemBytes);
    int processors = 0;
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0);
    const unsigned size = shape.x ? shape.x * shape.y * shape.z : 1;
    *clusters = static_cast<int>(static_cast<unsigned>(blocks * processors) / size);
    return error;
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
// The block size with the most resident threads; the largest one if several tie, as on a GPU.
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
template <typename F, typename Bytes>
cudaError_t cudaOccupancyMaxPotentialBlockSizeVariableSMemWithFlags(int* grid, int* block, F* kernel, Bytes bytes_of, int limit = 0,
                                                                    unsigned = 0) {
    return cudaOccupancyMaxPotentialBlockSizeVariableSMem(grid, block, kernel, bytes_of, limit);
}
template <typename F>
cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, F* kernel, int blocks, int) {
    cudaFuncAttributes attributes;
    cudaDeviceProp p;
    SIMULATOR_NEED(bytes && blocks > 0, cudaErrorInvalidValue);
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel)) return error;
    cudaGetDeviceProperties(&p, 0);
    const size_t used = attributes.sharedSizeBytes + p.reservedSharedMemPerBlock;
    const size_t each = p.sharedMemPerMultiprocessor / static_cast<size_t>(blocks);
    *bytes = each > used ? each - used : 0;
    if (*bytes > p.sharedMemPerBlockOptin - attributes.sharedSizeBytes) *bytes = p.sharedMemPerBlockOptin - attributes.sharedSizeBytes;
    return cudaSuccess;
}
inline cudaError_t cudaFuncGetName(const char** name, const void* kernel) {
    const simulator::RegisteredKernel* known = simulator::registered_kernel(kernel);
    SIMULATOR_NEED(name, cudaErrorInvalidValue);
    SIMULATOR_NEED(known, cudaErrorInvalidDeviceFunction);
    return *name = known->name, cudaSuccess;
}
