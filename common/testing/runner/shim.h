// shim.h - the tensors that the runner's LibTorch hands out (shim.cpp), and the memory that they lie in.
#pragma once
#include <torch/csrc/stable/c/shim.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace runner {

// What AtenTensorHandle points to. Its elements lie in the shared memory, where the test process sees them.
struct Tensor {
    void* data = nullptr;
    int32_t dtype = 0;
    std::vector<int64_t> sizes, strides;
    std::atomic<int> owners{1};
};

// The memory shared with the test process. Only [0, used) can be touched, rounded up to pages: what lies far outside a
// tensor is no memory, as it would be on the heap.
class Memory {
public:
    void open(int file, size_t bytes);
    void use(size_t bytes);           // the test process has laid out that many
    void* allocate(size_t bytes);     // behind them; throws std::bad_alloc
    size_t offset_of(const void* data, size_t bytes) const;  // throws std::runtime_error where that is outside
    char* at(size_t offset, size_t bytes) const;             // the same the other way round
    size_t used() const { return used_; }
    bool poison = true;  // whether new tensors are filled, see new_empty()

private:
    char* start_ = nullptr;
    size_t bytes_ = 0, used_ = 0, touchable_ = 0;
};
inline Memory memory;

size_t element_size(int32_t dtype);                           // throws std::runtime_error for what is no dtype
size_t extent(const Tensor& x);                               // bytes from its first to behind its last element
Tensor* new_empty(std::vector<int64_t> sizes, int32_t dtype);  // NaN, for integers the largest value, if memory.poison

using Kernel = void (*)(StableIValue* stack, uint64_t arguments, uint64_t outputs);
struct Operator {
    std::string schema;
    Kernel kernel = nullptr;
};
inline std::map<std::string, Operator> operators;  // "namespace::name" -> what libraries have registered

}  // namespace runner
