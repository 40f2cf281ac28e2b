// warp.h - shuffles, votes, matches and reductions among the 32 lanes of a warp.
//
// All are built on collective(): every lane passes a struct with its operands and room for its result, and the last
// lane to arrive computes all results. A value read from a lane outside the mask is undefined: zeros if that lane has
// returned, as on a GPU, otherwise NaN bytes.
//
// Shuffles, matches and reductions take CUDA's argument types and conversions only: code that computes for a whole warp
// is not counted as a thread's work (runtime/work.cpp), so no member of a student's type may run there.
#pragma once
#include "thread.h"

inline void __syncwarp(unsigned mask = ~0u, simulator::Position at = simulator::here()) {
    simulator::collective(mask, nullptr, nullptr, "__syncwarp", at);
}
inline unsigned __activemask(simulator::Position at = simulator::here()) { return simulator::lanes_here(at); }

namespace simulator {

template <typename T>
struct Exchange {
    T value, result;
    int source;  // the lane to read from
};

template <typename T>
T exchange(unsigned mask, T value, int source, const char* operation, Position at) {
    Exchange<T> mine{value, value, source};
    Combine combine = [](void** lanes, unsigned mask) SIMULATOR_UNCHECKED __attribute__((noinline)) {
        for (unsigned lane = 0; lane < 32; ++lane) {
            if (!(mask >> lane & 1)) continue;
            auto* reader = static_cast<Exchange<T>*>(lanes[lane]);
            T* result = __builtin_addressof(reader->result);  // T may overload operator&
            if (mask >> reader->source & 1)
                simulator::copy_bytes<T>(result, __builtin_addressof(static_cast<Exchange<T>*>(lanes[reader->source])->value));
            else
                current_block()->fill_absent(result, sizeof(T), reader->source, lane);
        }
    };
    collective(mask, &mine, combine, operation, at);
    return mine.result;
}

// The first lane of the caller's group of `width` lanes.
inline int group_start(int width) { return static_cast<int>(current_thread()->lane) & ~(width - 1); }

}  // namespace simulator

// No argument type is a member of this namespace, so argument-dependent lookup never finds these functions.
namespace simulator::whole_warp {

template <typename T, typename R>
struct Contribution {
    T value;
    R result;
};

// Every lane gets Reduce()(values of all lanes, mask, own lane).
template <typename R, typename T, typename Reduce>
R gather(unsigned mask, T value, Reduce, const char* operation, Position at) {
    Contribution<T, R> mine{value, R()};
    Combine combine = [](void** lanes, unsigned mask) SIMULATOR_UNCHECKED __attribute__((noinline)) {
        T values[32] = {};
        for (unsigned lane = 0; lane < 32; ++lane)
            if (mask >> lane & 1) values[lane] = static_cast<Contribution<T, R>*>(lanes[lane])->value;
        for (unsigned lane = 0; lane < 32; ++lane)
            if (mask >> lane & 1)
                static_cast<Contribution<T, R>*>(lanes[lane])->result = Reduce()(values, mask, lane);
    };
    collective(mask, &mine, combine, operation, at);
    return mine.result;
}

inline unsigned ballot(unsigned mask, bool predicate, const char* operation, Position at) {
    auto votes = [](const bool* values, unsigned mask, unsigned) SIMULATOR_UNCHECKED {
        unsigned result = 0;
        for (unsigned lane = 0; lane < 32; ++lane)
            result |= (mask >> lane & 1 && values[lane] ? 1u : 0u) << lane;
        return result;
    };
    return gather<unsigned>(mask, predicate, votes, operation, at);
}

template <typename T>
unsigned match(unsigned mask, T value, const char* operation, Position at) {
    auto equal_lanes = [](const T* values, unsigned mask, unsigned me) SIMULATOR_UNCHECKED {
        unsigned result = 0;
        for (unsigned lane = 0; lane < 32; ++lane)
            result |= (mask >> lane & 1 && values[lane] == values[me] ? 1u : 0u) << lane;
        return result;
    };
    return gather<unsigned>(mask, value, equal_lanes, operation, at);
}

}  // namespace simulator::whole_warp

#define SIMULATOR_SHUFFLE(TEMPLATE, name, Number, source, ...)                                                        \
    TEMPLATE inline __VA_ARGS__ name(unsigned mask, __VA_ARGS__ value, Number by, int width = 32,                     \
                                     simulator::Position at = simulator::here()) {                                    \
        const int start = simulator::group_start(width), given = static_cast<int>(by);                                \
        [[maybe_unused]] const int lane = static_cast<int>(simulator::current_thread()->lane), end = start + width;   \
        return simulator::exchange(mask, value, source, #name, at);                                                   \
    }
// float16.h uses this for 16-bit types, too.
#define SIMULATOR_SHUFFLES(TEMPLATE, ...)                                                                                 \
    SIMULATOR_SHUFFLE(TEMPLATE, __shfl_sync, int, start | (given & (width - 1)), __VA_ARGS__)                             \
    SIMULATOR_SHUFFLE(TEMPLATE, __shfl_xor_sync, int, (lane ^ (given & 31)) < end ? lane ^ (given & 31) : lane, __VA_ARGS__) \
    SIMULATOR_SHUFFLE(TEMPLATE, __shfl_down_sync, unsigned, by < 32 && lane + given < end ? lane + given : lane, __VA_ARGS__) \
    SIMULATOR_SHUFFLE(TEMPLATE, __shfl_up_sync, unsigned, by < 32 && lane - given >= start ? lane - given : lane, __VA_ARGS__)
#define SIMULATOR_MATCHES(T)                                                                                              \
    inline unsigned __match_any_sync(unsigned mask, T value, simulator::Position at = simulator::here()) {                \
        return simulator::whole_warp::match(mask, value, "__match_any_sync", at);                                         \
    }                                                                                                                     \
    inline unsigned __match_all_sync(unsigned mask, T value, int* predicate, simulator::Position at = simulator::here()) { \
        const unsigned equal = simulator::whole_warp::match(mask, value, "__match_all_sync", at);                         \
        *predicate = equal == mask;                                                                                       \
        return *predicate ? mask : 0;                                                                                     \
    }
#define SIMULATOR_NUMBERS(T) SIMULATOR_SHUFFLES(, T) SIMULATOR_MATCHES(T)
SIMULATOR_NUMBERS(int)
SIMULATOR_NUMBERS(unsigned)
SIMULATOR_NUMBERS(long)
SIMULATOR_NUMBERS(unsigned long)
SIMULATOR_NUMBERS(long long)
SIMULATOR_NUMBERS(unsigned long long)
SIMULATOR_NUMBERS(float)
SIMULATOR_NUMBERS(double)
#undef SIMULATOR_NUMBERS
#undef SIMULATOR_MATCHES

inline unsigned __ballot_sync(unsigned mask, int predicate, simulator::Position at = simulator::here()) {
    return simulator::whole_warp::ballot(mask, predicate != 0, "__ballot_sync", at);
}
inline int __any_sync(unsigned mask, int predicate, simulator::Position at = simulator::here()) {
    return simulator::whole_warp::ballot(mask, predicate != 0, "__any_sync", at) != 0;
}
inline int __all_sync(unsigned mask, int predicate, simulator::Position at = simulator::here()) {
    return simulator::whole_warp::ballot(mask, predicate == 0, "__all_sync", at) == 0;
}
#define SIMULATOR_REDUCE(T, name, expression)                                    \
    inline T name(unsigned mask, T value, simulator::Position at = simulator::here()) { \
        auto reduce = [](const T* values, unsigned mask, unsigned me) SIMULATOR_UNCHECKED { \
            T a = values[me];                                                    \
            for (unsigned lane = 0; lane < 32; ++lane) {                         \
                const T b = values[lane];                                        \
                if (lane != me && mask >> lane & 1) a = expression;              \
            }                                                                    \
            return a;                                                            \
        };                                                                       \
        return simulator::whole_warp::gather<T>(mask, value, reduce, #name, at); \
    }
SIMULATOR_REDUCE(int, __reduce_add_sync, a + b)
SIMULATOR_REDUCE(int, __reduce_min_sync, b < a ? b : a)
SIMULATOR_REDUCE(int, __reduce_max_sync, a < b ? b : a)
SIMULATOR_REDUCE(unsigned, __reduce_add_sync, a + b)
SIMULATOR_REDUCE(unsigned, __reduce_min_sync, b < a ? b : a)
SIMULATOR_REDUCE(unsigned, __reduce_max_sync, a < b ? b : a)
SIMULATOR_REDUCE(unsigned, __reduce_and_sync, a& b)
SIMULATOR_REDUCE(unsigned, __reduce_or_sync, a | b)
SIMULATOR_REDUCE(unsigned, __reduce_xor_sync, a ^ b)
#undef SIMULATOR_REDUCE
