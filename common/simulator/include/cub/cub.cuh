// cub.cuh - the parts of CUB that kernels use most: warp and block reductions and scans, block loads and stores, radix
// sorts, and device-wide reductions, scans and sorts.
//
// Reimplemented for the simulator: CUB's own headers need nvcc.
#pragma once
#include <cuda_runtime.h>

#include <type_traits>

namespace cub {

#define SIMULATOR_OPERATION(Name, expression)                                            \
    struct Name {                                                                        \
        template <typename T>                                                            \
        T operator()(const T& a, const T& b) const { return expression; }                \
    };
SIMULATOR_OPERATION(Sum, a + b)
SIMULATOR_OPERATION(Max, a < b ? b : a)
SIMULATOR_OPERATION(Min, b < a ? b : a)
#undef SIMULATOR_OPERATION
template <typename K, typename V>
struct KeyValuePair {
    K key;
    V value;
};

using simulator::Position;

// Overloads that warp and block scans share: with an operation or as a sum, with or without the total.
#define SIMULATOR_SCANS                                                                                                   \
    template <typename Operation>                                                                                         \
    void ExclusiveScan(T in, T& out, T initial, Operation operation, Position at = simulator::here()) {                   \
        T total;                                                                                                          \
        ExclusiveScan(in, out, initial, operation, total, at);                                                            \
    }                                                                                                                     \
    void InclusiveSum(T in, T& out, Position at = simulator::here()) { InclusiveScan(in, out, Sum(), at); }               \
    void InclusiveSum(T in, T& out, T& total, Position at = simulator::here()) { InclusiveScan(in, out, Sum(), total, at); } \
    void ExclusiveSum(T in, T& out, Position at = simulator::here()) { ExclusiveScan(in, out, T{}, Sum(), at); }          \
    void ExclusiveSum(T in, T& out, T& total, Position at = simulator::here()) { ExclusiveScan(in, out, T{}, Sum(), total, at); }

// ---- warps, or groups of LANES lanes
namespace details {
template <int LANES>
struct LogicalWarp {
    static_assert(LANES >= 1 && LANES <= 32);
    const int lane = static_cast<int>(simulator::current_thread()->lane), rank = lane % LANES;
    // Participating lanes: only if LANES is a power of two may the warp's other lanes be elsewhere.
    const unsigned mask = LANES & (LANES - 1) ? ~0u : ~0u >> (32 - LANES) << (lane - rank);
};
}  // namespace details

template <typename T, int LANES = 32>
class WarpReduce : details::LogicalWarp<LANES> {
  public:
    struct TempStorage {};
    explicit WarpReduce(TempStorage&) {}
    // Only the first lane gets the result.
    template <typename Operation>
    T Reduce(T value, Operation operation, int valid = LANES, Position at = simulator::here()) {
        for (int distance = 1; distance < LANES; distance *= 2) {
            const int from = this->rank + distance < LANES ? this->lane + distance : this->lane;
            const T other = simulator::exchange(this->mask, value, from, "WarpReduce", at);
            if (this->rank + distance < valid) value = operation(value, other);
        }
        return value;
    }
    T Sum(T value, int valid = LANES, Position at = simulator::here()) { return Reduce(value, cub::Sum(), valid, at); }
};

template <typename T, int LANES = 32>
class WarpScan : details::LogicalWarp<LANES> {
    T from(T value, int lane, Position at) { return simulator::exchange(this->mask, value, lane, "WarpScan", at); }

  public:
    struct TempStorage {};
    explicit WarpScan(TempStorage&) {}
    template <typename Operation>
    void InclusiveScan(T in, T& out, Operation operation, Position at = simulator::here()) {
        for (int distance = 1; distance < LANES; distance *= 2) {
            const T other = from(in, this->rank >= distance ? this->lane - distance : this->lane, at);
            if (this->rank >= distance) in = operation(other, in);
        }
        out = in;
    }
    template <typename Operation>
    void InclusiveScan(T in, T& out, Operation operation, T& total, Position at = simulator::here()) {
        InclusiveScan(in, out, operation, at);
        total = from(out, this->lane - this->rank + LANES - 1, at);
    }
    template <typename Operation>
    void ExclusiveScan(T in, T& out, T initial, Operation operation, T& total, Position at = simulator::here()) {
        T all;
        InclusiveScan(in, all, operation, total, at);
        const T before = from(all, this->rank ? this->lane - 1 : this->lane, at);
        out = this->rank ? operation(initial, before) : initial;
    }
    SIMULATOR_SCANS
    T Broadcast(T value, int rank, Position at = simulator::here()) { return from(value, this->lane - this->rank + rank, at); }
};

// ---- blocks
enum BlockReduceAlgorithm { BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS };
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };
enum BlockLoadAlgorithm { BLOCK_LOAD_DIRECT, BLOCK_LOAD_STRIPED, BLOCK_LOAD_VECTORIZE, BLOCK_LOAD_TRANSPOSE, BLOCK_LOAD_WARP_TRANSPOSE };
enum BlockStoreAlgorithm { BLOCK_STORE_DIRECT, BLOCK_STORE_STRIPED, BLOCK_STORE_VECTORIZE, BLOCK_STORE_TRANSPOSE, BLOCK_STORE_WARP_TRANSPOSE };

namespace details {
inline int thread_rank() {
    return static_cast<int>((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x);
}
// The index of a thread's element i in the block's tile.
template <int THREADS, int N>
int place(int i, bool striped) {
    return striped ? i * THREADS + thread_rank() : thread_rank() * N + i;
}
template <typename T, int THREADS>
struct OneEach {
    T values[THREADS];
    // After it returns, each thread may read the values of all.
    void share(T value, const char* operation, Position at) {
        values[thread_rank()] = value;
        simulator::barrier(false, operation, at);
    }
    // Folds the values of threads [first, end) into `value`.
    template <typename Operation>
    T folded(T value, int first, int end, Operation operation) const {
        for (int i = first; i < end; ++i) value = operation(value, values[i]);
        return value;
    }
};
}  // namespace details

// As in CUB, the kernel must call __syncthreads() before it reuses the storage.
template <typename T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1>
class BlockReduce {
    static constexpr int THREADS = X * Y * Z;

  public:
    using TempStorage = details::OneEach<T, THREADS>;
    explicit BlockReduce(TempStorage& storage) : storage_(storage) {}
    // Only thread 0 gets the result.
    template <typename Operation>
    T Reduce(T value, Operation operation, int valid = THREADS, Position at = simulator::here()) {
        storage_.share(value, "BlockReduce", at);
        const int rank = details::thread_rank();
        if (rank % 32 == 0 && rank < valid)  // a warp's values, then those of all warps
            storage_.values[rank] = storage_.folded(value, rank + 1, rank + 32 < valid ? rank + 32 : valid, operation);
        if (THREADS > 32) simulator::barrier(false, "BlockReduce", at);
        if (rank == 0) value = storage_.values[0];
        for (int i = 32; rank == 0 && i < valid; i += 32) value = operation(value, storage_.values[i]);
        return value;
    }
    template <int N, typename Operation>
    T Reduce(T (&values)[N], Operation operation, Position at = simulator::here()) {
        T value = values[0];
        for (int i = 1; i < N; ++i) value = operation(value, values[i]);
        return Reduce(value, operation, THREADS, at);
    }
    T Sum(T value, int valid = THREADS, Position at = simulator::here()) { return Reduce(value, cub::Sum(), valid, at); }
    template <int N>
    T Sum(T (&values)[N], Position at = simulator::here()) {
        return Reduce(values, cub::Sum(), at);
    }

  private:
    TempStorage& storage_;
};

template <typename T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1>
class BlockScan {
    static constexpr int THREADS = X * Y * Z;

  public:
    using TempStorage = details::OneEach<T, THREADS>;
    explicit BlockScan(TempStorage& storage) : storage_(storage) {}

    template <typename Operation>
    void InclusiveScan(T in, T& out, Operation operation, T& total, Position at = simulator::here()) {
        storage_.share(in, "BlockScan", at);
        out = storage_.folded(storage_.values[0], 1, details::thread_rank() + 1, operation);
        total = storage_.folded(storage_.values[0], 1, THREADS, operation);
    }
    template <typename Operation>
    void ExclusiveScan(T in, T& out, T initial, Operation operation, T& total, Position at = simulator::here()) {
        storage_.share(in, "BlockScan", at);
        out = storage_.folded(initial, 0, details::thread_rank(), operation);
        total = storage_.folded(storage_.values[0], 1, THREADS, operation);
    }
    template <typename Operation>
    void InclusiveScan(T in, T& out, Operation operation, Position at = simulator::here()) {
        T total;
        InclusiveScan(in, out, operation, total, at);
    }
    SIMULATOR_SCANS
    template <int N>
    void ExclusiveSum(T (&in)[N], T (&out)[N], Position at = simulator::here()) {
        T own{}, before;
        for (const T& value : in) own = own + value;
        ExclusiveSum(own, before, at);
        for (int i = 0; i < N; ++i) {
            const T value = in[i];
            out[i] = before;
            before = before + value;
        }
    }
    template <int N>
    void InclusiveSum(T (&in)[N], T (&out)[N], Position at = simulator::here()) {
        T own{}, before;
        for (const T& value : in) own = own + value;
        ExclusiveSum(own, before, at);
        for (int i = 0; i < N; ++i) out[i] = before = before + in[i];
    }

  private:
    TempStorage& storage_;
};

template <typename T, int X, int N, BlockLoadAlgorithm ALGORITHM = BLOCK_LOAD_DIRECT, int Y = 1, int Z = 1>
class BlockLoad {
  public:
    struct TempStorage {};
    explicit BlockLoad(TempStorage&) {}
    template <typename Iterator>
    void Load(Iterator from, T (&values)[N], int valid = X * Y * Z * N, T otherwise = T{}) {
        for (int i = 0; i < N; ++i) {
            const int at = details::place<X * Y * Z, N>(i, ALGORITHM == BLOCK_LOAD_STRIPED);
            values[i] = at < valid ? static_cast<T>(from[at]) : otherwise;
        }
    }
};
template <typename T, int X, int N, BlockStoreAlgorithm ALGORITHM = BLOCK_STORE_DIRECT, int Y = 1, int Z = 1>
class BlockStore {
  public:
    struct TempStorage {};
    explicit BlockStore(TempStorage&) {}
    template <typename Iterator>
    void Store(Iterator to, T (&values)[N], int valid = X * Y * Z * N) {
        for (int i = 0; i < N; ++i) {
            const int at = details::place<X * Y * Z, N>(i, ALGORITHM == BLOCK_STORE_STRIPED);
            if (at < valid) to[at] = values[i];
        }
    }
};

// ---- device-wide: run by a kernel of one thread; a first call with null storage returns the size of the storage
namespace details {
template <typename Work>
cudaError_t on_device(void* storage, size_t& bytes, const char* name, Work work, Position at) {
    if (!storage) return bytes = 1, cudaSuccess;
#ifdef SIMULATOR_GRADED
    simulator::fail("%s:%d: cub::%s can't be graded: here one thread does its work; write a kernel", at.file, at.line, name);
#endif
    return simulator::error_alone([&] {
        simulator::launch({name, at, nullptr, [](void* data) { (*static_cast<Work*>(data))(); }, &work}, dim3(1), dim3(1), 0);
    });
}
}  // namespace details

struct DeviceReduce {
    template <typename In, typename Out, typename Operation, typename T>
    static cudaError_t Reduce(void* storage, size_t& bytes, In in, Out out, int n, Operation operation, T initial,
                              cudaStream_t = nullptr, Position at = simulator::here()) {
        return details::on_device(storage, bytes, "DeviceReduce", [=] {
            T value = initial;
            for (int i = 0; i < n; ++i) value = operation(value, static_cast<T>(in[i]));
            *out = value;
        }, at);
    }
#define SIMULATOR_DEVICE_REDUCE(name, operation)                                                                    \
    template <typename In, typename Out>                                                                            \
    static cudaError_t name(void* storage, size_t& bytes, In in, Out out, int n, cudaStream_t = nullptr,            \
                            Position at = simulator::here()) {                                                      \
        return details::on_device(storage, bytes, "DeviceReduce", [=] {                                             \
            auto value = in[0];                                                                                     \
            for (int i = 1; i < n; ++i) value = operation()(value, in[i]);                                          \
            *out = value;                                                                                           \
        }, at);                                                                                                     \
    }
    SIMULATOR_DEVICE_REDUCE(Sum, cub::Sum)
    SIMULATOR_DEVICE_REDUCE(Max, cub::Max)
    SIMULATOR_DEVICE_REDUCE(Min, cub::Min)
#undef SIMULATOR_DEVICE_REDUCE
};
struct DeviceScan {
#define SIMULATOR_DEVICE_SCAN(name, given)                                                                          \
    template <typename In, typename Out>                                                                            \
    static cudaError_t name(void* storage, size_t& bytes, In in, Out out, int n, cudaStream_t = nullptr,            \
                            Position at = simulator::here()) {                                                      \
        return details::on_device(storage, bytes, "DeviceScan", [=] {                                               \
            std::remove_cv_t<std::remove_reference_t<decltype(in[0])>> sum{};                                       \
            for (int i = 0; i < n; ++i) {                                                                           \
                [[maybe_unused]] const auto before = sum;                                                           \
                sum = sum + in[i]; /* before out[i], which may alias in[i] */                                       \
                out[i] = given;                                                                                     \
            }                                                                                                       \
        }, at);                                                                                                     \
    }
    SIMULATOR_DEVICE_SCAN(ExclusiveSum, before)
    SIMULATOR_DEVICE_SCAN(InclusiveSum, sum)
#undef SIMULATOR_DEVICE_SCAN
};

// ---- radix sort: stable, by the bits [begin, end)
template <typename T>
struct DoubleBuffer {
    T* d_buffers[2] = {};
    int selector = 0;
    DoubleBuffer() = default;
    DoubleBuffer(T* current, T* alternate) : d_buffers{current, alternate} {}
    T* Current() { return d_buffers[selector]; }
    T* Alternate() { return d_buffers[selector ^ 1]; }
};
struct NullType {};

template <typename K, int X, int N, typename V = NullType, int BITS = 4, bool MEMOIZE = true, int SCAN = 0, int CONFIG = 0, int Y = 1, int Z = 1>
class BlockRadixSort {
    static constexpr int THREADS = X * Y * Z, ALL = THREADS * N;
    static constexpr bool PAIRS = !std::is_same_v<V, NullType>;

  public:
    struct TempStorage {
        K keys[2][ALL];
        V values[2][PAIRS ? ALL : 1];
    };
    explicit BlockRadixSort(TempStorage& storage) : storage_(storage) {}
#define SIMULATOR_BLOCK_SORT(name, descending, striped)                                                                       \
    void name(K (&keys)[N], int begin = 0, int end = sizeof(K) * 8) { sort<descending, striped>(keys, nullptr, begin, end); } \
    void name(K (&keys)[N], V (&values)[N], int begin = 0, int end = sizeof(K) * 8) {                                         \
        sort<descending, striped>(keys, values, begin, end);                                                                 \
    }
    SIMULATOR_BLOCK_SORT(Sort, false, false)
    SIMULATOR_BLOCK_SORT(SortDescending, true, false)
    SIMULATOR_BLOCK_SORT(SortBlockedToStriped, false, true)
    SIMULATOR_BLOCK_SORT(SortDescendingBlockedToStriped, true, true)
#undef SIMULATOR_BLOCK_SORT

  private:
    template <bool DESCENDING, bool STRIPED>
    void sort(K (&keys)[N], V* values, int begin, int end) {
        for (int i = 0; i < N; ++i) {
            const int to = details::place<THREADS, N>(i, false);
            storage_.keys[0][to] = keys[i];
            if constexpr (PAIRS)
                if (values) storage_.values[0][to] = values[i];
        }
        __syncthreads();
        if (details::thread_rank() == 0)
            simulator::radix_sort(storage_.keys[0], values ? storage_.values[0] : nullptr, storage_.keys[1], storage_.values[1], ALL,
                                DESCENDING, begin, end);
        __syncthreads();
        for (int i = 0; i < N; ++i) {
            const int from = details::place<THREADS, N>(i, STRIPED);
            keys[i] = storage_.keys[0][from];
            if constexpr (PAIRS)
                if (values) values[i] = storage_.values[0][from];
        }
    }
    TempStorage& storage_;
};

struct DeviceRadixSort {
#define SIMULATOR_DEVICE_SORT(Keys, Pairs, descending)                                                                        \
    template <typename K>                                                                                                     \
    static cudaError_t Keys(void* storage, size_t& bytes, const K* in, K* out, int n, int begin = 0, int end = sizeof(K) * 8, \
                            cudaStream_t = nullptr, Position at = simulator::here()) {                                        \
        return sort(storage, bytes, in, out, static_cast<const char*>(nullptr), static_cast<char*>(nullptr), n, descending, begin, end, at); \
    }                                                                                                                         \
    template <typename K>                                                                                                     \
    static cudaError_t Keys(void* storage, size_t& bytes, DoubleBuffer<K>& keys, int n, int begin = 0, int end = sizeof(K) * 8, \
                            cudaStream_t = nullptr, Position at = simulator::here()) {                                        \
        if (storage) keys.selector ^= 1;                                                                                      \
        return Keys(storage, bytes, keys.Alternate(), keys.Current(), n, begin, end, nullptr, at);                            \
    }                                                                                                                         \
    template <typename K, typename V>                                                                                         \
    static cudaError_t Pairs(void* storage, size_t& bytes, const K* in, K* out, const V* values_in, V* values_out, int n,     \
                             int begin = 0, int end = sizeof(K) * 8, cudaStream_t = nullptr, Position at = simulator::here()) { \
        return sort(storage, bytes, in, out, values_in, values_out, n, descending, begin, end, at);                           \
    }                                                                                                                         \
    template <typename K, typename V>                                                                                         \
    static cudaError_t Pairs(void* storage, size_t& bytes, DoubleBuffer<K>& keys, DoubleBuffer<V>& values, int n, int begin = 0, \
                             int end = sizeof(K) * 8, cudaStream_t = nullptr, Position at = simulator::here()) {              \
        if (storage) keys.selector ^= 1, values.selector ^= 1;                                                                \
        return Pairs(storage, bytes, keys.Alternate(), keys.Current(), values.Alternate(), values.Current(), n, begin, end, nullptr, at); \
    }
    SIMULATOR_DEVICE_SORT(SortKeys, SortPairs, false)
    SIMULATOR_DEVICE_SORT(SortKeysDescending, SortPairsDescending, true)
#undef SIMULATOR_DEVICE_SORT

  private:
    template <typename K, typename V>
    static cudaError_t sort(void* storage, size_t& bytes, const K* in, K* out, const V* values_in, V* values_out, int n, bool descending,
                            int begin, int end, Position at) {
        const size_t needed = static_cast<size_t>(n) * (sizeof(K) + (values_in ? sizeof(V) : 0)) + 16;
        if (!storage) return bytes = needed, cudaSuccess;
        SIMULATOR_NEED(bytes >= needed && begin >= 0 && end <= static_cast<int>(sizeof(K) * 8), cudaErrorInvalidValue);
        return details::on_device(storage, bytes, "DeviceRadixSort", [=] {
            for (int i = 0; i < n; ++i) {
                out[i] = in[i];
                if (values_in) values_out[i] = values_in[i];
            }
            V* const other = reinterpret_cast<V*>((reinterpret_cast<uintptr_t>(static_cast<K*>(storage) + n) + alignof(V) - 1) & ~(alignof(V) - 1));
            simulator::radix_sort(out, values_out, static_cast<K*>(storage), other, n, descending, begin, end);
        }, at);
    }
};

}  // namespace cub
