// sorting.h - the radix sort of cub.cuh, run by one thread for all. It isn't counted as that thread's work
// (runtime/work.cpp), so, like all such code, cuda_runtime.h includes it before any student code.
#pragma once
#include "float16.h"

namespace simulator {

// LSD radix sort, one bit per pass: keys without the bit move to the front; those with it are staged in the other
// arrays.
template <typename K, typename V>
SIMULATOR_UNCHECKED void radix_sort(K* keys, V* values, K* other_keys, V* other_values, int n, bool descending, int begin, int end) {
    constexpr bool is_float = __is_same(K, float) || __is_same(K, double) || __is_same(K, Float16<Fp16Format>) ||
                              __is_same(K, Float16<Bf16Format>);
    constexpr bool is_signed = __is_same(K, signed char) || __is_same(K, short) || __is_same(K, int) || __is_same(K, long) ||
                               __is_same(K, long long) || (__is_same(K, char) && '\xff' < 0);
    static_assert(is_float || is_signed || __is_same(K, bool) || __is_same(K, char) || __is_same(K, unsigned char) ||
                      __is_same(K, unsigned short) || __is_same(K, unsigned) || __is_same(K, unsigned long) ||
                      __is_same(K, unsigned long long),
                  "CUB sorts numbers");
    struct Key {
        char bytes[sizeof(K)];
    };
    struct Value {  // copied without V's operator=
        char bytes[sizeof(V)];
    };
    constexpr int top = sizeof(K) * 8 - 1;
    auto *key = reinterpret_cast<Key*>(keys), *other_key = reinterpret_cast<Key*>(other_keys);
    auto *value = reinterpret_cast<Value*>(values), *other_value = reinterpret_cast<Value*>(other_values);
    for (int bit = begin; bit < end; ++bit) {
        int front = 0, back = 0;
        for (int i = 0; i < n; ++i) {
            uint64_t bits = 0;
            __builtin_memcpy(&bits, key + i, sizeof(K));
            const bool sign = bits >> top & 1;  // negative numbers sort first
            const bool one = bit == top ? sign != (is_float || is_signed) : (bits >> bit & 1) != (is_float && sign);
            const bool waits = one != descending;
            (waits ? other_key[back] : key[front]) = key[i];
            if (value) (waits ? other_value[back] : value[front]) = value[i];
            ++(waits ? back : front);
        }
        for (int i = 0; i < back; ++i) {
            key[front + i] = other_key[i];
            if (value) value[front + i] = other_value[i];
        }
    }
}

}  // namespace simulator
