// sorting.h - the radix sort of cub.cuh, run by one thread for all. It isn't counted as that thread's work
// (runtime/work.cpp), so, like all such code, cuda_runtime.h includes it before any student code.
#pragma once
#include <type_traits>

#include "atomics.h"

namespace simulator {

// A bit of the key, transformed so that negative numbers sort first.
template <typename K>
SIMULATOR_UNCHECKED bool key_bit(const K& key, int bit) {
    constexpr int top = sizeof(K) * 8 - 1;
    Bits<sizeof(K) == 1 ? 2 : sizeof(K)> bits = 0;
    simulator::copy_bytes<K>(&bits, __builtin_addressof(key));
    const bool sign = bits >> top & 1, is_float = !std::is_integral_v<K>, flips = is_float || std::is_signed_v<K>;
    if (bit == top) return sign != flips;
    return (bits >> bit & 1) != (is_float && sign);
}
// LSD radix sort, one bit per pass: keys without the bit move to the front; those with it are staged in the other
// arrays.
template <typename K, typename V>
SIMULATOR_UNCHECKED void radix_sort(K* keys, V* values, K* other_keys, V* other_values, int n, bool descending, int begin, int end) {
    for (int bit = begin; bit < end; ++bit) {
        int front = 0, back = 0;
        for (int i = 0; i < n; ++i) {
            const bool waits = simulator::key_bit(keys[i], bit) != descending;
            simulator::copy_bytes<K>(waits ? other_keys + back : keys + front, keys + i);
            if (values) simulator::copy_bytes<V>(waits ? other_values + back : values + front, values + i);
            ++(waits ? back : front);
        }
        for (int i = 0; i < back; ++i) {
            simulator::copy_bytes<K>(keys + front + i, other_keys + i);
            if (values) simulator::copy_bytes<V>(values + front + i, other_values + i);
        }
    }
}

}  // namespace simulator
