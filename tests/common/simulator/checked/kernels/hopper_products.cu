// wgmma (compute capability 9.0): products of a warpgroup, D [64][64] = A [64][64] B [64][64]^T of float16.
//
//   filled       the threads write the tiles themselves
//   loaded       TMA does
//
// A [i][k] = (i + k) % 4, B [j][k] = (j * 3 + k) % 5 - 2: sums of small integers, exact in any order. out: the first 256.
#include <cuda.h>
#include <cuda_fp16.h>

#include "case.h"
#include "common/cuda/mbarrier.cuh"
#include "common/cuda/tma.cuh"
#include "common/cuda/wgmma.cuh"

using namespace hopper;

static __device__ __half a_at(int i, int k) { return __float2half(static_cast<float>((i + k) % 4)); }
static __device__ __half b_at(int j, int k) { return __float2half(static_cast<float>((j * 3 + k) % 5 - 2)); }

// The first four rows: warp 0's lanes 0 to 15.
static __device__ void write_out(float* out, const float (&d)[8][4]) {
    const int lane = threadIdx.x % 32;
    if (threadIdx.x % 128 >= 16) return;
    for (int n = 0; n < 8; ++n)
        for (int e = 0; e < 2; ++e) out[lane / 4 * 64 + 8 * n + lane % 4 * 2 + e] = d[n][e];  // line: read sums
}

enum class Fill { right, bfloat, a_in_registers, b_mn_major, no_proxy_fence, no_barrier, no_wait, touched_early, no_first_fence,
                  changed_without_fence, changed_with_fence, overwritten_early, wait_too_few, wait_enough, swizzle_of_descriptor,
                  three_warps, descriptors_differ, proxy_fence_by_reader };

template <Fill HOW>
__global__ void __launch_bounds__(128) filled(float* out) {
    alignas(1024) __shared__ __half a[64 * 64];
    alignas(1024) __shared__ __half b[64 * 64];
    const int t = threadIdx.x;
    for (int i = t; i < 64 * 64; i += 128) {
        const int row = i / 64, k = i % 64, place = row * 64 + ((k / 8 ^ row % 8) * 8 + k % 8);
        a[place] = a_at(row, k);  // line: fill a
        const bool mn = HOW == Fill::b_mn_major;
        b[place] = mn ? b_at(k, row) : b_at(row, k);  // line: fill b
    }
    if (HOW != Fill::no_proxy_fence && HOW != Fill::proxy_fence_by_reader) fence_proxy_async();
    if (HOW != Fill::no_barrier) __syncthreads();
    if (HOW == Fill::proxy_fence_by_reader) fence_proxy_async();
    if (HOW == Fill::three_warps && t >= 96) return;

    float d[8][4] = {};
    KMajor left = KMajor::at(a), right = KMajor::at(b);
    if (HOW == Fill::swizzle_of_descriptor) right.bits = (right.bits & ~(uint64_t{3} << 62)) | uint64_t{2} << 62;
    if (HOW == Fill::descriptors_differ) right.bits += t % 2 * 2;
    if (HOW != Fill::no_first_fence) wgmma_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        if constexpr (HOW == Fill::b_mn_major || HOW == Fill::a_in_registers) {
            unsigned fragment[4];
            const int row = t / 32 * 16 + t % 32 / 4, column = k * 16 + t % 4 * 2;
            for (int i = 0; i < 4; ++i) {
                const __half2 pair = __halves2half2(a_at(row + i % 2 * 8, column + i / 2 * 8), a_at(row + i % 2 * 8, column + i / 2 * 8 + 1));
                fragment[i] = *reinterpret_cast<const unsigned*>(&pair);
            }
            if constexpr (HOW == Fill::b_mn_major)
                wgmma<__half>(d, fragment, MnMajor::at(b, 8192).plus(k * 2048), k > 0);
            else
                wgmma<__half>(d, fragment, right.plus(32 * k), k > 0);
            wgmma_commit();
            wgmma_wait<0>();
            keep_order(d);
            wgmma_begin();
        } else
            wgmma<__half>(d, left.plus(32 * k), right.plus(32 * k), k > 0);  // line: product
    }
    wgmma_commit();
    if (HOW == Fill::overwritten_early) a[t] = __float2half(9.0f);  // line: overwrite a
    if (HOW == Fill::touched_early && t == 0) out[0] = d[0][0];     // line: touch early
    if (HOW == Fill::wait_too_few || HOW == Fill::wait_enough) {
        float more[8][4];
        wgmma_begin();
        wgmma<__half>(more, left, right, false);
        wgmma_commit();
        if (HOW == Fill::wait_enough)
            wgmma_wait<1>();
        else
            wgmma_wait<2>();
        keep_order(d);
        write_out(out, d);
        wgmma_wait<0>();
        keep_order(more);
        return;
    }
    if (HOW != Fill::no_wait) wgmma_wait<0>();
    keep_order(d);
    if (HOW == Fill::changed_without_fence || HOW == Fill::changed_with_fence) {
        for (auto& row : d)
            for (float& x : row) x += 1;
        if (HOW == Fill::changed_with_fence) wgmma_begin();
        wgmma<__half>(d, left, right, true);  // line: product of changed registers
        wgmma_commit();
        wgmma_wait<0>();
        keep_order(d);
    }
    write_out(out, d);  // line: write out
}
RUN(wgmma_right, 1, 256, { filled<Fill::right><<<1, 128>>>(out.data); })
RUN(wgmma_a_in_registers, 1, 256, { filled<Fill::a_in_registers><<<1, 128>>>(out.data); })
RUN(wgmma_b_mn_major, 1, 256, { filled<Fill::b_mn_major><<<1, 128>>>(out.data); })
RUN(wgmma_without_proxy_fence, 1, 256, { filled<Fill::no_proxy_fence><<<1, 128>>>(out.data); })
RUN(wgmma_proxy_fence_by_reader, 1, 256, { filled<Fill::proxy_fence_by_reader><<<1, 128>>>(out.data); })
RUN(wgmma_without_barrier, 1, 256, { filled<Fill::no_barrier><<<1, 128>>>(out.data); })
RUN(wgmma_without_wait, 1, 256, { filled<Fill::no_wait><<<1, 128>>>(out.data); })
RUN(wgmma_touched_early, 1, 256, { filled<Fill::touched_early><<<1, 128>>>(out.data); })
RUN(wgmma_without_fence, 1, 256, { filled<Fill::no_first_fence><<<1, 128>>>(out.data); })
RUN(wgmma_changed_without_fence, 1, 256, { filled<Fill::changed_without_fence><<<1, 128>>>(out.data); })
RUN(wgmma_changed_with_fence, 1, 256, { filled<Fill::changed_with_fence><<<1, 128>>>(out.data); })
RUN(wgmma_operand_overwritten, 1, 256, { filled<Fill::overwritten_early><<<1, 128>>>(out.data); })
RUN(wgmma_waits_for_too_few, 1, 256, { filled<Fill::wait_too_few><<<1, 128>>>(out.data); })
RUN(wgmma_waits_for_enough, 1, 256, { filled<Fill::wait_enough><<<1, 128>>>(out.data); })
RUN(wgmma_three_warps, 1, 256, { filled<Fill::three_warps><<<1, 128>>>(out.data); })
RUN(wgmma_lanes_differ, 1, 256, { filled<Fill::descriptors_differ><<<1, 128>>>(out.data); })

enum class Load { right, not_waited_for, wrong_swizzle, wrong_stride, mn_for_k, refilled_early, refilled_in_time };

// Two steps of k = 64 with one slot each of A and B; a matrix is [64][128]
template <Load HOW>
__global__ void __launch_bounds__(128)
    loaded(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, float* out) {
    alignas(1024) __shared__ __half a[64 * 64];
    alignas(1024) __shared__ __half b[64 * 64];
    __shared__ Mbarrier full;
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_init_done();
    }
    __syncthreads();
    const auto load = [&](int k) {
        if (threadIdx.x) return;
        mbarrier_expect(full, 2 * 8192);
        tma_load(a, map_a, full, k, 0, 0, 0);  // line: load a
        tma_load(b, map_b, full, k, 0, 0, 0);  // line: load b
    };
    float d[8][4];
    KMajor left = KMajor::at(a), right = KMajor::at(b);
    if (HOW == Load::wrong_swizzle) right.bits = (right.bits & ~(uint64_t{3} << 62)) | uint64_t{2} << 62;
    if (HOW == Load::wrong_stride) right.bits = (right.bits & ~(uint64_t{0x3fff} << 32)) | uint64_t{512 / 16} << 32;
    load(0);
    for (int step = 0; step < 2; ++step) {
        if (HOW != Load::not_waited_for) mbarrier_wait(full, step);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if constexpr (HOW == Load::mn_for_k)
                wgmma<__half>(d, MnMajor::at(a, 8192).plus(2048 * k), MnMajor::at(b, 8192).plus(2048 * k), step + k > 0);
            else
                wgmma<__half>(d, left.plus(32 * k), right.plus(32 * k), step + k > 0);  // line: product of loaded
        }
        wgmma_commit();
        if (HOW == Load::refilled_early && step == 0) load(64);
        wgmma_wait<0>();
        keep_order(d);
        __syncthreads();
        if (HOW != Load::refilled_early && step == 0) load(64);
    }
    write_out(out, d);
}
template <Load HOW>
static void loaded_case(float* result) {
    std::vector<__half> a(64 * 128), b(64 * 128);
    for (int i = 0; i < 64; ++i)
        for (int k = 0; k < 128; ++k)
            a[i * 128 + k] = __float2half(static_cast<float>((i + k) % 4)), b[i * 128 + k] = __float2half(static_cast<float>((i * 3 + k) % 5 - 2));
    Array<__half> device_a(a), device_b(b);
    Array<float> out(256);
    CUtensorMap maps[2];
    const RowShape shape = {1, 1, 64, 128};
    const RowStrides strides = {64 * 128, 64 * 128, 128};
    if (!make_tensor_map<__half>(maps[0], device_a.data, shape, strides, 64) || !make_tensor_map<__half>(maps[1], device_b.data, shape, strides, 64))
        throw std::runtime_error("make_tensor_map");
    loaded<HOW><<<1, 128>>>(maps[0], maps[1], out.data);
    out.download(result);
}
CASE(tma_wgmma_right) { loaded_case<Load::right>(result); }
CASE(tma_wgmma_not_waited_for) { loaded_case<Load::not_waited_for>(result); }
CASE(tma_wgmma_wrong_swizzle) { loaded_case<Load::wrong_swizzle>(result); }
CASE(tma_wgmma_wrong_stride) { loaded_case<Load::wrong_stride>(result); }
CASE(tma_wgmma_refilled_early) { loaded_case<Load::refilled_early>(result); }
