// language.h - CUDA's additions to C++: function and variable attributes, built-in variables such as threadIdx,
// barriers, clocks, and the Launcher that replaces <<<...>>>.
#pragma once
#include <assert.h>
#include <stdio.h>
#include <time.h>  // clock()

#include <functional>

#include "thread.h"

#ifdef SIMULATOR_GRADED
// The object lists it (common/course/grading/build.py), and calls of it stay calls (runtime/apart.cpp).
#define __global__ __attribute__((patchable_function_entry(5, 0), noipa))
#else
#define __global__
#endif
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __block_size__(...)
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
// __shared__ and __noinline__ are no macros; the rewriter handles them (the standard library uses
// __attribute__((__noinline__))).

#define threadIdx (::simulator::current_thread()->index)
#define blockIdx (::simulator::current_block()->index)
#define blockDim (::simulator::current_block()->size)
#define gridDim (::simulator::current_block()->grid)
constexpr int warpSize = 32;

inline void __syncthreads(simulator::Position at = simulator::here()) {
    simulator::barrier(false, "__syncthreads", at);
}
inline int __syncthreads_count(int predicate, simulator::Position at = simulator::here()) {
    return simulator::barrier(predicate != 0, "__syncthreads_count", at);
}
inline int __syncthreads_or(int predicate, simulator::Position at = simulator::here()) {
    return simulator::barrier(predicate != 0, "__syncthreads_or", at) != 0;
}
inline int __syncthreads_and(int predicate, simulator::Position at = simulator::here()) {
    return simulator::barrier(predicate == 0, "__syncthreads_and", at) == 0;
}

SIMULATOR_UNCHECKED inline void __threadfence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#ifdef SIMULATOR_CHECKED
    simulator::check_fence(true);
#endif
}
SIMULATOR_UNCHECKED inline void __threadfence_block() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#ifdef SIMULATOR_CHECKED
    simulator::check_fence(false);
#endif
}
// Nothing to do: a kernel starts after the previous one has ended.
inline void cudaTriggerProgrammaticLaunchCompletion() {}
inline void cudaGridDependencySynchronize() {}
inline void __threadfence_system() { __threadfence(); }
inline void __nanosleep(unsigned) { simulator::yield(); }
[[noreturn]] inline void __trap(simulator::Position at = simulator::here()) {
    simulator::fail("%s:%d: __trap()", at.file, at.line);
}
inline void __brkpt() {}

namespace simulator {
// Chooses the body of a __host__ __device__ function whose bodies differ by __CUDA_ARCH__ (architecture.py). Constant
// evaluation takes the device's.
constexpr bool runs_on_device() { return __builtin_is_constant_evaluated() || on_device(); }
}  // namespace simulator

// Nanoseconds instead of cycles: enough to see that time passes, not to measure kernels.
long long clock64();

struct CUstream_st;

namespace simulator {

struct Kernel {
    const char* name;
    Position position;        // the launch's source line
    const void* address;      // the kernel's address, or null where C++ cannot name it
    void (*run)(void* data);  // one thread's work
    void* data;
    bool cooperative = false;  // all blocks are co-resident, and grid barriers work
    dim3 cluster = {0, 0, 0};  // cluster shape; x = 0: as the kernel declares
};
// Runs the whole grid. Throws std::runtime_error if the kernel would hang or crash on a GPU. A launch that a GPU
// rejects only sets the error that cudaGetLastError() returns.
void launch(const Kernel& kernel, dim3 grid, dim3 block, size_t dynamic_bytes);

// streams.h: a launch into a capturing stream becomes a graph node.
bool is_capturing(const CUstream_st* stream);
void capture(CUstream_st* stream, std::function<void()> work);

// In a standalone program (runtime/program.cpp), fails for pointers to host memory; in a graded build, for pointers to
// host variables and string literals.
void check_kernel_argument(const void* pointer, int number, const char* kernel, Position at);
void run_as_program();
#ifdef SIMULATOR_PROGRAM
[[maybe_unused]] static const bool runs_as_program = (run_as_program(), true);
#endif

template <typename... Types>
struct Arguments {};

// A kernel whose template arguments are deduced has no name outside of a call. So overload resolution, made late by the
// unused template parameter, decides whether there is a single function whose address can be taken.
template <typename Late, typename... Parameters>
const void* address_of(void (*kernel)(Parameters...)) {
    return reinterpret_cast<const void*>(kernel);
}

// Calls the first function that takes `late`. (A requires-expression in its place would keep gcc from expanding a pack
// around a launch.)
template <typename Late, typename F, typename... Others>
auto first_that_compiles(Late late, const F& f, const Others&... others) {
    if constexpr (sizeof...(Others) == 0 || std::is_invocable_v<const F&, Late>)
        return f(late);
    else
        return simulator::first_that_compiles(late, others...);
}

// In a graded build host code has no device: there a call of a kernel records its arguments (runtime/apart.cpp), and the
// launch is sent to the device process. What the call puts on the stack is below `end`.
void begin_capture(const void* end);
void launch_captured(const char* name, Position at, dim3 grid, dim3 block, size_t dynamic_bytes, bool cooperative, dim3 cluster);
template <typename Call>
SIMULATOR_UNWATCHED __attribute__((noinline)) void launch_apart(const Call& call, const char* name, Position at, dim3 grid,
                                                                dim3 block, size_t dynamic_bytes, bool cooperative = false,
                                                                dim3 cluster = {0, 0, 0}) {
    begin_capture(__builtin_frame_address(0));
    call();
    launch_captured(name, at, grid, block, dynamic_bytes, cooperative, cluster);
}

// kernel<<<grid, block, bytes, stream>>>(arguments) is rewritten as
//     ::simulator::Launcher(SIMULATOR_KERNEL(kernel), grid, block, bytes, stream)(arguments)
template <typename Address, typename Call>
struct Launcher {
    const char* name;
    Position position;
    Address address;
    Call call;
    dim3 grid, block;
    size_t dynamic_bytes;
    CUstream_st* stream;

    Launcher& on_stream(CUstream_st* other) {
        stream = other;
        return *this;
    }

    template <typename T>
    void check_argument([[maybe_unused]] int number, const T& argument) const {
        if constexpr (requires { static_cast<const volatile void*>(argument); })
            check_kernel_argument(const_cast<const void*>(static_cast<const volatile void*>(argument)), number, name, position);
    }

    Launcher(const char* name_, Position position_, Address address_, Call call_, dim3 grid_, dim3 block_,
             size_t dynamic_bytes_ = 0, CUstream_st* stream_ = nullptr)
        : name(name_),
          position(position_),
          address(address_),
          call(call_),
          grid(grid_),
          block(block_),
          dynamic_bytes(dynamic_bytes_),
          stream(stream_) {}

    template <typename... Types>
    SIMULATOR_UNWATCHED void operator()(Types... arguments) const {
#if defined(SIMULATOR_PROGRAM) || defined(SIMULATOR_GRADED)
        int number = 0;
        (check_argument(++number, arguments), ...);
#endif
        if (stream && is_capturing(stream)) {
            capture(stream, [=, me = *this] { Launcher(me).on_stream(nullptr)(arguments...); });
            return;
        }
        auto one_thread = [&] { call(arguments...); };
#ifdef SIMULATOR_GRADED
        launch_apart(one_thread, name, position, grid, block, dynamic_bytes);
#else
        launch({name, position, address(Arguments<Types...>{}),
                [](void* data) { (*static_cast<decltype(one_thread)*>(data))(); }, &one_thread},
               grid, block, dynamic_bytes);
#endif
    }
};

}  // namespace simulator

// SIMULATOR_KERNEL expands to a Launcher's first arguments. SIMULATOR_CALL is for kernel arguments that cannot be
// forwarded (braces, NULL, 0): they stay in the text of the call, and `given` names the others.
#define SIMULATOR_KERNEL(...) \
    SIMULATOR_NAME(__VA_ARGS__), [&](auto&... arguments_) { __VA_ARGS__(arguments_...); }
#define SIMULATOR_CALL(given, arguments, ...) \
    SIMULATOR_NAME(__VA_ARGS__), [&] given { __VA_ARGS__ arguments; }
#define SIMULATOR_NAME(...)                                                                                 \
#__VA_ARGS__, ::simulator::here(), [&](auto types_) {                                                       \
        return ::simulator::first_that_compiles(                                                            \
            types_,                                                                                         \
            [&](auto late_) -> decltype(::simulator::address_of<decltype(late_)>(__VA_ARGS__)) {            \
                return ::simulator::address_of<decltype(late_)>(__VA_ARGS__);                               \
            },                                                                                              \
            [&]<typename... Types_>(::simulator::Arguments<Types_...>)                                      \
                -> decltype(::simulator::address_of<void>(static_cast<void (*)(Types_...)>(__VA_ARGS__))) { \
                return ::simulator::address_of<void>(static_cast<void (*)(Types_...)>(__VA_ARGS__));        \
            },                                                                                              \
            [](auto) -> const void* { return nullptr; });                                                   \
    }
