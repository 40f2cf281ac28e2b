// cooperative_groups.h - groups of threads: a block, a cluster, the whole grid, part of a warp, the active lanes.
//
//   thread_block, grid_group                 block barriers; grid barriers in a cooperative launch
//   cluster_group                            blocks that access each other's shared memory (DSMEM)
//   thread_block_tile<N>, coalesced_group    lanes of one warp, with shuffles and votes by rank
//   thread_group                             any of these
//   reduce, inclusive_scan, exclusive_scan, plus, less, ...    memcpy_async, wait
#pragma once
#include <cuda_runtime.h>

#include "simulator/async_copy.h"
#include "simulator/hopper.h"

#include <type_traits>

namespace cooperative_groups {

using simulator::Position;

namespace details {

inline unsigned lane() { return simulator::current_thread()->lane; }
inline unsigned thread_rank() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
inline unsigned block_size() { return blockDim.x * blockDim.y * blockDim.z; }
inline unsigned long long block_rank() {
    return (static_cast<unsigned long long>(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
}
// The lane of the group member with this rank.
inline int lane_of_rank(unsigned mask, unsigned rank) {
    for (; rank && mask; --rank) mask &= mask - 1;
    return mask ? __builtin_ctz(mask) : 0;
}

}  // namespace details

struct thread_group;

class thread_block {
  public:
    static void sync(Position at = simulator::here()) { simulator::barrier(false, "thread_block::sync", at); }
    struct arrival_token {};
    // Split barriers aren't modeled: barrier_arrive() does nothing, and barrier_wait() is a full barrier.
    static arrival_token barrier_arrive() { return {}; }
    static void barrier_wait(arrival_token = {}, Position at = simulator::here()) { sync(at); }
    static unsigned thread_rank() { return details::thread_rank(); }
    static unsigned size() { return details::block_size(); }
    static unsigned num_threads() { return size(); }
    static dim3 group_index() { return blockIdx; }
    static dim3 thread_index() { return threadIdx; }
    static dim3 group_dim() { return blockDim; }
    static dim3 dim_threads() { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

class grid_group {
  public:
    bool is_valid() const { return simulator::is_cooperative(); }
    void sync(Position at = simulator::here()) const { simulator::grid_barrier(at); }
    static unsigned long long block_rank() { return details::block_rank(); }
    static unsigned long long num_blocks() { return 1ull * gridDim.x * gridDim.y * gridDim.z; }
    static unsigned long long thread_rank() { return block_rank() * details::block_size() + details::thread_rank(); }
    static unsigned long long size() { return num_blocks() * details::block_size(); }
    static unsigned long long num_threads() { return size(); }
    static dim3 group_dim() { return gridDim; }
    static dim3 dim_blocks() { return gridDim; }
    static dim3 block_index() { return blockIdx; }
};
inline grid_group this_grid() { return {}; }

class cluster_group {
  public:
    struct arrival_token {};
    static void sync(Position at = simulator::here()) { simulator::cluster_arrive(at), simulator::cluster_wait(at); }
    static arrival_token barrier_arrive(Position at = simulator::here()) { return simulator::cluster_arrive(at), arrival_token{}; }
    static void barrier_wait(Position at = simulator::here()) { simulator::cluster_wait(at); }
    static void barrier_wait(arrival_token&&, Position at = simulator::here()) { simulator::cluster_wait(at); }
    template <typename T>
    static T* map_shared_rank(T* address, int rank, Position at = simulator::here()) {
        return static_cast<T*>(simulator::cluster_address(address, static_cast<unsigned>(rank), at));
    }
    static unsigned query_shared_rank(const void* address) { return simulator::cluster_rank_of(address); }
    static unsigned block_rank() { return simulator::cluster_place().rank; }
    static unsigned num_blocks() { return simulator::cluster_place().size; }
    static dim3 block_index() { return simulator::cluster_place().index; }
    static dim3 dim_blocks() { return simulator::cluster_place().shape; }
    static unsigned thread_rank() { return block_rank() * details::block_size() + details::thread_rank(); }
    static unsigned num_threads() { return num_blocks() * details::block_size(); }
    static unsigned size() { return num_threads(); }
};
inline cluster_group this_cluster() { return {}; }

// Collectives among lanes of one warp; ranks number the lanes of the mask.
class coalesced_group {
  public:
    coalesced_group(unsigned mask, unsigned meta_rank = 0, unsigned meta_size = 1)
        : mask_(mask), meta_rank_(meta_rank), meta_size_(meta_size) {}

    unsigned thread_rank() const { return __popc(mask_ & ((1u << details::lane()) - 1)); }
    unsigned size() const { return __popc(mask_); }
    unsigned num_threads() const { return size(); }
    unsigned meta_group_rank() const { return meta_rank_; }
    unsigned meta_group_size() const { return meta_size_; }
    void sync(Position at = simulator::here()) const { __syncwarp(mask_, at); }

    template <typename T>
    T shfl(T value, unsigned rank, Position at = simulator::here()) const {
        static_assert(__is_trivially_copyable(T) || simulator::is_float16<T>, "CUDA shuffles trivially copyable types");
        static_assert(sizeof(T) <= 32, "CUDA shuffles types of at most 32 bytes");
        return simulator::exchange(mask_, value, details::lane_of_rank(mask_, rank % size()), "shfl", at);
    }
    template <typename T>
    T shfl_up(T value, unsigned distance, Position at = simulator::here()) const {
        const unsigned rank = thread_rank();
        return shfl(value, distance <= rank ? rank - distance : rank, at);
    }
    template <typename T>
    T shfl_down(T value, unsigned distance, Position at = simulator::here()) const {
        const unsigned rank = thread_rank();
        return shfl(value, rank + distance < size() ? rank + distance : rank, at);
    }
    template <typename T>
    T shfl_xor(T value, unsigned bits, Position at = simulator::here()) const {
        const unsigned other = thread_rank() ^ bits;
        return shfl(value, other < size() ? other : thread_rank(), at);
    }
    int any(int predicate, Position at = simulator::here()) const { return __any_sync(mask_, predicate, at); }
    int all(int predicate, Position at = simulator::here()) const { return __all_sync(mask_, predicate, at); }
    unsigned ballot(int predicate, Position at = simulator::here()) const {
        return ranks_of(__ballot_sync(mask_, predicate, at));
    }
    template <typename T>
    unsigned match_any(T value, Position at = simulator::here()) const {
        return ranks_of(__match_any_sync(mask_, value, at));
    }
    template <typename T>
    unsigned match_all(T value, int& predicate, Position at = simulator::here()) const {
        return ranks_of(__match_all_sync(mask_, value, &predicate, at));
    }
    unsigned lanes() const { return mask_; }

  protected:
    // Converts one bit per lane to one bit per rank.
    unsigned ranks_of(unsigned lanes) const {
        unsigned result = 0, rank = 0;
        for (unsigned rest = mask_; rest; rest &= rest - 1, ++rank) result |= (lanes >> __builtin_ctz(rest) & 1) << rank;
        return result;
    }
    unsigned mask_, meta_rank_, meta_size_;
};

inline coalesced_group coalesced_threads(Position at = simulator::here()) {
    return coalesced_group(simulator::lanes_here(at));
}

template <unsigned Size, typename Parent = void>
class thread_block_tile : public coalesced_group {
    static_assert(Size && (Size & (Size - 1)) == 0, "the size of a tile is a power of two");
    static_assert(Size <= 32, "the simulator has tiles of up to 32 threads");

  public:
    template <typename Group>
    explicit thread_block_tile(const Group& parent)
        : coalesced_group((Size == 32 ? ~0u : (1u << Size % 32) - 1) << (details::lane() & ~(Size - 1)),
                          parent.thread_rank() / Size, (parent.size() + Size - 1) / Size) {}
    // Converts between tiles that differ only in their parent type.
    template <typename Other>
    thread_block_tile(const thread_block_tile<Size, Other>& other) : coalesced_group(other) {}
    static unsigned thread_rank() { return details::lane() % Size; }
    static constexpr unsigned size() { return Size; }
    static constexpr unsigned num_threads() { return Size; }
};

struct thread_group {
    enum Kind { block, lanes, grid } kind;
    unsigned mask = 0;
    thread_group(const thread_block&) : kind(block) {}
    thread_group(const grid_group&) : kind(grid) {}
    thread_group(const coalesced_group& group) : kind(lanes), mask(group.lanes()) {}
    void sync(Position at = simulator::here()) const {
        if (kind == block)
            simulator::barrier(false, "thread_group::sync", at);
        else if (kind == grid)
            simulator::grid_barrier(at);
        else
            __syncwarp(mask, at);
    }
    unsigned thread_rank() const {
        return kind == block ? details::thread_rank()
               : kind == grid ? static_cast<unsigned>(grid_group::thread_rank())
                              : coalesced_group(mask).thread_rank();
    }
    unsigned size() const {
        return kind == block  ? details::block_size()
               : kind == grid ? static_cast<unsigned>(grid_group::size())
                              : coalesced_group(mask).size();
    }
    unsigned num_threads() const { return size(); }
};

template <unsigned Size, typename Group>
thread_block_tile<Size, Group> tiled_partition(const Group& parent) {
    return thread_block_tile<Size, Group>(parent);
}
// With a size known only at run time. A coalesced group is partitioned by rank.
inline coalesced_group tiled_partition(const thread_block& parent, unsigned size) {
    return coalesced_group((size == 32 ? ~0u : (1u << size % 32) - 1) << (details::lane() & ~(size - 1)),
                           parent.thread_rank() / size, (parent.size() + size - 1) / size);
}
inline coalesced_group tiled_partition(const coalesced_group& parent, unsigned size) {
    const unsigned first = parent.thread_rank() / size * size;
    unsigned mask = 0;
    for (unsigned rank = first; rank < first + size && rank < parent.size(); ++rank)
        mask |= 1u << details::lane_of_rank(parent.lanes(), rank);
    return coalesced_group(mask, first / size, (parent.size() + size - 1) / size);
}
inline coalesced_group tiled_partition(const thread_group& parent, unsigned size) {
    return parent.kind == thread_group::block ? tiled_partition(thread_block(), size)
                                              : tiled_partition(coalesced_group(parent.mask), size);
}
template <typename Label>
coalesced_group labeled_partition(const coalesced_group& group, Label label, Position at = simulator::here()) {
    return coalesced_group(__match_any_sync(group.lanes(), label, at));
}
inline coalesced_group binary_partition(const coalesced_group& group, bool predicate, Position at = simulator::here()) {
    const unsigned yes = __ballot_sync(group.lanes(), predicate, at);
    return coalesced_group(predicate ? yes : group.lanes() & ~yes, predicate, 2);
}

template <typename Group>
void sync(const Group& group, Position at = simulator::here()) {
    group.sync(at);
}

// ---- reductions and scans

#define SIMULATOR_OPERATION(name, expression)     \
    template <typename T = void>                  \
    struct name {                                 \
        template <typename U>                     \
        U operator()(const U& a, const U& b) const { \
            return expression;                    \
        }                                         \
    };
SIMULATOR_OPERATION(plus, a + b)
SIMULATOR_OPERATION(less, b < a ? b : a)
SIMULATOR_OPERATION(greater, a < b ? b : a)
SIMULATOR_OPERATION(bit_and, a& b)
SIMULATOR_OPERATION(bit_or, a | b)
SIMULATOR_OPERATION(bit_xor, a ^ b)
#undef SIMULATOR_OPERATION

template <typename T, typename Operation>
T reduce(const coalesced_group& group, T value, Operation operation, Position at = simulator::here()) {
    T result = group.shfl(value, 0, at);
    for (unsigned rank = 1; rank < group.size(); ++rank) result = operation(result, group.shfl(value, rank, at));
    return result;
}
template <typename T, typename Operation>
T inclusive_scan(const coalesced_group& group, T value, Operation operation, Position at = simulator::here()) {
    for (unsigned distance = 1; distance < group.size(); distance *= 2) {
        const T other = group.shfl_up(value, distance, at);
        if (group.thread_rank() >= distance) value = operation(other, value);
    }
    return value;
}
template <typename T>
T inclusive_scan(const coalesced_group& group, T value, Position at = simulator::here()) {
    return inclusive_scan(group, value, plus<T>(), at);
}
template <typename T, typename Operation>
T exclusive_scan(const coalesced_group& group, T value, Operation operation, Position at = simulator::here()) {
    const T other = group.shfl_up(inclusive_scan(group, value, operation, at), 1, at);
    return group.thread_rank() ? other : T{};
}
template <typename T>
T exclusive_scan(const coalesced_group& group, T value, Position at = simulator::here()) {
    return exclusive_scan(group, value, plus<T>(), at);
}
template <typename Group, typename Function>
void invoke_one(const Group& group, Function function) {
    if (group.thread_rank() == 0) function();
}

// ---- group-wide copies: each thread waits for its own share, then for the other threads

template <typename Group>
SIMULATOR_ASYNC memcpy_async(const Group& group, void* to, const void* from, size_t bytes,
                             Position at = simulator::here()) {
    simulator::issue_memcpy_async(to, from, bytes, group.thread_rank(), group.size(), nullptr, nullptr, at);
    simulator::commit_async_copies();
}
template <unsigned Stage, typename Group>
SIMULATOR_ASYNC wait_prior(const Group& group, Position at = simulator::here()) {
    simulator::wait_for_async_copies(Stage);
    group.sync(at);
}
template <typename Group>
SIMULATOR_ASYNC wait(const Group& group, Position at = simulator::here()) {
    wait_prior<0>(group, at);
}

}  // namespace cooperative_groups
