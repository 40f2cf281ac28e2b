// shim.cpp - the functions of LibTorch's stable C interface that a binding.cpp imports, without LibTorch.
//
// Their signatures are those of torch's own headers, which the compiler compares. What a binding can do is: register
// operators, look at tensors, and make new ones (aten::new_empty). Anything else fails with a sentence.
#include "shim.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

namespace runner {

namespace {

constexpr size_t ALIGNMENT = 64;  // of every tensor, as PyTorch's allocator

enum Dtype : int32_t {  // c10::ScalarType
    UINT8, INT8, INT16, INT32, INT64, FLOAT16, FLOAT32, FLOAT64, COMPLEX32, COMPLEX64, COMPLEX128, BOOL,
    BFLOAT16 = 15, FLOAT8_E5M2 = 23, FLOAT8_E4M3FN, FLOAT8_E5M2FNUZ, FLOAT8_E4M3FNUZ, UINT16, UINT32, UINT64,
    FLOAT8_E8M0FNU = 44, FLOAT4_E2M1FN_X2
};

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

size_t in_pages(size_t bytes) {
    static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return (bytes + page - 1) / page * page;
}

template <typename Value>
void fill(void* data, size_t count, Value value) {
    std::uninitialized_fill_n(static_cast<Value*>(data), count, value);
}

// As torch.utils.deterministic.fill_uninitialized_memory: NaN, the largest value of integers, true.
void poison(void* data, size_t count, int32_t dtype) {
    switch (dtype) {
        case FLOAT32: return fill(data, count, std::numeric_limits<float>::quiet_NaN());
        case FLOAT64: return fill(data, count, std::numeric_limits<double>::quiet_NaN());
        case FLOAT16: return fill(data, count, uint16_t{0x7e00});
        case BFLOAT16: return fill(data, count, uint16_t{0x7fc0});
        case INT8: return fill(data, count, std::numeric_limits<int8_t>::max());
        case INT16: return fill(data, count, std::numeric_limits<int16_t>::max());
        case INT32: return fill(data, count, std::numeric_limits<int32_t>::max());
        case INT64: return fill(data, count, std::numeric_limits<int64_t>::max());
        case BOOL: return fill(data, count, true);
        default: memset(data, 0xff, count * element_size(dtype));  // NaN, or the largest
    }
}

}  // namespace

void Memory::open(int file, size_t bytes) {
    void* start = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (start == MAP_FAILED) throw std::bad_alloc();
    start_ = static_cast<char*>(start);
    bytes_ = bytes;
}

void Memory::use(size_t bytes) {
    const size_t needed = in_pages(bytes);
    if (bytes > bytes_ || needed > bytes_) throw std::bad_alloc();
    const size_t low = std::min(needed, touchable_), high = std::max(needed, touchable_);
    if (high > low && mprotect(start_ + low, high - low, needed > touchable_ ? PROT_READ | PROT_WRITE : PROT_NONE))
        throw std::bad_alloc();
    touchable_ = needed;
    used_ = bytes;
}

void* Memory::allocate(size_t bytes) {
    const size_t begin = (used_ + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (bytes > bytes_) throw std::bad_alloc();
    use(begin + bytes);
    return start_ + begin;
}

size_t Memory::offset_of(const void* data, size_t bytes) const {
    const size_t offset = static_cast<size_t>(static_cast<const char*>(data) - start_);
    if (offset > used_ || bytes > used_ - offset) throw std::runtime_error("a tensor lies outside the shared memory");
    return offset;
}

char* Memory::at(size_t offset, size_t bytes) const {
    if (offset > used_ || bytes > used_ - offset) throw std::runtime_error("a tensor lies outside the shared memory");
    return start_ + offset;
}

size_t element_size(int32_t dtype) {
    switch (dtype) {
        case UINT8: case INT8: case BOOL: case FLOAT8_E5M2: case FLOAT8_E4M3FN: case FLOAT8_E5M2FNUZ:
        case FLOAT8_E4M3FNUZ: case FLOAT8_E8M0FNU: case FLOAT4_E2M1FN_X2: return 1;
        case INT16: case UINT16: case FLOAT16: case BFLOAT16: return 2;
        case INT32: case UINT32: case FLOAT32: case COMPLEX32: return 4;
        case INT64: case UINT64: case FLOAT64: case COMPLEX64: return 8;
        case COMPLEX128: return 16;
        default: throw std::runtime_error("there is no dtype " + std::to_string(dtype));
    }
}

size_t extent(const Tensor& x) {
    size_t last = 0;
    for (size_t i = 0; i < x.sizes.size(); ++i) {
        if (x.sizes[i] < 0 || x.strides[i] < 0) throw std::runtime_error("a tensor has a negative size or stride");
        if (!x.sizes[i]) return 0;
        size_t step = 0;
        if (__builtin_mul_overflow(static_cast<size_t>(x.sizes[i] - 1), static_cast<size_t>(x.strides[i]), &step) ||
            __builtin_add_overflow(last, step, &last) || last > SIZE_MAX / 32)
            throw std::bad_alloc();
    }
    return (last + 1) * element_size(x.dtype);
}

Tensor* new_empty(std::vector<int64_t> sizes, int32_t dtype) {
    auto x = std::make_unique<Tensor>();
    x->dtype = dtype;
    x->strides.resize(sizes.size());
    int64_t count = 1;
    for (size_t i = sizes.size(); i-- > 0;) {
        if (sizes[i] < 0) throw std::runtime_error("a new tensor has the negative size " + std::to_string(sizes[i]));
        x->strides[i] = std::max<int64_t>(count, 1);
        if (__builtin_mul_overflow(count, sizes[i], &count)) throw std::bad_alloc();
    }
    x->sizes = std::move(sizes);
    const size_t bytes = extent(*x);
    if (bytes) {
        x->data = memory.allocate(bytes);
        if (memory.poison) poison(x->data, bytes / element_size(dtype), dtype);
    }
    return x.release();
}

}  // namespace runner

using runner::caught;
using runner::Tensor;

namespace {

Tensor& tensor(AtenTensorHandle handle) { return *reinterpret_cast<Tensor*>(handle); }
AtenTensorHandle handle(Tensor* x) { return reinterpret_cast<AtenTensorHandle>(x); }

int64_t along(const std::vector<int64_t>& values, int64_t dimension) {
    const auto rank = static_cast<int64_t>(values.size());
    if (dimension < -rank || dimension >= rank)
        throw std::out_of_range("dimension " + std::to_string(dimension) + " of a tensor with " + std::to_string(rank));
    return values[static_cast<size_t>(dimension < 0 ? dimension + rank : dimension)];
}

bool is_contiguous(const Tensor& x) {
    int64_t expected = 1;
    for (size_t i = x.sizes.size(); i-- > 0;) {
        if (x.sizes[i] == 0) return true;
        if (x.sizes[i] == 1) continue;
        if (x.strides[i] != expected) return false;
        expected *= x.sizes[i];
    }
    return true;
}

struct List {
    std::vector<StableIValue> values;
};
List& list(StableListHandle handle) { return *reinterpret_cast<List*>(handle); }

struct Library {
    std::string name;
};
Library& library(TorchLibraryHandle handle) { return *reinterpret_cast<Library*>(handle); }

AOTITorchError new_library(const char* name, TorchLibraryHandle* made) {
    return caught([&] { *made = reinterpret_cast<TorchLibraryHandle>(new Library{name}); });
}

// The tensor and the values behind pointers belong to whoever is called.
void new_empty(StableIValue* stack) {
    enum { SELF, SIZES, DTYPE, LAYOUT, DEVICE, PINNED, ARGUMENTS };
    const auto self = reinterpret_cast<AtenTensorHandle>(stack[SELF]);
    const auto sizes = reinterpret_cast<StableListHandle>(stack[SIZES]);
    const auto* dtype = reinterpret_cast<const StableIValue*>(stack[DTYPE]);
    const std::vector<int64_t> wanted(list(sizes).values.begin(), list(sizes).values.end());
    Tensor* made = runner::new_empty(wanted, dtype ? static_cast<int32_t>(*dtype) : tensor(self).dtype);
    for (int i = DTYPE; i < ARGUMENTS; ++i) delete reinterpret_cast<StableIValue*>(stack[i]);
    torch_delete_list(sizes);
    aoti_torch_delete_tensor_object(self);
    stack[0] = reinterpret_cast<StableIValue>(made);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

#define CONSTANT(name, value) \
    int32_t name() { return value; }

CONSTANT(aoti_torch_device_type_cpu, 0)  // c10::DeviceType
CONSTANT(aoti_torch_device_type_cuda, 1)
CONSTANT(aoti_torch_device_type_xpu, 12)
CONSTANT(aoti_torch_device_type_mps, 13)
CONSTANT(aoti_torch_device_type_meta, 14)
CONSTANT(aoti_torch_device_type_privateuse1, 20)

CONSTANT(aoti_torch_dtype_uint8, runner::UINT8)
CONSTANT(aoti_torch_dtype_int8, runner::INT8)
CONSTANT(aoti_torch_dtype_int16, runner::INT16)
CONSTANT(aoti_torch_dtype_int32, runner::INT32)
CONSTANT(aoti_torch_dtype_int64, runner::INT64)
CONSTANT(aoti_torch_dtype_float16, runner::FLOAT16)
CONSTANT(aoti_torch_dtype_float32, runner::FLOAT32)
CONSTANT(aoti_torch_dtype_float64, runner::FLOAT64)
CONSTANT(aoti_torch_dtype_complex32, runner::COMPLEX32)
CONSTANT(aoti_torch_dtype_complex64, runner::COMPLEX64)
CONSTANT(aoti_torch_dtype_complex128, runner::COMPLEX128)
CONSTANT(aoti_torch_dtype_bool, runner::BOOL)
CONSTANT(aoti_torch_dtype_bfloat16, runner::BFLOAT16)
CONSTANT(aoti_torch_dtype_float8_e5m2, runner::FLOAT8_E5M2)
CONSTANT(aoti_torch_dtype_float8_e4m3fn, runner::FLOAT8_E4M3FN)
CONSTANT(aoti_torch_dtype_float8_e5m2fnuz, runner::FLOAT8_E5M2FNUZ)
CONSTANT(aoti_torch_dtype_float8_e4m3fnuz, runner::FLOAT8_E4M3FNUZ)
CONSTANT(aoti_torch_dtype_uint16, runner::UINT16)
CONSTANT(aoti_torch_dtype_uint32, runner::UINT32)
CONSTANT(aoti_torch_dtype_uint64, runner::UINT64)
CONSTANT(aoti_torch_dtype_float8_e8m0fnu, runner::FLOAT8_E8M0FNU)
CONSTANT(aoti_torch_dtype_float4_e2m1fn_x2, runner::FLOAT4_E2M1FN_X2)
CONSTANT(torch_dtype_float8_e8m0fnu, runner::FLOAT8_E8M0FNU)
CONSTANT(torch_dtype_float4_e2m1fn_x2, runner::FLOAT4_E2M1FN_X2)
size_t aoti_torch_dtype_element_size(int32_t dtype) { return runner::element_size(dtype); }

CONSTANT(aoti_torch_layout_strided, 0)  // c10::Layout
CONSTANT(aoti_torch_layout_sparse_coo, 1)
CONSTANT(aoti_torch_layout_sparse_csr, 2)
CONSTANT(aoti_torch_layout__mkldnn, 3)
CONSTANT(aoti_torch_layout_sparse_csc, 4)
CONSTANT(aoti_torch_layout_sparse_bsr, 5)
CONSTANT(aoti_torch_layout_sparse_bsc, 6)
CONSTANT(aoti_torch_layout_jagged, 7)

uint64_t aoti_torch_abi_version() { return TORCH_ABI_VERSION; }
const char* torch_exception_get_what() { return runner::last_error.c_str(); }
const char* torch_exception_get_what_without_backtrace() { return runner::last_error.c_str(); }

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
AOTITorchError aoti_torch_new_uninitialized_tensor(AtenTensorHandle* made) {
    return caught([&] { *made = handle(new Tensor()); });
}

#define ATTRIBUTE(name, type, value)                       \
    AOTITorchError name(AtenTensorHandle of, type* into) { \
        const Tensor& x = tensor(of);                      \
        static_cast<void>(x);                              \
        *into = value;                                     \
        return AOTI_TORCH_SUCCESS;                         \
    }

ATTRIBUTE(aoti_torch_get_data_ptr, void*, x.data)
ATTRIBUTE(torch_get_mutable_data_ptr, void*, x.data)
ATTRIBUTE(torch_get_const_data_ptr, const void*, x.data)
ATTRIBUTE(aoti_torch_get_dim, int64_t, static_cast<int64_t>(x.sizes.size()))
ATTRIBUTE(aoti_torch_get_sizes, int64_t*, const_cast<int64_t*>(x.sizes.data()))
ATTRIBUTE(aoti_torch_get_strides, int64_t*, const_cast<int64_t*>(x.strides.data()))
ATTRIBUTE(aoti_torch_get_dtype, int32_t, x.dtype)
ATTRIBUTE(aoti_torch_get_device_type, int32_t, aoti_torch_device_type_cpu())
ATTRIBUTE(aoti_torch_get_device_index, int32_t, -1)
ATTRIBUTE(aoti_torch_get_layout, int32_t, aoti_torch_layout_strided())
ATTRIBUTE(aoti_torch_get_storage_offset, int64_t, 0)
ATTRIBUTE(aoti_torch_is_contiguous, bool, is_contiguous(x))
ATTRIBUTE(aoti_torch_is_defined, bool, x.data || !x.sizes.empty())

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

// ---- lists and values behind pointers

AOTITorchError torch_new_list_reserve_size(size_t size, StableListHandle* made) {
    return caught([&] {
        auto fresh = std::make_unique<List>();
        fresh->values.reserve(size);
        *made = reinterpret_cast<StableListHandle>(fresh.release());
    });
}
AOTITorchError torch_list_push_back(StableListHandle to, StableIValue value) {
    return caught([&] { list(to).values.push_back(value); });
}
AOTITorchError torch_list_size(StableListHandle of, size_t* size) {
    *size = list(of).values.size();
    return AOTI_TORCH_SUCCESS;
}
AOTITorchError torch_list_get_item(StableListHandle of, size_t index, StableIValue* value) {
    return caught([&] { *value = list(of).values.at(index); });
}
AOTITorchError torch_delete_list(StableListHandle gone) {
    delete &list(gone);
    return AOTI_TORCH_SUCCESS;
}
AOTITorchError torch_new_stable_ivalue(StableIValue** made) {
    return caught([&] { *made = new StableIValue(); });
}
AOTITorchError torch_delete_stable_ivalue(StableIValue* gone) {
    delete gone;
    return AOTI_TORCH_SUCCESS;
}

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
    delete &library(gone);
    return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_library_def(TorchLibraryHandle of, const char* schema) {
    return caught([&] {
        const std::string text = schema, name = library(of).name + "::" + text.substr(0, text.find('('));
        runner::operators[name].schema = text;
    });
}
AOTITorchError torch_library_impl(TorchLibraryHandle of, const char* name, runner::Kernel kernel, uint64_t) {
    return caught([&] { runner::operators[library(of).name + "::" + name].kernel = kernel; });
}
AOTITorchError torch_call_dispatcher(const char* name, const char*, StableIValue* stack, uint64_t) {
    return caught([&] {
        if (name != std::string("aten::new_empty"))
            throw std::runtime_error(std::string("without PyTorch there is no ") + name +
                                     ": --in-process runs the kernels with it");
        new_empty(stack);
    });
}

}  // extern "C"
#pragma GCC visibility pop
