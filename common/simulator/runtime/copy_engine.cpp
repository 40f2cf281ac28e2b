// copy_engine.cpp - bulk and tensor copies, which complete as late as allowed: loads when no thread of the block can
// continue without them, stores and reductions at the wait that covers them or at the block's end.
#include <algorithm>
#include <cmath>
#include <exception>
#include <type_traits>
#include <utility>

#include "../include/simulator/atomics.h"
#include "../include/simulator/float16.h"
#include "hopper.h"
#include "tensor_map.h"
#include "checker.h"

namespace simulator {

// ---- reductions

template <typename T>
static T combined(Combination how, T old, T with) {
    if constexpr (std::is_integral_v<T>) {
        switch (how) {
            case Combination::inc: return old >= with ? T(0) : T(old + 1);
            case Combination::dec: return old == 0 || old > with ? with : T(old - 1);
            case Combination::bit_and: return old & with;
            case Combination::bit_or: return old | with;
            case Combination::bit_xor: return old ^ with;
            default: break;
        }
    }
    switch (how) {
        case Combination::add: return static_cast<T>(old + with);
        case Combination::min: return with < old ? with : old;
        case Combination::max: return old < with ? with : old;
        default: return with;
    }
}
template <typename T>
static void combine_as(Combination how, void* to, const void* from, size_t bytes) {
    using Word = Bits<sizeof(T)>;
    using Wide = std::conditional_t<sizeof(T) == 2, float, T>;
    for (size_t i = 0; i < bytes / sizeof(T); ++i) {
        Word* word = static_cast<Word*>(to) + i;
        Word old = __atomic_load_n(word, __ATOMIC_RELAXED), fresh;  // other blocks may update this concurrently
        do {
            const Wide value = combined(how, static_cast<Wide>(__builtin_bit_cast(T, old)),
                                        static_cast<Wide>(static_cast<const T*>(from)[i]));
            fresh = __builtin_bit_cast(Word, T(value));
        } while (!__atomic_compare_exchange_n(word, &old, fresh, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    }
}
static void put(Combination how, Number number, void* to, const void* from, size_t bytes) {
    check_store(to, bytes);
    if (how == Combination::copy) {
        memcpy(to, from, bytes);
        return;
    }
    switch (number) {
        case Number::u32: combine_as<uint32_t>(how, to, from, bytes); break;
        case Number::s32: combine_as<int32_t>(how, to, from, bytes); break;
        case Number::u64: combine_as<uint64_t>(how, to, from, bytes); break;
        case Number::s64: combine_as<int64_t>(how, to, from, bytes); break;
        case Number::f16: combine_as<Float16<Fp16Format>>(how, to, from, bytes); break;
        case Number::bf16: combine_as<Float16<Bf16Format>>(how, to, from, bytes); break;
        case Number::f64: combine_as<double>(how, to, from, bytes); break;
        default: combine_as<float>(how, to, from, bytes);
    }
}
static Number number_of(unsigned type) {
    switch (type) {
        case CU_TENSOR_MAP_DATA_TYPE_UINT32: return Number::u32;
        case CU_TENSOR_MAP_DATA_TYPE_INT32: return Number::s32;
        case CU_TENSOR_MAP_DATA_TYPE_UINT64: return Number::u64;
        case CU_TENSOR_MAP_DATA_TYPE_INT64: return Number::s64;
        case CU_TENSOR_MAP_DATA_TYPE_FLOAT16: return Number::f16;
        case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return Number::bf16;
        case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return Number::f64;
        default: return Number::f32;
    }
}

// ---- boxes of a tensor

static void fill_outside(const TensorMap& map, char* to, unsigned bytes) {
    const bool floats = map.type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    if (map.fill == 0 || !floats) {
        memset(to, 0, bytes);
        return;
    }
    memset(to, 0xff, bytes);  // NaN
    to[bytes - 1] = 0x7f;
}

// ---- issuing

static std::shared_ptr<const TensorMap> read_map(const void* address, int rank, const char* what, Position at) {
    auto map = std::make_shared<TensorMap>();
    memcpy(static_cast<void*>(map.get()), address, sizeof *map);
    if (reinterpret_cast<uintptr_t>(address) % 64)
        fail("%s at %s:%d: the tensor map is not at a multiple of 64 bytes", what, at.file, at.line);
    if (map->mark != TENSOR_MAP_MARK)
        fail("%s at %s:%d: this is no tensor map that cuTensorMapEncodeTiled() has made; did that return CUDA_SUCCESS?", what,
             at.file, at.line);
    if (map->rank != rank)
        fail("%s at %s:%d: %d coordinates for a tensor map of rank %d", what, at.file, at.line, rank, map->rank);
    return map;
}

static void require_shared(const char* what, const char* name, const void* address, unsigned alignment, uint32_t bytes, Position at) {
    const Worker* owner = owner_of_shared(address);
    if (!owner) fail("%s at %s:%d: its %s is not in shared memory", what, at.file, at.line, name);
    if (const size_t past = reinterpret_cast<uintptr_t>(address) % alignment)
        fail("%s at %s:%d: its %s is %zu byte(s) past a multiple of %u", what, at.file, at.line, name, past, alignment);
    if (static_cast<const char*>(address) + bytes > owner->arena + SHARED_ARENA)
        fail("%s at %s:%d: its %u bytes go beyond the end of shared memory", what, at.file, at.line, bytes);
}

static Transfer new_transfer(Position at) {
    Transfer t = {};
    const Worker& worker = current_worker();
    t.thread = static_cast<unsigned>(worker.running - worker.threads);
    t.place = at;
    t.group = my_async_thread().bulk_groups;
    return t;
}

// A load into this block, or into the same shared-memory offset of each block in the mask.
static void start_load(Transfer t, char* to, void* barrier, uint32_t blocks, bool multicast, const char* what,
                       const void* return_address) {
    Hopper& hopper = my_hopper();
    const Worker* mine = owner_of_shared(to);
    const auto start = [&](char* place, char* place_of_barrier) {
        t.shared = place, t.barrier = place_of_barrier;
        Mbarrier& heard = barrier_at(place_of_barrier, what, t.place);
        heard.copy = t.place;
        if constexpr (CHECKED) {
            sample_ends_launch("copies by TMA");
            check_copy_starts(t, heard, return_address);
        }
        hopper.transfers.push_back(t);
    };
    if (!multicast) {
        if (owner_of_shared(barrier) != mine)
            fail("%s at %s:%d: the destination and the mbarrier belong to different blocks", what, t.place.file, t.place.line);
        start(to, static_cast<char*>(barrier));
        return;
    }
    Worker& worker = current_worker();
    const unsigned size = worker.cluster ? static_cast<unsigned>(worker.cluster->blocks.size()) : 1;
    if (!blocks || blocks >> size)
        fail("%s at %s:%d: the mask 0x%x names blocks that the cluster of %u has not, or none", what, t.place.file, t.place.line,
             blocks, size);
    for (unsigned rank = 0; rank < size; ++rank) {
        if (!(blocks >> rank & 1)) continue;
        Worker& other = worker.cluster ? *worker.cluster->blocks[rank] : worker;
        start(other.arena + (to - mine->arena), other.arena + (static_cast<char*>(barrier) - mine->arena));
    }
}

void tensor_load(void* to, const void* address, int rank, const int32_t* coordinates, void* barrier, uint32_t blocks, bool multicast,
                 Position at) {
    Quiet quiet;
    const char* what = "cp.async.bulk.tensor";
    Transfer t = new_transfer(at);
    t.map = read_map(address, rank, what, at);
    t.bytes = t.map->box_bytes();
    t.loads = true;
    std::copy(coordinates, coordinates + rank, t.at);
    require_shared(what, "destination", to, 128, t.bytes, at);
    each_piece(t, static_cast<char*>(to), [](char*, char* from, unsigned) {
        if (from) (void)*static_cast<volatile char*>(from);  // a bad address fails here
    });
    start_load(t, static_cast<char*>(to), barrier, blocks, multicast, what, __builtin_return_address(0));
}

void tensor_store(const void* address, int rank, const int32_t* coordinates, const void* from, Combination how, Position at) {
    Quiet quiet;
    const char* what = how == Combination::copy ? "cp.async.bulk.tensor" : "cp.reduce.async.bulk.tensor";
    Transfer t = new_transfer(at);
    t.map = read_map(address, rank, what, at);
    t.bytes = t.map->box_bytes();
    t.how = how, t.number = number_of(t.map->type);
    std::copy(coordinates, coordinates + rank, t.at);
    require_shared(what, "source", from, 128, t.bytes, at);
    t.shared = const_cast<char*>(static_cast<const char*>(from));
    each_piece(t, t.shared, [](char*, char* to, unsigned) {
        if (to) (void)*static_cast<volatile char*>(to);
    });
    if constexpr (CHECKED) check_store_starts(t, __builtin_return_address(0));
    my_hopper().transfers.push_back(t);
}

void bulk_copy(void* to, const void* from, uint32_t bytes, void* barrier, uint32_t blocks, bool multicast, Combination how,
               Number number, Position at) {
    Quiet quiet;
    const char* what = how == Combination::copy ? "cp.async.bulk" : "cp.reduce.async.bulk";
    if (bytes % 16) fail("%s at %s:%d: %u bytes; the size must be a multiple of 16", what, at.file, at.line, bytes);
    Transfer t = new_transfer(at);
    t.bytes = bytes, t.how = how, t.number = number;
    t.loads = barrier != nullptr;
    char* const shared = static_cast<char*>(t.loads ? to : const_cast<void*>(from));
    t.global = static_cast<char*>(t.loads ? const_cast<void*>(from) : to);
    require_shared(what, t.loads ? "destination" : "source", shared, 16, bytes, at);
    t.source_is_shared = owner_of_shared(t.global) != nullptr;
    if (reinterpret_cast<uintptr_t>(t.global) % 16)
        fail("%s at %s:%d: its address in %s memory is not a multiple of 16", what, at.file, at.line,
             t.source_is_shared ? "shared" : "global");
    if (bytes) (void)*static_cast<volatile char*>(t.global), (void)static_cast<volatile char*>(t.global)[bytes - 1];
    if (t.loads) {
        start_load(t, shared, barrier, blocks, multicast, what, __builtin_return_address(0));
        return;
    }
    t.shared = shared;
    if constexpr (CHECKED) check_store_starts(t, __builtin_return_address(0));
    my_hopper().transfers.push_back(t);
}

void store_async(void* to, const void* words, uint32_t bytes, void* barrier, Position at) {
    Quiet quiet;
    Transfer t = new_transfer(at);
    t.loads = true;
    t.bytes = bytes;
    t.words.assign(static_cast<const char*>(words), bytes);
    require_shared("st.async", "destination", to, bytes, bytes, at);
    start_load(t, static_cast<char*>(to), barrier, 0, false, "st.async", __builtin_return_address(0));
}

// ---- performing

static void carry_out(Transfer& t) {
    if (!t.words.empty())
        memcpy(t.shared, t.words.data(), t.bytes);
    else if (!t.map && t.loads)
        put(t.how, t.number, t.shared, t.global, t.bytes);
    else if (!t.map)
        put(t.how, t.number, t.global, t.shared, t.bytes);
    else if (t.loads)
        each_piece(t, t.shared, [&](char* place, char* from, unsigned bytes) {
            if (from)
                memcpy(place, from, bytes);
            else
                fill_outside(*t.map, place, bytes);
        });
    else
        each_piece(t, t.shared, [&](char* place, char* to, unsigned bytes) {
            if (to) put(t.how, t.number, to, place, bytes);
        });
    if (!t.loads) return;
    Mbarrier& barrier = barrier_at(t.barrier, "the end of a copy", t.place);
    if constexpr (CHECKED) check_copy_landed(t, barrier);
    complete_bytes(barrier, t.bytes, t.place);
}

bool run_engine(Worker& worker) {
    if (!worker.hopper) return false;
    auto& transfers = worker.hopper->transfers;
    const auto next = std::find_if(transfers.begin(), transfers.end(), [](const Transfer& t) { return t.loads; });
    if (next == transfers.end()) return false;
    Transfer t = std::move(*next);
    transfers.erase(next);
    carry_out(t);
    count_progress(worker);
    return true;
}

void commit_bulk_group() { ++my_async_thread().bulk_groups; }

// Both kinds of wait complete the copies; .read requires less, but nothing is gained by delaying the writes.
void wait_for_bulk_groups(uint32_t left, bool only_read) {
    Quiet quiet;
    const Worker& worker = current_worker();
    Hopper& hopper = my_hopper();
    const unsigned me = static_cast<unsigned>(worker.running - worker.threads);
    const uint64_t committed = hopper.threads[me].bulk_groups;
    auto& transfers = hopper.transfers;
    for (size_t i = 0; i < transfers.size();) {
        Transfer& t = transfers[i];
        if (t.loads || t.thread != me || t.group + left >= committed) {
            ++i;
            continue;
        }
        if constexpr (CHECKED) check_store_done(t);
        carry_out(t);
        transfers.erase(transfers.begin() + static_cast<ptrdiff_t>(i));
    }
}

void fence_async_proxy(Position at) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    Quiet quiet;
    if constexpr (CHECKED) order_proxy_fence();
    fence_mbarrier_init(at);
}
void fence_mbarrier_init(Position) {
    Worker& worker = current_worker();
    if (!worker.hopper) return;
    for (const auto& barrier : worker.hopper->barriers)
        if (worker.running == worker.threads + barrier->maker) barrier->announced = true;
}

void end_hopper(Worker& worker) {
    if (!worker.hopper || worker.failed) return;
    try {
        check_warpgroups(worker);
    } catch (const std::exception& error) {
        worker.error = error.what();
        worker.failed = true;
        return;
    }
    if constexpr (CHECKED) check_block_leaves(worker);
    for (Transfer& t : worker.hopper->transfers)
        if (!t.loads) carry_out(t);
    worker.hopper->transfers.clear();
}

}  // namespace simulator
