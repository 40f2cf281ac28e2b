// cub.cuh - the parts of CUB that kernels use most: reductions and scans of a warp and of a block, loads and stores of
// tiles, and sums over the whole device.
//
// Written anew for the simulator: CUB's own headers need nvcc.
#pragma once
#include <cuda_runtime.h>

#include <type_traits>

namespace cub {

struct Sum {
    template <typename T>
    T operator()(const T& a, const T& b) const {
        return a + b;
    }
};
struct Max {
    template <typename T>
    T operator()(const T& a, const T& b) const {
        return a < b ? b : a;
    }
};
struct Min {
    template <typename T>
    T operator()(const T& a, const T& b) const {
        return b < a ? b : a;
    }
};
template <typename K, typename V>
struct KeyValuePair {
    K key;
    V value;
};

using simulator::Position;

// ---- a warp, or LANES of it
template <typename T, int LANES = 32>
class WarpReduce {
    static_assert(LANES >= 1 && LANES <= 32);

  public:
    struct TempStorage {};
    explicit WarpReduce(TempStorage&) {}
    // The result is the first lane's.
    template <typename Operation>
    T Reduce(T value, Operation operation, int valid = LANES, Position at = simulator::here()) {
        const int lane = static_cast<int>(simulator::current_thread()->lane) % LANES;
        for (int distance = 1; distance < LANES; distance *= 2) {
            const T other = simulator::exchange(mask(), value, from(lane + distance < LANES ? lane + distance : lane), "WarpReduce", at);
            if (lane + distance < valid) value = operation(value, other);
        }
        return value;
    }
    T Sum(T value, int valid = LANES, Position at = simulator::here()) { return Reduce(value, cub::Sum(), valid, at); }

  private:
    static unsigned mask() { return ~0u; }
    static int from(int lane) { return static_cast<int>(simulator::current_thread()->lane) / LANES * LANES + lane; }
};

template <typename T, int LANES = 32>
class WarpScan {
  public:
    struct TempStorage {};
    explicit WarpScan(TempStorage&) {}
    template <typename Operation>
    void InclusiveScan(T in, T& out, Operation operation, Position at = simulator::here()) {
        const int lane = static_cast<int>(simulator::current_thread()->lane), rank = lane % LANES;
        for (int distance = 1; distance < LANES; distance *= 2) {
            const T other = simulator::exchange(~0u, in, rank >= distance ? lane - distance : lane, "WarpScan", at);
            if (rank >= distance) in = operation(other, in);
        }
        out = in;
    }
    template <typename Operation>
    void ExclusiveScan(T in, T& out, T initial, Operation operation, Position at = simulator::here()) {
        const int lane = static_cast<int>(simulator::current_thread()->lane), rank = lane % LANES;
        T all;
        InclusiveScan(in, all, operation, at);
        const T before = simulator::exchange(~0u, all, rank ? lane - 1 : lane, "WarpScan", at);
        out = rank ? operation(initial, before) : initial;
    }
    void InclusiveSum(T in, T& out, Position at = simulator::here()) { InclusiveScan(in, out, Sum(), at); }
    void ExclusiveSum(T in, T& out, Position at = simulator::here()) { ExclusiveScan(in, out, T{}, Sum(), at); }
};

// ---- a block
enum BlockReduceAlgorithm { BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS };
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };
enum BlockLoadAlgorithm { BLOCK_LOAD_DIRECT, BLOCK_LOAD_STRIPED, BLOCK_LOAD_VECTORIZE, BLOCK_LOAD_TRANSPOSE, BLOCK_LOAD_WARP_TRANSPOSE };
enum BlockStoreAlgorithm { BLOCK_STORE_DIRECT, BLOCK_STORE_STRIPED, BLOCK_STORE_VECTORIZE, BLOCK_STORE_TRANSPOSE, BLOCK_STORE_WARP_TRANSPOSE };

namespace details {
inline int thread_rank() {
    return static_cast<int>((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x);
}
}  // namespace details

// As in CUB, the storage may be used again only behind a __syncthreads() of the kernel's.
template <typename T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1>
class BlockReduce {
    static constexpr int THREADS = X * Y * Z;

  public:
    struct TempStorage {
        T values[THREADS];
    };
    explicit BlockReduce(TempStorage& storage) : storage_(storage) {}
    // The result is thread 0's.
    template <typename Operation>
    T Reduce(T value, Operation operation, int valid = THREADS, Position at = simulator::here()) {
        storage_.values[details::thread_rank()] = value;
        simulator::barrier(false, "BlockReduce", at);
        if (details::thread_rank() == 0)
            for (int i = 1; i < valid; ++i) value = operation(value, storage_.values[i]);
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
    struct TempStorage {
        T values[THREADS];
    };
    explicit BlockScan(TempStorage& storage) : storage_(storage) {}

    template <typename Operation>
    void InclusiveScan(T in, T& out, Operation operation, T& total, Position at = simulator::here()) {
        const int rank = details::thread_rank();
        storage_.values[rank] = in;
        simulator::barrier(false, "BlockScan", at);
        T all = storage_.values[0];
        if (rank == 0) out = all;
        for (int i = 1; i < THREADS; ++i) {
            all = operation(all, storage_.values[i]);
            if (i == rank) out = all;
        }
        total = all;
    }
    template <typename Operation>
    void ExclusiveScan(T in, T& out, T initial, Operation operation, T& total, Position at = simulator::here()) {
        const int rank = details::thread_rank();
        storage_.values[rank] = in;
        simulator::barrier(false, "BlockScan", at);
        T before = initial;
        total = storage_.values[0];
        for (int i = 0; i < THREADS; ++i) {
            if (i == rank) out = before;
            before = operation(before, storage_.values[i]);
            if (i) total = operation(total, storage_.values[i]);
        }
    }
    template <typename Operation>
    void InclusiveScan(T in, T& out, Operation operation, Position at = simulator::here()) {
        T total;
        InclusiveScan(in, out, operation, total, at);
    }
    template <typename Operation>
    void ExclusiveScan(T in, T& out, T initial, Operation operation, Position at = simulator::here()) {
        T total;
        ExclusiveScan(in, out, initial, operation, total, at);
    }
    void InclusiveSum(T in, T& out, Position at = simulator::here()) { InclusiveScan(in, out, Sum(), at); }
    void InclusiveSum(T in, T& out, T& total, Position at = simulator::here()) { InclusiveScan(in, out, Sum(), total, at); }
    void ExclusiveSum(T in, T& out, Position at = simulator::here()) { ExclusiveScan(in, out, T{}, Sum(), at); }
    void ExclusiveSum(T in, T& out, T& total, Position at = simulator::here()) { ExclusiveScan(in, out, T{}, Sum(), total, at); }
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
            const int at = ALGORITHM == BLOCK_LOAD_STRIPED ? i * X * Y * Z + details::thread_rank() : details::thread_rank() * N + i;
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
            const int at = ALGORITHM == BLOCK_STORE_STRIPED ? i * X * Y * Z + details::thread_rank() : details::thread_rank() * N + i;
            if (at < valid) to[at] = values[i];
        }
    }
};

// ---- the device: a kernel of one thread; the first call asks for the size of the storage
namespace details {
template <typename Work>
cudaError_t on_device(void* storage, size_t& bytes, const char* name, Work work, Position at) {
    if (!storage) return bytes = 1, cudaSuccess;
    simulator::launch({name, at, nullptr, [](void* data) { (*static_cast<Work*>(data))(); }, &work}, dim3(1), dim3(1), 0);
    return cudaPeekAtLastError();
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
    template <typename In, typename Out>
    static cudaError_t ExclusiveSum(void* storage, size_t& bytes, In in, Out out, int n, cudaStream_t = nullptr,
                                    Position at = simulator::here()) {
        return details::on_device(storage, bytes, "DeviceScan", [=] {
            std::remove_cv_t<std::remove_reference_t<decltype(in[0])>> sum{};
            for (int i = 0; i < n; ++i) {
                const auto value = in[i];
                out[i] = sum;
                sum = sum + value;
            }
        }, at);
    }
    template <typename In, typename Out>
    static cudaError_t InclusiveSum(void* storage, size_t& bytes, In in, Out out, int n, cudaStream_t = nullptr,
                                    Position at = simulator::here()) {
        return details::on_device(storage, bytes, "DeviceScan", [=] {
            std::remove_cv_t<std::remove_reference_t<decltype(in[0])>> sum{};
            for (int i = 0; i < n; ++i) out[i] = sum = sum + in[i];
        }, at);
    }
};

}  // namespace cub
