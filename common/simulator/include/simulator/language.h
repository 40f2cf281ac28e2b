// language.h - the words that CUDA adds to C++: function and variable attributes, threadIdx and its like,
// barriers, clocks, and the object that the rewriter puts in the place of <<<...>>>.
#pragma once
#include <assert.h>
#include <stdio.h>
#include <time.h>

#include <functional>

#include "thread.h"

#define __global__
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
// __shared__ and __noinline__ are the rewriter's business (the standard library uses
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
// A kernel begins when the one before it has ended; so there is nothing to tell, or to wait for.
inline void cudaTriggerProgrammaticLaunchCompletion() {}
inline void cudaGridDependencySynchronize() {}
inline void __threadfence_system() { __threadfence(); }
inline void __nanosleep(unsigned) { simulator::yield(); }
[[noreturn]] inline void __trap(simulator::Position at = simulator::here()) {
    simulator::fail("%s:%d: __trap()", at.file, at.line);
}
inline void __brkpt() {}

namespace simulator {
// Which body of a function of host and device counts, where they differ by __CUDA_ARCH__ (architecture.py); what the
// compiler computes in advance is the device's.
constexpr bool runs_on_device() { return __builtin_is_constant_evaluated() || on_device(); }
}  // namespace simulator

// Nanoseconds instead of cycles: enough to see that time passes, nothing to measure kernels with.
inline long long clock64() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}
// clock() is the C library's.

struct CUstream_st;

namespace simulator {

struct Kernel {
    const char* name;
    Position position;        // of the launch
    const void* address;      // of the kernel, where C++ lets us name it, else null
    void (*run)(void* data);  // one thread's work
    void* data;
    bool cooperative = false;  // all blocks at a time, with barriers for the whole grid
    dim3 cluster = {0, 0, 0};  // blocks that run at the same time; x = 0: as the kernel declares
};
// Runs the whole grid. Throws std::runtime_error for what would hang or crash on a GPU; a launch that a GPU
// refuses only sets the error that cudaGetLastError() returns.
void launch(const Kernel& kernel, dim3 grid, dim3 block, size_t dynamic_bytes);

// streams.h: what is launched into a stream that is being captured becomes part of a graph.
bool is_capturing(const CUstream_st* stream);
void capture(CUstream_st* stream, std::function<void()> work);

// In a program of its own (runtime/program.cpp): an error for pointers to host memory; in a graded build for those to
// variables and strings of the host.
void check_kernel_argument(const void* pointer, int number, const char* kernel, Position at);
void run_as_program();
#ifdef SIMULATOR_PROGRAM
[[maybe_unused]] static const bool runs_as_program = (run_as_program(), true);
#endif

template <typename... Types>
struct Arguments {};

// Only a call can name the kernel when its template arguments are deduced; so overload resolution decides,
// late (hence the unused Arguments), whether there is a single function to take the address of.
template <typename Late, typename... Parameters>
const void* address_of(void (*kernel)(Parameters...)) {
    return reinterpret_cast<const void*>(kernel);
}

// In a graded build host code has no device: a launch writes down what the kernel would be called with, and sends it,
// see runtime/apart.cpp. `words`: of the arguments, 8 bytes each, at most.
const void* begin_capture(const void* kernel, size_t words);  // a function to be called in the kernel's place
void launch_captured(const char* name, Position at, dim3 grid, dim3 block, size_t dynamic_bytes, bool cooperative = false,
                     dim3 cluster = {0, 0, 0});
template <typename... Parameters>
constexpr size_t words_of = (size_t{0} + ... + ((sizeof(Parameters) + 15) / 8));
template <typename... Parameters>
struct Capture {
    const void* kernel;
    void operator()(Parameters... arguments) const {
        reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(begin_capture(kernel, words_of<Parameters...>)))(arguments...);
    }
};
template <typename Late, typename... Parameters>
Capture<Parameters...> capture_of(void (*kernel)(Parameters...)) {
    return {reinterpret_cast<const void*>(kernel)};
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
    SIMULATOR_UNCHECKED void operator()(Types... arguments) const {
#if defined(SIMULATOR_PROGRAM) || defined(SIMULATOR_GRADED)
        int number = 0;
        (check_argument(++number, arguments), ...);
#endif
        if (stream && is_capturing(stream)) {
            capture(stream, [=, me = *this] { Launcher(me).on_stream(nullptr)(arguments...); });
            return;
        }
#ifdef SIMULATOR_GRADED
        call(arguments...);
        launch_captured(name, position, grid, block, dynamic_bytes);
#else
        auto one_thread = [&] { call(arguments...); };
        launch({name, position, address(Arguments<Types...>{}),
                [](void* data) { (*static_cast<decltype(one_thread)*>(data))(); }, &one_thread},
               grid, block, dynamic_bytes);
#endif
    }
};

// The bytes of shared memory that nobody has written: 0xff, which makes floats NaN, unless a test asks for others.
extern __attribute__((visibility("hidden"))) int fresh_shared;

}  // namespace simulator

// A static __shared__ variable at namespace scope, before every block.
#ifdef SIMULATOR_CHECKED
#define SIMULATOR_PREPARE_SHARED(name)            \
    memset((void*)&name, ::simulator::fresh_shared, sizeof name); \
    ::simulator::check_namespace_shared(::simulator::describe<decltype(name)>(#name, 0), &name)
#else
#define SIMULATOR_PREPARE_SHARED(name) memset((void*)&name, ::simulator::fresh_shared, sizeof name)
#endif

// SIMULATOR_KERNEL is the first part of a Launcher; SIMULATOR_CALL is for arguments that have no type of
// their own (braces, NULL, 0): they stay in the text of the call, `given` names the others.
#ifdef SIMULATOR_GRADED
#define SIMULATOR_KERNEL(...)                                                                                          \
    SIMULATOR_NAME(__VA_ARGS__), [&](auto... arguments_) {                                                             \
        using Late_ = ::simulator::Arguments<decltype(arguments_)...>;                                                 \
        if constexpr (requires { ::simulator::capture_of<Late_>(__VA_ARGS__); })                                       \
            ::simulator::capture_of<Late_>(__VA_ARGS__)(arguments_...);                                                \
        else                                                                                                           \
            ::simulator::capture_of<Late_>(static_cast<void (*)(decltype(arguments_)...)>(__VA_ARGS__))(arguments_...); \
    }
#define SIMULATOR_CALL(given, arguments, ...) \
    SIMULATOR_NAME(__VA_ARGS__), [&] given { ::simulator::capture_of<void>(__VA_ARGS__) arguments; }
#else
#define SIMULATOR_KERNEL(...) \
    SIMULATOR_NAME(__VA_ARGS__), [&](auto... arguments_) { __VA_ARGS__(arguments_...); }
#define SIMULATOR_CALL(given, arguments, ...) \
    SIMULATOR_NAME(__VA_ARGS__), [&] given { __VA_ARGS__ arguments; }
#endif
#define SIMULATOR_NAME(...) \
#__VA_ARGS__, ::simulator::here(),                                                           \
        [&]<typename... Types_>(::simulator::Arguments<Types_...>) -> const void* {              \
            using Late_ = ::simulator::Arguments<Types_...>;                                     \
            if constexpr (requires { ::simulator::address_of<Late_>(__VA_ARGS__); })             \
                return ::simulator::address_of<Late_>(__VA_ARGS__);                              \
            else if constexpr (requires { static_cast<void (*)(Types_...)>(__VA_ARGS__); })      \
                return reinterpret_cast<const void*>(static_cast<void (*)(Types_...)>(__VA_ARGS__)); \
            else                                                                                 \
                return nullptr;                                                                  \
        }
