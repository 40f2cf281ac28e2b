// flash_attention_wgmma_options.cuh - attention with options, forward, float16 and bfloat16, for Hopper GPUs: the
// instances of flash_attention_wgmma.cuh, compiled per type by flash_attention_wgmma_fp16.cu and _bf16.cu.
//
//   forward_by_wgmma    launcher: what it supports, and which shape and policy for which problem
//
// All instances support causal masks in both alignments, windows, packed sequences and sinks.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "common/cuda/attention_mask.cuh"
#include "common/cuda/check.h"
#include "common/cuda/flash_launch.h"
#include "common/kernels/flash/flash_attention_wgmma.cuh"
#include "common/kernels/flash/hopper_forward_shapes.cuh"
#include "common/kernels/flash/flash.h"

template <class S, class P>
bool launch_options_wgmma(const FlashArguments& a, bool dry) {
    BandProblem p = {};
    const bool packed = a.cu_seqlens_q != nullptr;
    const hopper::RowShape rows = {packed ? 1 : a.batch, a.heads, a.S_q, a.head_dim};
    const hopper::RowShape keys = {packed ? 1 : a.batch, a.kv_heads, a.S_k, a.head_dim};
    if (!make_maps<S, P>(p, a, rows, keys)) return false;
    if (dry) return true;
    const int blocks = set_band_work(p, a, S::B_r);
    p.sources.set(a, packed || a.causal || a.window_left >= 0 || a.window_right >= 0);
    launch_wgmma<S, P>(p, blocks, a.stream);
    return true;
}

template <typename T>
using D96 = Shape<T, 96, 2, 128, 3, true, Order::FOLDED>;
template <typename T>
using D160 = Shape<T, 160, 2, 112, 2, false, Order::FOLDED, 1>;
template <typename T>
using D192 = Shape<T, 192, 2, 112, 2, false, Order::FOLDED, 1>;
template <typename T>
using D256 = Shape<T, 256, 2, 80, 2, false, Order::FOLDED, 1>;
template <typename T>  // random bits need registers: two groups, which have the most per thread
using D64Dropout = Shape<T, 64, 2, 128, 4, false, Order::SNAKE>;

inline ForwardSize size_of(const FlashArguments& a) {
    // For packed sequences the host knows only their mean length.
    const int64_t sequences = a.cu_seqlens_q == nullptr ? 1 : a.batch;
    const int64_t rows = ceil_div(a.S_q, sequences), keys = ceil_div(a.S_k, sequences);
    const bool left = a.window_left >= 0, right = a.window_right >= 0 || a.causal;
    const int64_t seen = left && right ? a.window_left + 1 + (a.causal ? 0 : a.window_right) : keys;
    return {a.batch * a.heads, rows, std::min(seen, keys), a.head_dim, right && !left};
}

// Rarer combinations have fewer shapes.
template <typename T, class P>
bool launch_by_size(const FlashArguments& a, bool dry) {
    const int head_dim = a.head_dim;
    const auto launch = [&]<class S>() { return launch_options_wgmma<S, P>(a, dry); };
    if constexpr (P::DROPOUT) {
        if (head_dim <= 64) return launch.template operator()<D64Dropout<T>>();
        return head_dim <= 128 && launch.template operator()<D128<T>>();
    } else {
        if (head_dim > 192) return launch.template operator()<D256<T>>();
        if (head_dim > (P::SOFTCAP ? 128 : 160)) return launch.template operator()<D192<T>>();
        if constexpr (P::SOFTCAP) {
            if (head_dim <= 64) return launch.template operator()<D64<T>>();
            return many_keys_are_faster<T>(size_of(a)) ? launch.template operator()<D128ManyKeys<T>>()
                                                       : launch.template operator()<D128<T>>();
        } else {
            if (head_dim > 128) return launch.template operator()<D160<T>>();
            if (head_dim > 64 && head_dim <= 96) return launch.template operator()<D96<T>>();
            return with_shape<T>(size_of(a), launch);
        }
    }
}

// False, with nothing done, if it does not support the problem or is not built for this GPU.
template <typename T>
bool forward_by_wgmma(const FlashArguments& a, bool dry) {
    constexpr int64_t MANY = int64_t{1} << 28;
    if (a.mask.kind != MaskKind::NONE || a.key_step != 1 || !(a.scale > 0) || !in_pieces<T>(a)) return false;
    if (a.causal && !a.lower_right && a.diagonal != 0) return false;
    if (a.softcap > 0 && a.dropout.seed != nullptr) return false;
    const int64_t tiles = a.cu_seqlens_q != nullptr ? a.S_q / 64 + a.batch : a.batch * ceil_div(a.S_q, int64_t{64});
    if (std::max({a.S_q, a.S_k, a.batch * a.heads, a.heads * tiles}) > MANY) return false;
    if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
    return a.dropout.seed != nullptr ? launch_by_size<T, OptionsPolicy<false, true>>(a, dry)
           : a.softcap > 0           ? launch_by_size<T, OptionsPolicy<true, false>>(a, dry)
                                     : launch_by_size<T, OptionsPolicy<false, false>>(a, dry);
}
