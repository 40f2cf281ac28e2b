// step_outputs.cuh - epilogues of a decode step's GEMVs, compiled into the kernel.
//
//   QKV         queries; keys and values into their slots of the cache
//   RESIDUAL    added to the residual stream
//   GELU        gelu of it
//   LOGITS      stored unchanged; also finds the largest one
#pragma once
#include <type_traits>

#include "common/cuda/float_conversion.cuh"
#include "common/kernels/gpt2/gelu.cuh"
#include "common/kernels/gpt2/gpt2.h"

template <typename T, StepGemv::Output KIND>
struct Output {
    using Kind = StepGemv::Output;
    static constexpr bool NORM = KIND != Kind::RESIDUAL;      // the GEMV's input is a layernorm of the residual stream
    static constexpr bool FINDS_BEST = KIND == Kind::LOGITS;  // a block's largest number is needed
    using To = std::conditional_t<KIND == Kind::RESIDUAL || KIND == Kind::LOGITS, float, T>;
    To* to = nullptr;
    float old = 0.0f;

    // An output that belongs to no thread and stores nothing.
    Output() = default;
    // Number n of sequence r, which exists: its address, and its current value. Made before the number is computed, so
    // that nothing has to be looked up afterward. QKV: the queries of all heads, then the keys, then the values.
    __device__ __forceinline__ Output(const StepGemv& p, int r, int n) {
        if constexpr (KIND == Kind::QKV) {
            const int width = p.n / 3, part = n / width, col = n % width;
            const int position = __ldcg(p.positions + r);
            const int64_t slot = (int64_t{r} * (width / p.head_dim) + col / p.head_dim) * p.max_seq_len + position;
            if (part == 0)
                to = static_cast<T*>(p.out) + r * width + col;
            else if (position >= 0 && position < p.max_seq_len)
                to = static_cast<T*>(part == 1 ? p.k_cache : p.v_cache) + slot * p.head_dim + col % p.head_dim;
        } else {
            to = static_cast<To*>(KIND == Kind::RESIDUAL ? p.residual : p.out) + int64_t{r} * p.n + n;
            if (KIND == Kind::RESIDUAL) old = __ldcg(reinterpret_cast<const float*>(to));
        }
    }
    // Called by the thread that made it.
    __device__ __forceinline__ void store(float value) const {
        if (KIND == Kind::RESIDUAL) value += old;
        if (KIND == Kind::GELU) value = gelu(value);
        if (to) *to = from_float<To>(value);
    }
};
