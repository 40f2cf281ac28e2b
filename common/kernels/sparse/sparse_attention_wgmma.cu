// sparse_attention_wgmma.cu - sparse attention, forward, float16 and bfloat16, for Hopper GPUs: the instances of
// flash/flash_attention_wgmma.cuh.
//
//   hopper_forward     launcher: what it supports, and which shape for which problem
//
// hopper_work.cuh has the patterns. For strided attention, the tensor map of K has a larger row stride: it is attention
// to a shorter sequence, read in place, and the rows in between are never touched. Measurements, bottlenecks, and what
// didn't work: README.md.
#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
#include "common/kernels/sparse/sparse.h"

bool hopper_forward(const SparseArguments&, bool) { return false; }  // not in this build
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/check.h"
#include "common/kernels/flash/flash_attention_wgmma.cuh"
#include "common/kernels/sparse/hopper_work.cuh"
#include "common/kernels/sparse/sparse.h"

using SparsePolicy = Policy<SparseProblem, SparseTile, SparseScheduler>;

// False, with nothing done, if the kernel does not support the problem or is not built for this GPU.
template <class S>
static bool launch(const SparseArguments& a) {
    SparseProblem p = {};
    const hopper::RowShape rows = {a.batch, a.heads, a.S_q, S::D}, keys = {a.batch, a.kv_heads, a.S_k, S::D};
    const int blocks = set_sparse_work<S>(p, a);
    if (blocks == 0 || !make_maps<S, SparsePolicy>(p, a, rows, keys)) return false;
    launch_wgmma<S, SparsePolicy>(p, blocks, a.stream);
    return true;
}

// D = 128: two groups, since with three, S, P and O do not fit in registers. D = 64: the softmax takes as long as the
// GEMMs, and a third group hides more of it; but its 192 rows cover more of what a window hides, and are not whole
// blocks of 128.
template <typename T>
static bool forward(const SparseArguments& a) {
    if (!(a.scale > 0) || (a.block != 0 && a.block != 128)) return false;
    if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
    if (a.head_dim == 128) return launch<Shape<T, 128, 2, 128, 2, false, Order::FOLDED>>(a);
    if (a.head_dim != 64) return false;
    return a.block != 0 || a.window > 0 ? launch<Shape<T, 64, 2, 128, 4, false, Order::FOLDED>>(a)
                                        : launch<Shape<T, 64, 3, 128, 4, false, Order::FOLDED>>(a);
}

bool hopper_forward(const SparseArguments& a, bool bfloat16) {
    return bfloat16 ? forward<__nv_bfloat16>(a) : forward<__half>(a);
}
#endif
