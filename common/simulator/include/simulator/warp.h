// warp.h - shuffles, votes, matches and reductions among the 32 lanes of a warp.
//
// All are built on collective(): every lane passes a struct with its operands and room for its result, and the last
// lane to arrive computes all results. A value read from a lane outside the mask is undefined: zeros if that lane has
// returned, as on a GPU, otherwise NaN bytes.
//
// What the last lane does is not counted as a thread's work (runtime/work.cpp), so no student's code may run there:
// matches and reductions are of CUDA's number types, and shuffles copy bytes.
#pragma once
#include "thread.h"

inline void __syncwarp(unsigned mask = ~0u, simulator::Position at = simulator::here()) {
    simulator::collective(mask, nullptr, nullptr, "__syncwarp", at);
}
inline unsigned __activemask(simulator::Position at = simulator::here()) { return simulator::lanes_here(at); }

namespace simulator {

template <typename T>
T exchange(unsigned mask, T value, int source, const char* operation, Position at) {
    struct Lane {
        T value, result;
        int source;  // the lane to read from
    };
    Lane mine{value, value, source};
    Combine combine = [](void** lanes, unsigned mask) SIMULATOR_UNCHECKED __attribute__((noinline)) {
        struct Bytes {  // copied without T's operator=
            char bytes[sizeof(T)];
        };
        for (unsigned lane = 0; lane < 32; ++lane) {
            if (!(mask >> lane & 1)) continue;
            auto* reader = static_cast<Lane*>(lanes[lane]);
            void* result = __builtin_addressof(reader->result);  // T may overload operator&
            if (mask >> reader->source & 1)
                *static_cast<Bytes*>(result) =
                    *reinterpret_cast<const Bytes*>(__builtin_addressof(static_cast<Lane*>(lanes[reader->source])->value));
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

enum Gathering { VOTES, EQUAL, ADD, MIN, MAX, AND, OR, XOR };

// Every lane gets the lanes that vote or have its value, or a reduction of all values.
template <Gathering WHAT, typename R, typename T>
R gather(unsigned mask, T value, const char* operation, Position at) {
    static_assert(__is_same(T, bool) || __is_same(T, int) || __is_same(T, unsigned) || __is_same(T, long) ||
                  __is_same(T, unsigned long) || __is_same(T, long long) || __is_same(T, unsigned long long) ||
                  __is_same(T, float) || __is_same(T, double));
    static_assert(__is_same(R, T) || __is_same(R, unsigned));
    struct Lane {
        T value;
        R result;
    };
    Lane mine{value, R()};
    Combine combine = [](void** lanes, unsigned mask) SIMULATOR_UNCHECKED __attribute__((noinline)) {
        T values[32] = {};
        for (unsigned lane = 0; lane < 32; ++lane)
            if (mask >> lane & 1) values[lane] = static_cast<Lane*>(lanes[lane])->value;
        for (unsigned me = 0; me < 32; ++me) {
            if (!(mask >> me & 1)) continue;
            R a = WHAT == VOTES || WHAT == EQUAL ? R() : static_cast<R>(values[me]);
            for (unsigned lane = 0; lane < 32; ++lane) {
                if (!(mask >> lane & 1)) continue;
                const T b = values[lane];
                if constexpr (WHAT == VOTES) a |= static_cast<unsigned>(b) << lane;
                if constexpr (WHAT == EQUAL) a |= static_cast<unsigned>(b == values[me]) << lane;
                if constexpr (WHAT == ADD) a = lane == me ? a : a + b;
                if constexpr (WHAT == MIN) a = b < a ? b : a;
                if constexpr (WHAT == MAX) a = a < b ? b : a;
                if constexpr (WHAT == AND) a = a & b;
                if constexpr (WHAT == OR) a = a | b;
                if constexpr (WHAT == XOR) a = lane == me ? a : a ^ b;
            }
            static_cast<Lane*>(lanes[me])->result = a;
        }
    };
    collective(mask, &mine, combine, operation, at);
    return mine.result;
}

inline unsigned ballot(unsigned mask, bool predicate, const char* operation, Position at) {
    return gather<VOTES, unsigned>(mask, predicate, operation, at);
}

template <typename T>
unsigned match(unsigned mask, T value, const char* operation, Position at) {
    return gather<EQUAL, unsigned>(mask, value, operation, at);
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
#define SIMULATOR_REDUCE(T, name, WHAT)                                                                        \
    inline T name(unsigned mask, T value, simulator::Position at = simulator::here()) {                        \
        return simulator::whole_warp::gather<simulator::whole_warp::WHAT, T>(mask, value, #name, at); \
    }
SIMULATOR_REDUCE(int, __reduce_add_sync, ADD)
SIMULATOR_REDUCE(int, __reduce_min_sync, MIN)
SIMULATOR_REDUCE(int, __reduce_max_sync, MAX)
SIMULATOR_REDUCE(unsigned, __reduce_add_sync, ADD)
SIMULATOR_REDUCE(unsigned, __reduce_min_sync, MIN)
SIMULATOR_REDUCE(unsigned, __reduce_max_sync, MAX)
SIMULATOR_REDUCE(unsigned, __reduce_and_sync, AND)
SIMULATOR_REDUCE(unsigned, __reduce_or_sync, OR)
SIMULATOR_REDUCE(unsigned, __reduce_xor_sync, XOR)
#undef SIMULATOR_REDUCE
