// shim.h - the tensors of the runner's LibTorch substitute (shim.cpp), and their memory.
#pragma once
#include <torch/csrc/stable/c/shim.h>

#include <atomic>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace runner {

// What an AtenTensorHandle points to. Its elements are in the memory shared with the test.
struct Tensor {
    void* data = nullptr;
    int32_t dtype = 0;
    std::vector<int64_t> sizes, strides;
    std::atomic<int> owners{1};

    size_t bytes() const;  // from the first element to the end of the last
};

// The memory shared with the test. Only the used part is accessible, rounded up to pages: an access far outside a
// tensor faults, as on the heap.
struct Memory {
    char* start = nullptr;
    size_t size = 0, used = 0, touchable = 0;
    // In grading: has the device process fill and guard an output, whose memory is not mapped here.
    void (*elsewhere)(char* address, size_t bytes, uint64_t pattern, size_t width) = nullptr;
    bool poison = true;  // fill new tensors with NaN, integers with the largest value

    void use(size_t bytes);           // sets the used size; throws std::bad_alloc, as do the allocate functions
    void* allocate(size_t bytes);     // allocates after the used part
    void* allocate_guarded(size_t bytes);  // the same, followed by GUARD bytes that must not be written
    void check_guards();                   // throws std::runtime_error if a guard of this call was written
    void check(size_t offset, size_t bytes) const;  // throws std::runtime_error unless the range is in use

    static constexpr size_t GUARD = 4096;
    std::vector<size_t> guards;  // their offsets
};
inline Memory memory;

using Kernel = void (*)(StableIValue* stack, uint64_t arguments, uint64_t outputs);
struct Operator {
    std::string schema;
    Kernel kernel = nullptr;
};
inline std::map<std::string, Operator> operators;  // "namespace::name" -> operator registered by a library

}  // namespace runner
