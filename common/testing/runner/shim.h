// shim.h - the tensors that the runner's LibTorch hands out (shim.cpp), and the memory that they are in.
#pragma once
#include <torch/csrc/stable/c/shim.h>

#include <atomic>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace runner {

// What AtenTensorHandle points to. Its elements are in the memory, where the test sees them.
struct Tensor {
    void* data = nullptr;
    int32_t dtype = 0;
    std::vector<int64_t> sizes, strides;
    std::atomic<int> owners{1};

    size_t bytes() const;  // from its first to past its last element
};

// The memory shared with the test. Only what is used can be touched, rounded up to pages: what is far outside a
// tensor is no memory, as on the heap.
struct Memory {
    char* start = nullptr;
    size_t size = 0, used = 0, touchable = 0;
    // In grading: the device's process fills and guards an output; here its memory isn't mapped.
    void (*elsewhere)(char* address, size_t bytes, uint64_t pattern, size_t width) = nullptr;
    bool poison = true;  // new tensors are filled: with NaN, integers with the largest value

    void use(size_t bytes);           // bytes of it are taken; throws std::bad_alloc, as does what follows
    void* allocate(size_t bytes);     // after them
    void* allocate_guarded(size_t bytes);  // the same, before GUARD bytes that nothing may write
    void check_guards();                   // of this call: throws std::runtime_error if something did
    void check(size_t offset, size_t bytes) const;  // throws std::runtime_error unless that is in use

    static constexpr size_t GUARD = 4096;
    std::vector<size_t> guards;  // where they begin
};
inline Memory memory;

using Kernel = void (*)(StableIValue* stack, uint64_t arguments, uint64_t outputs);
struct Operator {
    std::string schema;
    Kernel kernel = nullptr;
};
inline std::map<std::string, Operator> operators;  // "namespace::name" -> what libraries have registered

}  // namespace runner
