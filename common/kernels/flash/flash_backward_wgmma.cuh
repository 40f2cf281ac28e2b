// flash_backward_wgmma.cuh - attention gradients on Hopper GPUs (sm_90a), 16 bits: the instances of
// hopper_backward.cuh, compiled per type by flash_backward_wgmma_fp16.cu and _bf16.cu, and those of
// hopper_backward_wide.cuh, compiled by flash_backward_wide_fp16.cu and _bf16.cu.
//
//   1. Problems    make_problem, set_problem    the kernel's arguments, dense and with options
//   2. Launcher    backward_by_wgmma            what it supports
//
//   hopper_backward_sequences.cuh    windows and packed sequences
//   flash_backward.cuh               launch_row_numbers: delta and lse, a kernel that runs before
//   flash_query_sum.cuh              launch_convert: dQ in 16 bits, a kernel that runs after
//   flash_seen_gradients.cuh         the final launch: recomputes gradients contaminated by 0 * NaN of hidden pairs
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/flash_launch.h"
#include "common/cuda/logarithms.h"
#include "common/kernels/flash/flash.h"
#include "common/kernels/flash/flash_backward.cuh"
#include "common/kernels/flash/flash_host.h"
#include "common/kernels/flash/flash_query_sum.cuh"
#include "common/kernels/flash/flash_seen_gradients.cuh"
#include "common/kernels/flash/hopper_backward.cuh"
#include "common/kernels/flash/hopper_backward_sequences.cuh"
#include "common/kernels/flash/hopper_backward_wide.cuh"

// Limit on rows and keys; a window that wide hides nothing.
constexpr int64_t MANY = int64_t{1} << 28;

// ------------------------------------------------------------------------------------------------- 1. Problems

// The number of heads whose rows of Q, dO and the sum of dQ fit in the L2 cache: 8 bytes per element.
inline int heads_in_cache(int64_t rows, int64_t group, int D) {
    constexpr int64_t BYTES = int64_t{32} << 20;
    return static_cast<int>(std::max(BYTES / std::max(group * rows * D * 8, int64_t{1}), int64_t{1}));
}

template <class S>
auto kernel_of() {
    if constexpr (S::WIDE)
        return flash_backward_wide_kernel<S>;
    else
        return flash_backward_wgmma_kernel<S>;
}

// Sets the tensors of `batch` sequences and the sizes. False if the kernel is not built for this GPU or TMA cannot
// address the tensors.
template <class S>
bool make_problem(typename S::Problem& p, const AttentionArguments& a, int64_t batch, const void* grad_out,
                  const RowStrides& grad_out_strides) {
    using T = typename S::T;
    const hopper::RowShape rows = {batch, a.heads, a.S_q, a.head_dim}, keys = {batch, a.kv_heads, a.S_k, a.head_dim};
    if (!hopper::is_built(kernel_of<S>()) ||
        !hopper::make_tensor_map<T>(p.query, a.query, rows, a.query_strides, S::B_r) ||
        !hopper::make_tensor_map<T>(p.grad_out, grad_out, rows, grad_out_strides, S::B_r) ||
        !hopper::make_tensor_map<T>(p.key, a.key, keys, a.key_strides, S::K::ROWS) ||
        !hopper::make_tensor_map<T>(p.value, a.value, keys, a.value_strides, S::K::ROWS))
        return false;
    p.factor = a.scale * LOG2_E, p.scale = a.scale;
    p.S_q = static_cast<int>(a.S_q), p.S_k = static_cast<int>(a.S_k), p.head_dim = a.head_dim;
    p.kv_heads = static_cast<int>(a.kv_heads), p.group = static_cast<int>(a.heads / a.kv_heads);
    p.batch_kv = static_cast<int>(batch * a.kv_heads);
    p.k_blocks = static_cast<int>(ceil_div(a.S_k, int64_t{S::B_c}));
    p.section = 1;
    return true;
}

template <class S>
void set_problem(BackwardProblem& p, const FlashGradients& g) {
    const FlashArguments& a = g.forward;
    p.causal = a.causal, p.diagonal = static_cast<int>(a.diagonal);
    if (a.causal) p.section = heads_in_cache(a.S_q, p.group, S::D);
}

template <class S>
void set_problem(SequenceKeys::Problem& p, const FlashGradients& g) {
    const FlashArguments& a = g.forward;
    p.cu_seqlens_q = a.cu_seqlens_q, p.cu_seqlens_k = a.cu_seqlens_k;
    p.batch = static_cast<int>(a.batch), p.heads = static_cast<int>(a.heads);
    p.causal = a.causal, p.lower_right = a.lower_right;
    p.window_left = static_cast<int>(std::min(a.window_left, MANY));
    p.window_right = static_cast<int>(std::min(a.window_right, MANY));
    if (a.softcap > 0) p.inside = a.scale / a.softcap, p.factor = a.softcap * LOG2_E, p.log2_to_t = 1 / p.factor;
    p.dropout = a.dropout;
    p.key_head = g.grad_key_strides.head, p.key_row = g.grad_key_strides.row;
    if (a.packed()) p.k_blocks = static_cast<int>(tiles_of(a.batch, a.S_k, true, S::B_c));
    const bool rising = a.causal && a.window_left < 0;  // the first keys have the most rows
    if (rising || a.packed()) p.section = heads_in_cache(a.packed() ? a.S_q / a.batch : a.S_q, p.group, S::D);
}

// ------------------------------------------------------------------------------------------------- 2. Launcher

template <class S>
void launch_backward(const typename S::Problem& p, cudaStream_t stream) {
    const auto kernel = kernel_of<S>();
    const int ctas = device_attribute(cudaDevAttrMultiProcessorCount) / S::CTAS;
    const int blocks = std::min(p.batch_kv * p.k_blocks, ctas) * S::CTAS;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = S::CTAS, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks), config.blockDim = dim3(S::THREADS);
    config.dynamicSmemBytes = S::BYTES, config.stream = stream, config.attrs = &cluster, config.numAttrs = 1;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, p));
}

// False, with nothing done, if TMA cannot address the tensors or the kernel is not built for this GPU.
template <class S>
bool launch_by_wgmma(const FlashGradients& g, bool dry) {
    using T = typename S::T;
    constexpr bool DENSE = std::is_same_v<typename S::Keys, DenseKeys>;
    const FlashArguments& a = g.forward;
    typename S::Problem p = {};
    if (!make_problem<S>(p, a, a.packed() ? 1 : a.batch, g.grad_out, g.grad_out_strides)) return false;
    if (dry) return true;
    set_problem<S>(p, g);
    const BackwardSpace space(g, BackwardKernel::WGMMA);
    const RowNumbers numbers(g, space, LOG2_E);
    p.lse = numbers.lse, p.delta = numbers.delta, p.rows = static_cast<int>(numbers.rows);
    p.grad_query_sum = g.workspace, p.grad_key = g.grad_key, p.grad_value = g.grad_value;
    p.counter = space.counter(g), p.turns = g.deterministic ? space.nan(g) + 1 : nullptr;
    if constexpr (!DENSE) p.nan = space.nan(g);
    launch_row_numbers<T>(g, numbers, space, true);
    launch_backward<S>(p, a.stream);
    launch_convert<T, S::D, SumOrder::PIECES>(g, numbers, space.nan(g));
    const bool rows_without_keys = DENSE && a.diagonal < 0;
    launch_seen_gradients<T>(g, numbers, rows_without_keys ? nullptr : space.nan(g));
    return true;
}

// WIDE: head_dim 129 ... 256, otherwise up to 128. Without OPTIONS: the dense instances only.
template <typename T, bool WIDE, bool OPTIONS = true>
bool backward_by_wgmma(const FlashGradients& g, bool dry) {
    const FlashArguments& a = g.forward;
    const bool capped = a.softcap > 0, dropped = a.dropout.seed != nullptr;
    if ((a.head_dim > 128) != WIDE || a.mask.kind != MaskKind::NONE || a.key_step != 1) return false;
    // softcap >= 1, since tanh is recovered from P with as many digits as P has, divided by softcap
    if ((capped && dropped) || !(a.scale > 0) || (capped && a.softcap < 1) || !in_pieces<T>(g)) return false;
    const BackwardSpace space(g, BackwardKernel::WGMMA);
    const int64_t blocks = a.kv_heads * tiles_of(a.batch, a.S_k, a.packed(), 128);
    if (std::max({a.S_q, a.S_k, std::abs(a.diagonal), space.count, a.batch * a.heads, blocks}) > MANY) return false;
    if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
    const auto with_shape = [&]<class Dense, class Options, class Capped>() {
        if (a.is_dense()) return launch_by_wgmma<Instance<Dense, DenseKeys, Scores::PLAIN>>(g, dry);
        if constexpr (!OPTIONS) {
            return false;
        } else {
            if (a.causal && !a.lower_right && a.diagonal != 0) return false;
            return capped    ? launch_by_wgmma<Instance<Capped, SequenceKeys, Scores::CAPPED>>(g, dry)
                   : dropped ? launch_by_wgmma<Instance<Options, SequenceKeys, Scores::DROPPED>>(g, dry)
                             : launch_by_wgmma<Instance<Options, SequenceKeys, Scores::PLAIN>>(g, dry);
        }
    };
    if constexpr (WIDE)
        return a.head_dim <= 192 ? with_shape.template operator()<D192<T>, D256<T>, D256<T>>()
                                 : with_shape.template operator()<D256<T>, D256<T>, D256<T>>();
    else
        return a.head_dim <= 64 ? with_shape.template operator()<D64<T>, D64<T>, D64Capped<T>>()
                                : with_shape.template operator()<D128<T>, D128<T>, D128<T>>();
}
