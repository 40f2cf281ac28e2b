// tma.cuh - TMA (Tensor Memory Accelerator): copies boxes of a tensor to shared memory. Compute capability 9.0.
//
//   make_tensor_map<T>(map, data, shape, strides, rows)    host: describes a tensor [batch][head][row][d], and a box
//   tma_load(to, map, barrier, d, row, head, batch)        device: one thread loads the box that starts there
//   bulk_load(to, from, bytes, barrier)                    the same for contiguous bytes
//   bulk_load_once(to, from, bytes, barrier)               for bytes that need not stay in the L2 cache
//   bulk_add(to, from, bytes)                              adds floats from shared memory to floats in global memory
//   bulk_read_done(), bulk_done()                          waits until the thread's additions have read their source,
//                                                          or are complete
//   fence_proxy_async()                                    makes this thread's shared-memory writes visible to TMA and
//                                                          wgmma, after a barrier
//   fence_proxy_async_global()                             the same for global memory: all writes visible to this
//                                                          thread
//
// TMA computes the addresses: strides are arbitrary as long as the elements of a row are contiguous, so a tensor of
// every 8th row is described like any other. Elements outside the tensor are not read and arrive as zeros. A box is
//
//   [rows][TMA_COLS]    TMA_COLS = 64 elements of 16 bits, 128 bytes a row
//
// stored in shared memory as wgmma.cuh expects: the eight 16-byte pieces of row r are in the order piece ^ (r % 8)
// ("128-byte swizzle"), so that neither rows nor columns of pieces have bank conflicts. `to` must be a multiple of 1024
// bytes. All bytes of a box, including those outside the tensor, count for mbarrier_expect().
//
// A tensor map is 128 bytes encoded by the host; a kernel takes it as a `const __grid_constant__` parameter, since TMA
// reads it in place.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "common/cuda/alignment.h"
#include "common/cuda/check.h"
#include "common/cuda/mbarrier.cuh"
#include "common/cuda/row_strides.h"
#include "common/cuda/shared_offset.cuh"

namespace hopper {

constexpr int TMA_COLS = 64;

struct RowShape {
    int64_t batch, heads, rows;
    int head_dim;
};

// The driver's function, obtained through the runtime, so that nothing links with libcuda.
inline auto tensor_map_encoder() {
    static const auto encode = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult found;
        CUDA_CHECK(
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
        return found == cudaDriverEntryPointSuccess ? reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)
                                                    : nullptr;
    }();
    return encode;
}

// False if TMA cannot address the tensor: `data` and the strides (given in elements) must be multiples of 16 bytes, not
// negative, with strides below 2^40 bytes and sizes up to 2^32 elements. rows: of a box, at most 256.
template <typename T>
bool make_tensor_map(CUtensorMap& map, const void* data, RowShape shape, RowStrides strides, int rows) {
    static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
    // The stride of a dimension of size 1 is unused; tensors may have odd ones there.
    const auto bytes = [](int64_t size, int64_t stride) {
        return static_cast<cuuint64_t>((size == 1 ? TMA_COLS : stride) * static_cast<int64_t>(sizeof(T)));
    };
    const auto size = [](int64_t n) { return static_cast<cuuint64_t>(n); };
    const cuuint64_t sizes[] = {size(shape.head_dim), size(shape.rows), size(shape.heads), size(shape.batch)};
    const cuuint64_t steps[] = {bytes(shape.rows, strides.row), bytes(shape.heads, strides.head),
                                bytes(shape.batch, strides.batch)};
    const cuuint32_t box[] = {TMA_COLS, static_cast<cuuint32_t>(rows), 1, 1};
    const cuuint32_t every[] = {1, 1, 1, 1};
    for (cuuint64_t step : steps)
        if (step % 16 != 0 || step >= cuuint64_t{1} << 40) return false;
    if (!all_aligned({data}) || tensor_map_encoder() == nullptr) return false;
    constexpr auto TYPE =
        std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    return tensor_map_encoder()(&map, TYPE, 4, const_cast<void*>(data), sizes, steps, box, every,
                                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Loads the box whose first element is [batch][head][row][d]; its bytes are counted at `barrier`.
__device__ __forceinline__ void tma_load(void* to, const CUtensorMap& map, Mbarrier& barrier, int d, int row, int head,
                                         int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_offset(to)),
        "l"(&map), "r"(shared_offset(&barrier)), "r"(d), "r"(row), "r"(head), "r"(batch)
        : "memory");
}

// bytes: a multiple of 16, as are both addresses.
__device__ __forceinline__ void bulk_load(void* to, const void* from, unsigned bytes, Mbarrier& barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_offset(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_offset(&barrier))
                 : "memory");
}

// The same with an evict-first policy in the L2 cache.
__device__ __forceinline__ void bulk_load_once(void* to, const void* from, unsigned bytes, Mbarrier& barrier) {
    asm volatile(
        "{\n"
        ".reg .b64 policy;\n"
        "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1], %2, [%3], policy;\n"
        "}" ::"r"(shared_offset(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_offset(&barrier))
        : "memory");
}

// The same with an evict-last policy in the L2 cache.
__device__ __forceinline__ void bulk_load_kept(void* to, const void* from, unsigned bytes, Mbarrier& barrier) {
    asm volatile(
        "{\n"
        ".reg .b64 policy;\n"
        "createpolicy.fractional.L2::evict_last.b64 policy, 1.0;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1], %2, [%3], policy;\n"
        "}" ::"r"(shared_offset(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_offset(&barrier))
        : "memory");
}

// float32, performed in the L2 cache; many blocks may add to the same address, in any order.
__device__ __forceinline__ void bulk_add(float* to, const void* from, unsigned bytes) {
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
        "cp.async.bulk.commit_group;" ::"l"(__cvta_generic_to_global(to)),
        "r"(shared_offset(from)), "r"(bytes)
        : "memory");
}
__device__ __forceinline__ void bulk_read_done() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void bulk_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void fence_proxy_async_global() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace hopper
