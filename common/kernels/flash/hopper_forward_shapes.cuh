// hopper_forward_shapes.cuh - the shapes of flash_attention_wgmma.cuh for head_dim up to 128, and when to use which.
//
//   D64, D128, ...     shapes
//   with_shape         calls f.operator()<Shape>() for the fastest one
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/cuda/check.h"
#include "common/kernels/flash/flash_attention_wgmma.cuh"

template <typename T>
using D64 = Shape<T, 64, 4, 64, 8, false, Order::SNAKE>;
template <typename T>
using D64FewRows = Shape<T, 64, 2, 64, 8, false, Order::SNAKE>;
template <typename T>
using D64ManyKeys = Shape<T, 64, 3, 128, 4, false, Order::SNAKE>;
template <typename T>
using D128 = Shape<T, 128, 2, 128, 3, true, Order::FOLDED>;
template <typename T>
using D128ManyKeys = Shape<T, 128, 3, 80, 3, false, Order::SNAKE>;

// What the choice depends on.
struct ForwardSize {
    int64_t batch_heads, rows, keys;  // keys: the most that any row sees
    int head_dim;
    bool causal;  // later rows see more keys
};

// Estimated time of a shape: the number of work tiles on the busiest SM (on the average SM under a causal mask, where
// short tiles even out the load) times the cost of one, in units that are comparable for one D.
template <class S>
double estimate(const ForwardSize& a, double each) {
    const double tiles = static_cast<double>(a.batch_heads * ceil_div(a.rows, int64_t{S::B_r}));
    const double rounds = tiles / device_attribute(cudaDevAttrMultiProcessorCount);
    return each * std::max(1.0, a.causal ? rounds : std::ceil(rounds));
}

// The cost of a work tile of each shape was measured, and so was the number of keys from which the last shape of each D
// is the fastest: README.md.
template <typename T>
bool many_keys_are_faster(const ForwardSize& a) {  // for 128 columns
    return a.keys >= (a.causal ? 8192 : 2048) && estimate<D128ManyKeys<T>>(a, 1.44) < estimate<D128<T>>(a, 1.0);
}
template <typename T, typename F>
bool with_shape(const ForwardSize& a, F f) {
    if (a.head_dim <= 64) {
        const double few = estimate<D64FewRows<T>>(a, 1.0), most = estimate<D64<T>>(a, 1.7);
        if (!a.causal && a.keys >= 4096 && estimate<D64ManyKeys<T>>(a, 1.2) < std::min(few, most))
            return f.template operator()<D64ManyKeys<T>>();
        return few < most ? f.template operator()<D64FewRows<T>>() : f.template operator()<D64<T>>();
    }
    return many_keys_are_faster<T>(a) ? f.template operator()<D128ManyKeys<T>>() : f.template operator()<D128<T>>();
}
