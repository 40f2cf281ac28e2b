// binding.h - turns launchers that take raw pointers into PyTorch operators; included by every binding.cpp.
//
//   TASK_OPERATORS(m)       { m.def("softmax(Tensor x) -> Tensor"); }     the schemas
//   TASK_KERNELS(m)         { m.impl("softmax", TORCH_BOX(&softmax)); }   their implementations for this backend
//   check(ok, parts...)     throws std::invalid_argument with the parts as its message unless ok
//   check_tensor(x, "x", {"batch", "heads", "seq_len", "head_dim"})       device, float32, rank, contiguous, not empty
//   check_rows(x, "x", {...})                                             the same, but only rows must be contiguous
//   check_float_type(x, "x"), float_type(x, "x")                          float32, float16 or bfloat16; returns which
//   stride_of(x, i)                                                       x.stride(i), or 0 if the size is 1
//   check_same_size(a, "a", i, b, "b", j)                                 a.size(i) == b.size(j)
//   check_at_most(n, limit, "rows", x, "x", "why")                        n <= limit, where n is a size of x
//   check_between(step, 1, 4, "step")                                     1 <= step <= 4
//   new_output(x, "y", {rows, cols})                                      uninitialized, of x's dtype and device
//   new_like(x, "y")                                                      the same, of x's shape
//   data<float>(x)          the raw pointer (float, int32_t)
//   current_stream(x)       PyTorch's current stream on x's device; DeviceScope makes that device current
//
// Includes only LibTorch's stable ABI, which compiles in 0.8 s; torch/extension.h takes 20 s. The build gives every
// task, variant and backend its own namespace (task_namespace) and defines CUDA_SIMULATOR for the simulator.
#pragma once
#include "common/cuda/float_type.h"
#include "common/cuda/torch_stable.h"

using torch::stable::Tensor;

#ifdef CUDA_SIMULATOR
#include "simulator/checked.h"  // registers with the checker every tensor that a kernel may access
#endif

// The operators' namespace: a macro under nvcc; linked in the simulator, so that one object file serves every variant.
#ifdef TASK_NAMESPACE
static constexpr const char* task_namespace = C10_STRINGIZE(TASK_NAMESPACE);
#else
extern "C" const char task_namespace[];
#endif
#ifdef CUDA_SIMULATOR
#define TASK_KEY "CPU"
#else
#define TASK_KEY "CUDA"
#endif
#define TASK_REGISTER(function, kind, key, m)                                                                     \
    static void function(torch::stable::detail::StableLibrary&);                                                  \
    static const torch::stable::detail::StableTorchLibraryInit function##_init(                                   \
        torch::stable::detail::StableLibrary::Kind::kind, &function, task_namespace, key, __FILE__, __LINE__);    \
    static void function(torch::stable::detail::StableLibrary& m)
#define TASK_OPERATORS(m) TASK_REGISTER(task_operators, DEF, nullptr, m)
#define TASK_KERNELS(m) TASK_REGISTER(task_kernels, IMPL, TASK_KEY, m)

// Messages are built without iostreams, which are slow to compile and break where a compiler links libstdc++ statically
// into every library.
inline std::string as_text(const std::string& part) { return part; }
inline std::string as_text(const char* part) { return part; }
template <typename Number>
inline std::string as_text(Number part) {
    return std::to_string(part);
}

// "[2, 12, 1024, 64]". Built only when a check fails: building a message takes longer than the checks.
inline std::string as_text(torch::headeronly::IntHeaderOnlyArrayRef sizes) {
    std::string text;
    for (int64_t size : sizes) text += (text.empty() ? "[" : ", ") + std::to_string(size);
    return text.empty() ? "[]" : text + "]";
}
inline torch::headeronly::IntHeaderOnlyArrayRef shape_of(const Tensor& x) { return x.sizes(); }
// "batch, heads, S_q"
inline std::string as_text(std::initializer_list<const char*> names) {
    std::string text;
    for (const char* name : names) text += (text.empty() ? "" : ", ") + std::string(name);
    return text;
}

template <typename... Parts>
inline void check(bool ok, const Parts&... parts) {
    if (ok) return;
#ifdef CUDA_SIMULATOR
    simulator::check_tensors_end();  // the operator call ends here
#endif
    throw std::invalid_argument((std::string() + ... + as_text(parts)));
}

#ifdef CUDA_SIMULATOR
inline void register_with_checker(const Tensor& x, const char* name, bool initialized) {
    int64_t shape[simulator::MAX_RANK] = {};
    const int rank = static_cast<int>(x.dim() < simulator::MAX_RANK ? x.dim() : simulator::MAX_RANK);
    for (int i = 0; i < rank; ++i) shape[i] = x.size(i);
    simulator::check_tensor_begin(name, x.data_ptr(), static_cast<unsigned>(x.element_size()), shape, rank,
                                  initialized);
}

// The same for an input with any strides. Elements of a non-contiguous tensor (expanded, transposed, a slice) are
// reported by their offset in memory; the gaps between them count as part of the tensor.
inline void register_strided_with_checker(const Tensor& x, const char* name) {
    if (x.is_contiguous()) return register_with_checker(x, name, true);
    int64_t extent = 1;
    for (int64_t i = 0; i < x.dim(); ++i) extent += (x.size(i) - 1) * x.stride(i);
    simulator::check_tensor_begin(name, x.data_ptr(), static_cast<unsigned>(x.element_size()), &extent, 1, true);
}
#else
inline void register_with_checker(const Tensor&, const char*, bool) {}
inline void register_strided_with_checker(const Tensor&, const char*) {}
#endif

// Accepts only a non-empty tensor of `dtype` on the backend's device, with one dimension per name.
inline void check_but_layout(const Tensor& x, const char* name, std::initializer_list<const char*> dims,
                             torch::headeronly::ScalarType dtype) {
    check(x.dim() == static_cast<int64_t>(dims.size()), name, " has ", x.dim(), " dimensions, shape ", shape_of(x),
          "; it must be [", dims, "]");
    check(x.scalar_type() == dtype, name, " has dtype ", torch::headeronly::toString(x.scalar_type()), "; it must be ",
          torch::headeronly::toString(dtype));
    int64_t i = 0;
    for (const char* dim : dims) {
        check(x.size(i) > 0, name, " has shape ", shape_of(x), ", so ", dim, " is 0; it must be at least 1");
        check(x.size(i) <= std::numeric_limits<int>::max(), name, " has ", dim, " = ", x.size(i),
              "; at most 2^31 - 1 is supported");
        ++i;
    }
#ifdef CUDA_SIMULATOR
    check(x.is_cpu(), name, " is not on the CPU; the simulator works on CPU tensors");
#else
    check(x.is_cuda(), name, " is not on a CUDA device; these kernels were built for the GPU");
#endif
}

// The same, and it must be contiguous.
inline void check_tensor(const Tensor& x, const char* name, std::initializer_list<const char*> dims,
                         torch::headeronly::ScalarType dtype = torch::headeronly::ScalarType::Float) {
    check_but_layout(x, name, dims, dtype);
    check(x.is_contiguous(), name, " of shape ", shape_of(x), " is not contiguous; call ", name, ".contiguous() first");
    register_with_checker(x, name, true);
}

// The same, but only the last dimension must be contiguous.
inline void check_rows(const Tensor& x, const char* name, std::initializer_list<const char*> dims,
                       torch::headeronly::ScalarType dtype) {
    check_but_layout(x, name, dims, dtype);
    const int64_t last = x.dim() - 1;
    check(x.size(last) == 1 || x.stride(last) == 1, name, " of shape ", shape_of(x), " has stride ", x.stride(last),
          " along its last dimension; it must be 1: call ", name, ".contiguous() first");
    register_strided_with_checker(x, name);
}

// The stride of dimension i in elements; 0 if the size is 1: that stride is unused, and 0 satisfies every alignment.
inline int64_t stride_of(const Tensor& x, int64_t i) { return x.size(i) > 1 ? x.stride(i) : 0; }

// Refuses any dtype except the three that kernels support.
inline void check_float_type(const Tensor& x, const char* name) {
    using torch::headeronly::ScalarType;
    const ScalarType dtype = x.scalar_type();
    check(dtype == ScalarType::Float || dtype == ScalarType::Half || dtype == ScalarType::BFloat16, name, " has dtype ",
          torch::headeronly::toString(dtype), "; it must be Float, Half or BFloat16");
}

// The same; returns which it is.
inline FloatType float_type(const Tensor& x, const char* name) {
    using torch::headeronly::ScalarType;
    check_float_type(x, name);
    const ScalarType dtype = x.scalar_type();
    return dtype == ScalarType::Float  ? FloatType::FLOAT32
           : dtype == ScalarType::Half ? FloatType::FLOAT16
                                       : FloatType::BFLOAT16;
}

// An uninitialized tensor of x's dtype and device for a kernel to fill; no element may be read before it is written.
inline Tensor new_output(const Tensor& x, const char* name, std::vector<int64_t> sizes,
                         std::optional<torch::headeronly::ScalarType> dtype = std::nullopt) {
    Tensor y = torch::stable::new_empty(x, sizes, dtype);
    register_with_checker(y, name, false);
    return y;
}

inline Tensor new_like(const Tensor& x, const char* name) {
    std::vector<int64_t> sizes;
    for (int64_t i = 0; i < x.dim(); ++i) sizes.push_back(x.size(i));
    return new_output(x, name, sizes);
}

inline void check_same_size(const Tensor& a, const char* a_name, int64_t i, const Tensor& b, const char* b_name,
                            int64_t j) {
    check(a.size(i) == b.size(j), a_name, " has shape ", shape_of(a), " and ", b_name, " has shape ", shape_of(b),
          "; dimension ", i, " of ", a_name, " (", a.size(i), ") must equal dimension ", j, " of ", b_name, " (",
          b.size(j), ")");
}

// size: a size of x, described by `what`; name: x's name; why: the end of the message.
inline void check_at_most(int64_t size, int64_t limit, const char* what, const Tensor& x, const char* name,
                          const char* why) {
    check(size <= limit, what, " is ", size, " (", name, " has shape ", shape_of(x), "); at most ", limit,
          " is supported: ", why);
}

inline void check_between(int64_t value, int64_t least, int64_t most, const char* name) {
    check(value >= least && value <= most, name, " is ", value, "; it must be ", least, " .. ", most);
}

inline void check_same_device(const Tensor& a, const char* a_name, const Tensor& b, const char* b_name) {
    check(a.get_device_index() == b.get_device_index(), a_name, " is on device ", a.get_device_index(), " and ", b_name,
          " on device ", b.get_device_index(), "; they must be on the same one");
}

template <typename T>
inline T* data(const Tensor& x) {
    return static_cast<T*>(x.data_ptr());
}

#ifdef CUDA_SIMULATOR
struct DeviceScope {
    explicit DeviceScope(const Tensor&) {}
    ~DeviceScope() { simulator::check_tensors_end(); }
};
inline cudaStream_t current_stream(const Tensor&) { return nullptr; }
#else
// Part of the stable ABI, but torch's header declares it only for torch's own build.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);

struct DeviceScope {
    explicit DeviceScope(const Tensor& x) : guard(x.get_device_index()) {}
    torch::stable::accelerator::DeviceGuard guard;
};
inline cudaStream_t current_stream(const Tensor& x) {
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
    return static_cast<cudaStream_t>(stream);
}
#endif
