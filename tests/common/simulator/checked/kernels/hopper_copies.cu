// Bulk and tensor copies of TMA (compute capability 9.0).
//
//   row_in       32 floats from global to shared memory, one mbarrier
//   ring_in      several rows through two slots
//   row_out      from shared to global memory: stores and additions
//   boxes        of a matrix by a tensor map
#include <cuda.h>

#include "case.h"
#include "common/cuda/mbarrier.cuh"
#include "common/cuda/tma.cuh"

using namespace hopper;

enum class In { right, no_wait, expects_less, expects_more, expects_nothing, no_fence, odd_size, odd_address, two_copies, one_waits,
                arrives_instead, leaves_early, past_the_end };

// 64 threads; out[t] = in[63 - t]
template <In HOW>
__global__ void row_in(const float* in, float* out) {
    alignas(128) __shared__ float row[64];
    __shared__ Mbarrier full;
    const int t = threadIdx.x;
    if (t == 0) {
        mbarrier_init(full, 1);
        if (HOW != In::no_fence) mbarrier_init_done();
    }
    __syncthreads();
    if (t == 0) {
        if (HOW == In::arrives_instead || HOW == In::expects_nothing)
            mbarrier_arrive(full);
        else
            mbarrier_expect(full, HOW == In::expects_less ? 128 : HOW == In::expects_more ? 512 : 256);
        if (HOW == In::two_copies || HOW == In::expects_less) {
            bulk_load(row, in, 128, full);            // line: first copy
            bulk_load(row + 32, in + 32, 128, full);  // line: second copy
        } else
            bulk_load(row + (HOW == In::odd_address), in + (HOW == In::past_the_end ? 16 : 0), HOW == In::odd_size ? 250 : 256, full);  // line: copy in
    }
    if (HOW == In::leaves_early) return;
    if (HOW == In::one_waits) {
        if (t == 0) mbarrier_wait(full, 0);
        __syncthreads();
    } else if (HOW != In::no_wait)
        mbarrier_wait(full, 0);  // line: wait for copy
    out[t] = row[63 - t];        // line: read copy
}
RUN(bulk_row, 64, 64, { row_in<In::right><<<1, 64>>>(in.data, out.data); })
RUN(bulk_not_waited_for, 64, 64, { row_in<In::no_wait><<<1, 64>>>(in.data, out.data); })
RUN(bulk_expects_less, 64, 64, { row_in<In::expects_less><<<1, 64>>>(in.data, out.data); })
RUN(bulk_expects_more, 64, 64, { row_in<In::expects_more><<<1, 64>>>(in.data, out.data); })
RUN(bulk_expects_nothing, 64, 64, { row_in<In::expects_nothing><<<1, 64>>>(in.data, out.data); })
RUN(bulk_without_init_fence, 64, 64, { row_in<In::no_fence><<<1, 64>>>(in.data, out.data); })
RUN(bulk_odd_size, 64, 64, { row_in<In::odd_size><<<1, 64>>>(in.data, out.data); })
RUN(bulk_odd_address, 64, 64, { row_in<In::odd_address><<<1, 64>>>(in.data, out.data); })
RUN(bulk_two_copies, 64, 64, { row_in<In::two_copies><<<1, 64>>>(in.data, out.data); })
RUN(bulk_one_thread_waits, 64, 64, { row_in<In::one_waits><<<1, 64>>>(in.data, out.data); })
RUN(bulk_block_leaves_early, 64, 64, { row_in<In::leaves_early><<<1, 64>>>(in.data, out.data); })
RUN(bulk_past_the_end, 64, 64, { row_in<In::past_the_end><<<1, 64>>>(in.data, out.data); })

enum class Ringed { right, one_lane, never_empty, empty_too_early, parity_stuck };

// 64 threads, warp 0 asks, warp 1 adds up 6 rows of 32 through 2 slots.
template <Ringed HOW>
__global__ void ring_in(const float* in, float* out) {
    alignas(128) __shared__ float stages[2][32];
    __shared__ Mbarrier full[2], empty[2];
    const int t = threadIdx.x, lane = t % 32;
    if (t == 0) {
        for (int i = 0; i < 2; ++i) mbarrier_init(full[i], 1), mbarrier_init(empty[i], HOW == Ringed::one_lane ? 1 : 32);
        mbarrier_init_done();
    }
    __syncthreads();
    Ring<2> ring;
    float sum = 0;
    for (int i = 0; i < 6; ++i, ring.advance()) {
        const int stage = ring.stage();
        if (t == 0) {
            if (HOW != Ringed::never_empty) mbarrier_wait(empty[stage], ring.parity() ^ 1);
            mbarrier_expect(full[stage], 128);
            bulk_load(stages[stage], in + 32 * i, 128, full[stage]);  // line: copy into slot
        } else if (t >= 32) {
            if (HOW == Ringed::empty_too_early) {
                mbarrier_wait(full[stage], ring.parity());
                mbarrier_arrive(empty[stage]);
                sum += stages[stage][31 - lane];  // line: use late
            } else {
                mbarrier_wait(full[stage], HOW == Ringed::parity_stuck ? 0 : ring.parity());
                sum += stages[stage][31 - lane];  // line: use in time
                if (HOW == Ringed::one_lane) __syncwarp();
                if (HOW != Ringed::one_lane || lane == 0) mbarrier_arrive(empty[stage]);
            }
        }
    }
    if (t >= 32) out[lane] = sum;
}
RUN(ring_right, 192, 32, { ring_in<Ringed::right><<<1, 64>>>(in.data, out.data); })
RUN(ring_one_lane_gives_back, 192, 32, { ring_in<Ringed::one_lane><<<1, 64>>>(in.data, out.data); })
RUN(ring_refilled_unasked, 192, 32, { ring_in<Ringed::never_empty><<<1, 64>>>(in.data, out.data); })
RUN(ring_given_back_too_early, 192, 32, { ring_in<Ringed::empty_too_early><<<1, 64>>>(in.data, out.data); })
RUN(ring_parity_stuck, 192, 32, { ring_in<Ringed::parity_stuck><<<1, 64>>>(in.data, out.data); })

enum class Out { right, adds, no_fence, no_barrier, no_wait, reused_too_early, reused_after_wait, not_committed };

// 32 threads write a row, one stores it (twice, with other numbers, where it is used again).
template <Out HOW>
__global__ void row_out(float* out) {
    alignas(128) __shared__ float row[32];
    const int t = threadIdx.x;
    row[t] = static_cast<float>(t);  // line: write row
    if (HOW != Out::no_fence) fence_proxy_async();
    if (HOW != Out::no_barrier) __syncthreads();
    if (t == 0) {
        if (HOW == Out::adds)
            bulk_add(out, row, 128);
        else
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 128;" ::"l"(__cvta_generic_to_global(out)), "r"(shared_offset(row)) : "memory");  // line: store row
        if (HOW != Out::not_committed) asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        if (HOW == Out::reused_after_wait) bulk_read_done();
    }
    if (HOW == Out::reused_too_early || HOW == Out::reused_after_wait) {
        __syncthreads();
        row[t] = -1;  // line: write again
    }
    if (t == 0 && HOW != Out::no_wait && HOW != Out::reused_after_wait) bulk_done();
}
template <Out HOW>
static void row_out_case(float* result) {
    Array<float> out = ramp(32);
    row_out<HOW><<<1, 32>>>(out.data);
    out.download(result);
}
CASE(store_right) { row_out_case<Out::right>(result); }
CASE(store_adds) { row_out_case<Out::adds>(result); }
CASE(store_without_proxy_fence) { row_out_case<Out::no_fence>(result); }
CASE(store_without_barrier) { row_out_case<Out::no_barrier>(result); }
CASE(store_without_wait) { row_out_case<Out::no_wait>(result); }
CASE(store_not_committed) { row_out_case<Out::not_committed>(result); }
CASE(store_reused_too_early) { row_out_case<Out::reused_too_early>(result); }
CASE(store_reused_after_wait) { row_out_case<Out::reused_after_wait>(result); }

// ---- tensor maps: a matrix of float [8][16], boxes of [4][8]

static CUtensorMap map_of(Array<float>& matrix, bool encoded = true) {
    CUtensorMap map = {};
    const cuuint64_t sizes[] = {16, 8}, strides[] = {64};
    const cuuint32_t box[] = {8, 4}, steps[] = {1, 1};
    if (encoded && tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, matrix.data, sizes, strides, box, steps,
                                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        throw std::runtime_error("cuTensorMapEncodeTiled");
    return map;
}

// The box whose first element is [y][x]; 32 threads read it.
template <bool WAITS>
__global__ void box_in(const __grid_constant__ CUtensorMap map, int x, int y, float* out, unsigned bytes) {
    alignas(128) __shared__ float box[32];
    __shared__ Mbarrier full;
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_expect(full, bytes);
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_offset(box)), "l"(&map), "r"(shared_offset(&full)), "r"(x), "r"(y) : "memory");  // line: load box
    }
    if (WAITS) mbarrier_wait(full, 0);  // line: wait for box
    out[threadIdx.x] = box[threadIdx.x];  // line: read box
}
template <bool WAITS = true>
static void box_in_case(float* result, int x, int y, bool encoded = true, unsigned bytes = 128) {
    Array<float> matrix = ramp(128), out(32);
    box_in<WAITS><<<1, 32>>>(map_of(matrix, encoded), x, y, out.data, bytes);
    out.download(result);
}
CASE(box_inside) { box_in_case(result, 4, 2); }
CASE(box_over_the_edge) { box_in_case(result, 12, 6); }
CASE(box_before_the_edge) { box_in_case(result, -4, -1); }
CASE(box_not_waited_for) { box_in_case<false>(result, 4, 2); }
CASE(box_without_encoding) { box_in_case(result, 4, 2, false); }
CASE(box_counts_what_is_inside) { box_in_case(result, 12, 6, true, 32); }

// A box of threadIdx.x + 100 to [y][x]; ADD: added.
template <bool ADD, bool FENCE>
__global__ void box_out(const __grid_constant__ CUtensorMap map, int x, int y) {
    alignas(128) __shared__ float box[32];
    box[threadIdx.x] = static_cast<float>(threadIdx.x + 100);  // line: write box
    if (FENCE) fence_proxy_async();
    __syncthreads();
    if (threadIdx.x) return;
    if (ADD)
        asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x), "r"(y), "r"(shared_offset(box)) : "memory");
    else
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x), "r"(y), "r"(shared_offset(box)) : "memory");  // line: store box
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    bulk_done();
}
template <bool ADD, bool FENCE>
static void box_out_case(float* result) {
    Array<float> matrix = ramp(128);
    box_out<ADD, FENCE><<<1, 32>>>(map_of(matrix), 12, 6);
    matrix.download(result);
}
CASE(box_stored) { box_out_case<false, true>(result); }
CASE(box_added) { box_out_case<true, true>(result); }
CASE(box_stored_without_proxy_fence) { box_out_case<false, false>(result); }
