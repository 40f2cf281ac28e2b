// atomics.h - atomicAdd, Sub, Min, Max, And, Or, Xor, Exch, CAS, Inc, Dec.
//
// All are compare-and-swap loops, since blocks run on several OS threads. An atomic that leaves memory unchanged is
// probably spinning on another thread, so it yields: spin locks work.
#pragma once
#include <type_traits>

#include "thread.h"

namespace simulator {

template <size_t Bytes>
using Bits = std::conditional_t<Bytes == 2, uint16_t, std::conditional_t<Bytes == 4, uint32_t, uint64_t>>;

// __builtin_bit_cast that also takes pairs, which have a user-provided copy constructor in the checked build.
template <typename To, typename From>
SIMULATOR_INLINE To same_bits(const From& from) {
    To to;
    __builtin_memcpy(static_cast<void*>(&to), &from, sizeof to);
    return to;
}

// READS: whether the old value matters.
template <bool READS = true, typename T, typename Update>
SIMULATOR_INLINE T read_modify_write(T* address, Update update) {
#ifdef SIMULATOR_CHECKED
    check_atomic(address, sizeof(T), READS);
#endif
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "atomic operations take 2, 4 or 8 bytes");
    using Word = Bits<sizeof(T)>;
    Word* word = reinterpret_cast<Word*>(address);
    Word before = __atomic_load_n(word, __ATOMIC_RELAXED), after;
    do {
        after = same_bits<Word>(static_cast<T>(update(same_bits<T>(before))));
    } while (!__atomic_compare_exchange_n(word, &before, after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    if (before == after) yield();
    return same_bits<T>(before);
}

// CUDA defines each operation for a few types only; all others are rejected here, too.
template <typename T, typename... Types>
constexpr bool one_of = (__is_same(T, Types) || ...);

// half, half2, and their bf16 counterparts
template <typename Format> struct Float16;
template <typename Format> struct Float16Pair;
template <typename T> constexpr bool is_float16 = false;
template <typename Format> constexpr bool is_float16<Float16<Format>> = true;
template <typename Format> constexpr bool is_float16<Float16Pair<Format>> = true;

}  // namespace simulator

// The value's type isn't deduced: atomicAdd(&counter, 1) takes it from the counter.
#define SIMULATOR_ATOMIC_NAMED(name, expression, condition)                                    \
    template <typename T>                                                                      \
    SIMULATOR_INLINE T name(T* address, std::type_identity_t<T> value) {          \
        static_assert(condition, "CUDA has no " #name " for this type");                       \
        return simulator::read_modify_write(                                                   \
            address, [value]([[maybe_unused]] T old) { return static_cast<T>(expression); });  \
    }
#define SIMULATOR_ATOMIC(name, expression, ...)                   \
    SIMULATOR_ATOMIC_NAMED(name, expression, (__VA_ARGS__))          \
    SIMULATOR_ATOMIC_NAMED(name##_block, expression, (__VA_ARGS__))  \
    SIMULATOR_ATOMIC_NAMED(name##_system, expression, (__VA_ARGS__))
#define SIMULATOR_ONE_OF(...) simulator::one_of<T, __VA_ARGS__>
#define SIMULATOR_WORDS int, unsigned int, unsigned long long
SIMULATOR_ATOMIC(atomicAdd, old + value, SIMULATOR_ONE_OF(SIMULATOR_WORDS, float, double) || simulator::is_float16<T>)
SIMULATOR_ATOMIC(atomicSub, old - value, SIMULATOR_ONE_OF(int, unsigned int))
SIMULATOR_ATOMIC(atomicMin, value < old ? value : old, SIMULATOR_ONE_OF(SIMULATOR_WORDS, long long))
SIMULATOR_ATOMIC(atomicMax, old < value ? value : old, SIMULATOR_ONE_OF(SIMULATOR_WORDS, long long))
SIMULATOR_ATOMIC(atomicAnd, old & value, SIMULATOR_ONE_OF(SIMULATOR_WORDS))
SIMULATOR_ATOMIC(atomicOr, old | value, SIMULATOR_ONE_OF(SIMULATOR_WORDS))
SIMULATOR_ATOMIC(atomicXor, old ^ value, SIMULATOR_ONE_OF(SIMULATOR_WORDS))
SIMULATOR_ATOMIC(atomicExch, value, SIMULATOR_ONE_OF(SIMULATOR_WORDS, float))
SIMULATOR_ATOMIC(atomicInc, old >= value ? 0 : old + 1, SIMULATOR_ONE_OF(unsigned int))
SIMULATOR_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1, SIMULATOR_ONE_OF(unsigned int))
#undef SIMULATOR_ATOMIC
#undef SIMULATOR_ATOMIC_NAMED

// Compute capability 9.0: each component is atomic, the vector is not.
inline float2 atomicAdd(float2* address, float2 value) {
    return {atomicAdd(&address->x, value.x), atomicAdd(&address->y, value.y)};
}
inline float4 atomicAdd(float4* address, float4 value) {
    return {atomicAdd(&address->x, value.x), atomicAdd(&address->y, value.y), atomicAdd(&address->z, value.z),
            atomicAdd(&address->w, value.w)};
}

template <typename T>
SIMULATOR_INLINE T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
    static_assert(SIMULATOR_ONE_OF(SIMULATOR_WORDS, unsigned short), "CUDA has no atomicCAS for this type");
#ifdef SIMULATOR_CHECKED
    simulator::check_compare_and_swap(address);
#endif
    return simulator::read_modify_write(address, [=](T old) { return old == expected ? value : old; });
}
template <typename T>
SIMULATOR_INLINE T atomicCAS_block(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
    return atomicCAS(address, expected, value);
}
template <typename T>
SIMULATOR_INLINE T atomicCAS_system(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
    return atomicCAS(address, expected, value);
}
#undef SIMULATOR_ONE_OF
#undef SIMULATOR_WORDS
