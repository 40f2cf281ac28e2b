// shim.cpp - the functions of LibTorch's stable C interface that a binding.cpp imports, without LibTorch.
//
// The compiler checks their signatures against torch's headers. A binding can register operators, inspect tensors and
// create new ones (aten::new_empty); nothing else.
#include "shim.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

using runner::memory;
using runner::Tensor;

// name, c10::ScalarType number, bytes, and fill value of a new element: NaN (its high bits), or the largest integer
#define DTYPES(_)                                                                                                    \
    _(uint8, 0, 1, 0xff) _(int8, 1, 1, 0x7f) _(int16, 2, 2, 0x7fff) _(int32, 3, 4, 0x7fffffff)                       \
    _(int64, 4, 8, 0x7fffffffffffffff) _(float16, 5, 2, 0x7e00) _(float32, 6, 4, 0x7fc00000)                         \
    _(float64, 7, 8, 0x7ff8000000000000) _(complex32, 8, 4, 0x7e007e00) _(complex64, 9, 8, 0x7fc000007fc00000)       \
    _(complex128, 10, 16, 0x7ff8000000000000) _(bool, 11, 1, 1) _(bfloat16, 15, 2, 0x7fc0)                           \
    _(float8_e5m2, 23, 1, 0x7f) _(float8_e4m3fn, 24, 1, 0x7f) _(float8_e5m2fnuz, 25, 1, 0x80)                        \
    _(float8_e4m3fnuz, 26, 1, 0x80) _(uint16, 27, 2, 0xffff) _(uint32, 28, 4, 0xffffffff)                            \
    _(uint64, 29, 8, 0xffffffffffffffff)

namespace {

constexpr size_t ALIGNMENT = 64;  // of every tensor, as in PyTorch's allocator

struct Dtype {
    size_t bytes;
    uint64_t fill;
};

Dtype dtype_of(int32_t number) {
    switch (number) {
#define CASE(name, number, bytes, fill) \
    case number: return {bytes, fill};
        DTYPES(CASE)
    }
    throw std::runtime_error("there is no dtype " + std::to_string(number));
}

thread_local std::string last_error;

template <typename Body>
AOTITorchError caught(Body body) {
    try {
        body();
        return AOTI_TORCH_SUCCESS;
    } catch (const std::exception& error) {
        last_error = error.what();
        return AOTI_TORCH_FAILURE;
    }
}

Tensor& tensor(AtenTensorHandle handle) { return *reinterpret_cast<Tensor*>(handle); }

int64_t along(const std::vector<int64_t>& values, int64_t dimension) {
    const auto rank = static_cast<int64_t>(values.size());
    if (dimension < -rank || dimension >= rank)
        throw std::out_of_range("dimension " + std::to_string(dimension) + " of a tensor with " + std::to_string(rank));
    return values[static_cast<size_t>(dimension < 0 ? dimension + rank : dimension)];
}

bool is_contiguous(const Tensor& x) {
    int64_t expected = 1;
    for (size_t i = x.sizes.size(); i-- > 0; expected *= x.sizes[i])
        if (x.sizes[i] != 1 && x.strides[i] != expected && x.bytes()) return false;
    return true;
}

using List = std::vector<StableIValue>;
List& list(StableListHandle handle) { return *reinterpret_cast<List*>(handle); }

// A library handle is the library's name.
std::string& library(TorchLibraryHandle handle) { return *reinterpret_cast<std::string*>(handle); }
AOTITorchError new_library(const char* name, TorchLibraryHandle* made) {
    *made = reinterpret_cast<TorchLibraryHandle>(new std::string(name));
    return AOTI_TORCH_SUCCESS;
}

Tensor* new_tensor(const List& sizes, int32_t dtype) {
    auto x = std::make_unique<Tensor>();
    x->dtype = dtype;
    x->sizes.assign(sizes.begin(), sizes.end());
    x->strides.resize(sizes.size());
    int64_t count = 1;
    for (size_t i = sizes.size(); i-- > 0;) {
        x->strides[i] = std::max<int64_t>(count, 1);
        if (__builtin_mul_overflow(count, x->sizes[i], &count)) throw std::bad_alloc();
    }
    const size_t bytes = x->bytes();
    if (!bytes) return x.release();
    x->data = memory.allocate_guarded(bytes);
    const Dtype of = dtype_of(dtype);
    if (memory.elsewhere)
        memory.elsewhere(static_cast<char*>(x->data), bytes, of.fill, memory.poison ? std::min(of.bytes, sizeof of.fill) : 0);
    if (!memory.poison || memory.elsewhere) return x.release();
    auto* data = static_cast<char*>(x->data);
    size_t filled = std::min(of.bytes, sizeof of.fill);
    memcpy(data, &of.fill, filled);
    for (size_t more = 0; filled < bytes; filled += more) {
        more = std::min(filled, bytes - filled);
        memcpy(data + filled, data, more);
    }
    return x.release();
}

// aten::new_empty. The callee owns what is on the stack.
void new_empty(StableIValue* stack) {
    enum { SELF, SIZES, DTYPE, ARGUMENTS = 6 };
    const auto self = reinterpret_cast<AtenTensorHandle>(stack[SELF]);
    const auto sizes = reinterpret_cast<StableListHandle>(stack[SIZES]);
    const auto* dtype = reinterpret_cast<const StableIValue*>(stack[DTYPE]);
    Tensor* made = new_tensor(list(sizes), dtype ? static_cast<int32_t>(*dtype) : tensor(self).dtype);
    for (int i = DTYPE; i < ARGUMENTS; ++i) delete reinterpret_cast<StableIValue*>(stack[i]);
    torch_delete_list(sizes);
    aoti_torch_delete_tensor_object(self);
    stack[0] = reinterpret_cast<StableIValue>(made);
}

}  // namespace

size_t Tensor::bytes() const {
    size_t last = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
        if (sizes[i] < 0 || strides[i] < 0) throw std::runtime_error("a tensor has a negative size or stride");
        if (!sizes[i]) return 0;
        size_t step = 0;
        if (__builtin_mul_overflow(static_cast<size_t>(sizes[i] - 1), static_cast<size_t>(strides[i]), &step) ||
            __builtin_add_overflow(last, step, &last) || last > SIZE_MAX / 32)
            throw std::bad_alloc();
    }
    return (last + 1) * dtype_of(dtype).bytes;
}

void runner::Memory::use(size_t bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    if (bytes > size) throw std::bad_alloc();
    const size_t needed = (bytes + page - 1) / page * page;
    const size_t low = std::min(needed, touchable), high = std::max(needed, touchable);
    if (high > low && !elsewhere && mprotect(start + low, high - low, needed > touchable ? PROT_READ | PROT_WRITE : PROT_NONE))
        throw std::bad_alloc();
    touchable = needed;
    used = bytes;
}

void* runner::Memory::allocate(size_t bytes) {
    const size_t begin = (used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (bytes > size) throw std::bad_alloc();
    use(begin + bytes);
    return start + begin;
}

void* runner::Memory::allocate_guarded(size_t bytes) {
    if (bytes > size) throw std::bad_alloc();
    char* place = static_cast<char*>(allocate(bytes + GUARD));
    if (elsewhere) return place;
    guards.push_back(static_cast<size_t>(place - start) + bytes);
    memset(place + bytes, 0xa5, GUARD);
    return place;
}

void runner::Memory::check_guards() {
    const std::vector<size_t> all = std::move(guards);
    guards.clear();
    for (size_t guard : all)
        if (std::any_of(start + guard, start + guard + GUARD, [](char c) { return c != '\xa5'; }))
            throw std::runtime_error("Memory past the end of an output was written to: an index is out of bounds.");
}

void runner::Memory::check(size_t offset, size_t bytes) const {
    if (offset > used || bytes > used - offset) throw std::runtime_error("a tensor is outside the shared memory");
}

#pragma GCC visibility push(default)
extern "C" {

#define CONSTANT(name, value) \
    int32_t name() { return value; }
#define DTYPE_CONSTANT(name, number, bytes, fill) CONSTANT(aoti_torch_dtype_##name, number)
DTYPES(DTYPE_CONSTANT)
CONSTANT(torch_dtype_float8_e8m0fnu, 44)
CONSTANT(torch_dtype_float4_e2m1fn_x2, 45)
CONSTANT(aoti_torch_device_type_cpu, 0)  // c10::DeviceType
CONSTANT(aoti_torch_device_type_cuda, 1)
CONSTANT(aoti_torch_device_type_xpu, 12)
CONSTANT(aoti_torch_device_type_mps, 13)
CONSTANT(aoti_torch_device_type_meta, 14)
CONSTANT(aoti_torch_device_type_privateuse1, 20)
CONSTANT(aoti_torch_layout_strided, 0)  // c10::Layout
CONSTANT(aoti_torch_layout_sparse_coo, 1)
CONSTANT(aoti_torch_layout_sparse_csr, 2)
CONSTANT(aoti_torch_layout__mkldnn, 3)
CONSTANT(aoti_torch_layout_sparse_csc, 4)
CONSTANT(aoti_torch_layout_sparse_bsr, 5)
CONSTANT(aoti_torch_layout_sparse_bsc, 6)
CONSTANT(aoti_torch_layout_jagged, 7)
size_t aoti_torch_dtype_element_size(int32_t dtype) { return dtype_of(dtype).bytes; }
uint64_t aoti_torch_abi_version() { return TORCH_ABI_VERSION; }
const char* torch_exception_get_what() { return last_error.c_str(); }
const char* torch_exception_get_what_without_backtrace() { return last_error.c_str(); }

// ---- tensors

AOTITorchError aoti_torch_new_tensor_handle(AtenTensorHandle x, AtenTensorHandle* same) {
    ++tensor(x).owners;
    *same = x;
    return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle x) {
    if (!--tensor(x).owners) delete &tensor(x);
    return AOTI_TORCH_SUCCESS;
}

#define ATTRIBUTE(name, type, value) \
    AOTITorchError name([[maybe_unused]] AtenTensorHandle x, type* into) { return caught([&] { *into = value; }); }
ATTRIBUTE(aoti_torch_get_data_ptr, void*, tensor(x).data)
ATTRIBUTE(aoti_torch_get_dim, int64_t, static_cast<int64_t>(tensor(x).sizes.size()))
ATTRIBUTE(aoti_torch_get_sizes, int64_t*, tensor(x).sizes.data())
ATTRIBUTE(aoti_torch_get_dtype, int32_t, tensor(x).dtype)
ATTRIBUTE(aoti_torch_get_device_type, int32_t, aoti_torch_device_type_cpu())
ATTRIBUTE(aoti_torch_get_device_index, int32_t, -1)
ATTRIBUTE(aoti_torch_is_contiguous, bool, is_contiguous(tensor(x)))
AOTITorchError aoti_torch_get_numel(AtenTensorHandle x, int64_t* count) {
    *count = 1;
    for (int64_t size : tensor(x).sizes) *count *= size;
    return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_get_size(AtenTensorHandle x, int64_t dimension, int64_t* size) {
    return caught([&] { *size = along(tensor(x).sizes, dimension); });
}
AOTITorchError aoti_torch_get_stride(AtenTensorHandle x, int64_t dimension, int64_t* stride) {
    return caught([&] { *stride = along(tensor(x).strides, dimension); });
}

// ---- lists, and boxed values

AOTITorchError torch_new_list_reserve_size(size_t size, StableListHandle* made) {
    return caught([&] {
        *made = reinterpret_cast<StableListHandle>(new List());
        list(*made).reserve(size);
    });
}
AOTITorchError torch_list_push_back(StableListHandle to, StableIValue value) {
    return caught([&] { list(to).push_back(value); });
}
AOTITorchError torch_delete_list(StableListHandle gone) { return caught([&] { delete &list(gone); }); }
AOTITorchError torch_new_stable_ivalue(StableIValue** made) { return caught([&] { *made = new StableIValue(); }); }
AOTITorchError torch_delete_stable_ivalue(StableIValue* gone) { return caught([&] { delete gone; }); }

// ---- operators

AOTITorchError aoti_torch_library_init_def(const char* name, const char*, uint32_t, TorchLibraryHandle* made) {
    return new_library(name, made);
}
AOTITorchError aoti_torch_library_init_fragment(const char* name, const char*, uint32_t, TorchLibraryHandle* made) {
    return new_library(name, made);
}
AOTITorchError aoti_torch_library_init_impl(const char* name, const char*, const char*, uint32_t,
                                            TorchLibraryHandle* made) {
    return new_library(name, made);
}
AOTITorchError aoti_torch_delete_library_object(TorchLibraryHandle gone) {
    return caught([&] { delete &library(gone); });
}
AOTITorchError aoti_torch_library_def(TorchLibraryHandle of, const char* schema) {
    const std::string text = schema;
    return caught([&] { runner::operators[library(of) + "::" + text.substr(0, text.find('('))].schema = text; });
}
AOTITorchError torch_library_impl(TorchLibraryHandle of, const char* name, runner::Kernel kernel, uint64_t) {
    return caught([&] { runner::operators[library(of) + "::" + name].kernel = kernel; });
}
AOTITorchError torch_call_dispatcher(const char* name, const char*, StableIValue* stack, uint64_t) {
    return caught([&] {
        if (name != std::string("aten::new_empty"))
            throw std::runtime_error(std::string("the runner has no ") + name + ": --in-process has it, with PyTorch");
        new_empty(stack);
    });
}

}  // extern "C"
#pragma GCC visibility pop
