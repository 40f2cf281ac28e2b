// step_outputs.cuh - what becomes of a decode step's products: a type for each, which the kernel is built with.
//
//   ToHeads       QKV        queries; keys and values into their slots of the cache
//   ToResidual    RESIDUAL   added to the residual stream
//   ToInner       GELU       gelu of it
//   ToLogits      LOGITS     as it is; the largest one is looked for
//
//   NORM                     whether the product's input is a layernorm of the residual stream
//   FINDS_BEST               whether a block's largest number is wanted
//   Output(p, r, n)          number n of sequence r, which exists: where it goes, and what lies there already. Made
//                            before the number is there, so that nothing has to be looked up behind it
//   store(value)             by the thread that made it; an Output() of its own belongs to no thread and stores nothing
#pragma once
#include "common/cuda/float_conversion.cuh"
#include "common/kernels/gpt2/gelu.cuh"
#include "common/kernels/gpt2/gpt2.h"

template <typename T>
struct ToHeads {  // n: the queries of all heads, then the keys, then the values
    static constexpr bool NORM = true, FINDS_BEST = false;
    T* to = nullptr;

    ToHeads() = default;
    __device__ __forceinline__ ToHeads(const StepProduct& p, int r, int n) {
        const int width = p.n / 3, part = n / width, col = n % width;
        const int position = __ldcg(p.positions + r);
        const int64_t slot = (int64_t{r} * (width / p.head_dim) + col / p.head_dim) * p.max_seq_len + position;
        if (part == 0)
            to = static_cast<T*>(p.out) + r * width + col;
        else if (position >= 0 && position < p.max_seq_len)
            to = static_cast<T*>(part == 1 ? p.k_cache : p.v_cache) + slot * p.head_dim + col % p.head_dim;
    }
    __device__ __forceinline__ void store(float value) const {
        if (to) *to = from_float<T>(value);
    }
};

template <typename T>
struct ToResidual {
    static constexpr bool NORM = false, FINDS_BEST = false;
    float *to = nullptr, old = 0.0f;

    ToResidual() = default;
    __device__ __forceinline__ ToResidual(const StepProduct& p, int r, int n)
        : to(p.residual + r * p.n + n), old(__ldcg(to)) {}
    __device__ __forceinline__ void store(float value) const {
        if (to) *to = old + value;
    }
};

template <typename T>
struct ToInner {
    static constexpr bool NORM = true, FINDS_BEST = false;
    T* to = nullptr;

    ToInner() = default;
    __device__ __forceinline__ ToInner(const StepProduct& p, int r, int n) : to(static_cast<T*>(p.out) + r * p.n + n) {}
    __device__ __forceinline__ void store(float value) const {
        if (to) *to = from_float<T>(gelu(value));
    }
};

template <typename T>
struct ToLogits {
    static constexpr bool NORM = true, FINDS_BEST = true;
    float* to = nullptr;

    ToLogits() = default;
    __device__ __forceinline__ ToLogits(const StepProduct& p, int r, int n)
        : to(static_cast<float*>(p.out) + int64_t{r} * p.n + n) {}
    __device__ __forceinline__ void store(float value) const {
        if (to) *to = value;
    }
};
