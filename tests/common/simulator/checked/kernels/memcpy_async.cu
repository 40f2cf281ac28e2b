// memcpy_async: the bytes arrive at a wait of the group, of the pipeline or of the barrier.
//
//   whole_group     cooperative_groups: each thread copies its share, and a wait of the whole group covers all
//   two_buffers     wait_prior: the next tile arrives while the current one is read
//   own_pipeline    a cuda::pipeline of each thread: others' copies need a barrier, too
//   shared_pipeline a cuda::pipeline of the block: a stage that all commit and wait for
//   roles           the same, with a warp that copies and one that reads
//   by_barrier      copies that belong to the phase of a cuda::barrier
//   bytes           shares of single bytes
//   to_global       from shared memory to global memory
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/pipeline>

#include "case.h"

#pragma nv_diag_suppress static_var_with_dynamic_init

namespace cg = cooperative_groups;

enum class Wait { of_group, of_warp, none };

template <Wait HOW>
__global__ void whole_group(const float* in, float* out) {
    __shared__ __align__(16) float tile[512];
    const auto block = cg::this_thread_block();
    const auto warp = cg::tiled_partition<32>(block);
    const int t = threadIdx.x;
    cg::memcpy_async(block, tile, in, sizeof tile);  // line: group copy
    if (HOW == Wait::of_group)
        cg::wait(block);
    else if (HOW == Wait::of_warp)
        cg::wait(warp);
    else
        __syncthreads();
    for (int i = t; i < 256; i += 64) out[i] = tile[511 - i];  // line: group read
}
RUN(group_wait, 512, 256, { whole_group<Wait::of_group><<<1, 64>>>(in.data, out.data); })
RUN(group_wait_of_a_warp, 512, 256, { whole_group<Wait::of_warp><<<1, 64>>>(in.data, out.data); })
RUN(group_barrier_for_wait, 512, 256, { whole_group<Wait::none><<<1, 64>>>(in.data, out.data); })

template <bool LATE>
__global__ void two_buffers(const float* in, float* out) {
    __shared__ float buffer[2][64];
    const auto block = cg::this_thread_block();
    const int t = threadIdx.x, tiles = 5;
    float sum = 0;
    cg::memcpy_async(block, buffer[0], in, 256);
    for (int tile = 0; tile < tiles; ++tile) {
        if (tile + 1 < tiles)
            cg::memcpy_async(block, buffer[(tile + 1) % 2], in + (tile + 1) * 64, 256);  // line: next buffer
        if (LATE || tile + 1 < tiles)
            cg::wait_prior<1>(block);
        else
            cg::wait(block);
        sum += buffer[tile % 2][63 - t];  // line: read buffer
        block.sync();
    }
    out[t] = sum;
}
RUN(buffers_right, 320, 64, { two_buffers<false><<<1, 64>>>(in.data, out.data); })
RUN(buffers_last_wait_prior, 320, 64, { two_buffers<true><<<1, 64>>>(in.data, out.data); })

template <bool WAIT, bool BARRIER, bool PRIOR = false>
__global__ void own_pipeline(const float4* in, float4* out) {
    __shared__ float4 tile[2][32];
    const int t = threadIdx.x;
    auto pipe = cuda::make_pipeline();
    for (int stage = 0; stage < 2; ++stage) {
        pipe.producer_acquire();
        cuda::memcpy_async(&tile[stage][t], &in[stage * 32 + t], cuda::aligned_size_t<16>(16), pipe);  // line: own copy
        pipe.producer_commit();
    }
    for (int stage = 0; stage < 2; ++stage) {
        if (PRIOR && stage == 0) cuda::pipeline_consumer_wait_prior<1>(pipe);
        if (PRIOR && stage == 1) cuda::pipeline_consumer_wait_prior<0>(pipe);
        if (!PRIOR && (WAIT || stage == 0)) pipe.consumer_wait();
        if (BARRIER) __syncthreads();
        out[stage * 32 + t] = tile[stage][31 - t];  // line: read others
        if (PRIOR) pipe.consumer_release();  // which does nothing where no other thread shares the pipeline
    }
}
template <bool WAIT, bool BARRIER, bool PRIOR = false>
static void own_pipeline_case(float* result) {
    Array<float> in = ramp(256), out(256);
    float4 *from = reinterpret_cast<float4*>(in.data), *to = reinterpret_cast<float4*>(out.data);
    own_pipeline<WAIT, BARRIER, PRIOR><<<1, 32>>>(from, to);
    out.download(result);
}
CASE(own_pipeline_right) { own_pipeline_case<true, true>(result); }
CASE(own_pipeline_prior) { own_pipeline_case<true, true, true>(result); }
CASE(own_pipeline_last_stage_not_awaited) { own_pipeline_case<false, true>(result); }
CASE(own_pipeline_without_barrier) { own_pipeline_case<true, false>(result); }

template <bool WAIT>
__global__ void shared_pipeline(const float* in, float* out) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ float tiles[2][64];
    const auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    const int t = threadIdx.x, steps = 5;
    float sum = 0;
    for (int step = 0, next = 0; step < steps; ++step) {
        for (; next < steps && next < step + 2; ++next) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, tiles[next % 2], in + next * 64, 256, pipe);  // line: stage copy
            pipe.producer_commit();
        }
        if (WAIT)
            pipe.consumer_wait();
        else
            block.sync();
        sum += tiles[step % 2][(t + 1) % 64];  // line: stage read
        pipe.consumer_release();
    }
    out[t] = sum;
}
RUN(stages_right, 320, 64, { shared_pipeline<true><<<1, 64>>>(in.data, out.data); })
RUN(stages_barrier_for_wait, 320, 64, { shared_pipeline<false><<<1, 64>>>(in.data, out.data); })

template <bool WAIT>
__global__ void roles(const float* in, float* out) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ float tiles[2][32];
    const auto block = cg::this_thread_block();
    const auto warp = cg::tiled_partition<32>(block);
    const bool copies = threadIdx.x < 32;
    const auto role = copies ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer;
    auto pipe = cuda::make_pipeline(block, &state, role);
    float sum = 0;
    for (int step = 0; step < 6; ++step) {
        if (copies) {
            pipe.producer_acquire();
            cuda::memcpy_async(warp, tiles[step % 2], in + step * 32, 128, pipe);  // line: role copy
            pipe.producer_commit();
        } else {
            if (WAIT || step < 5) pipe.consumer_wait();
            sum += tiles[step % 2][63 - threadIdx.x];  // line: role read
            pipe.consumer_release();
        }
    }
    if (!copies) out[threadIdx.x - 32] = sum;
}
RUN(roles_right, 192, 32, { roles<true><<<1, 64>>>(in.data, out.data); })
RUN(roles_last_stage_not_awaited, 192, 32, { roles<false><<<1, 64>>>(in.data, out.data); })

enum class Phase { awaited, by_parity, only_arrived, one_does_not_wait };

template <Phase HOW, bool ALONE = false>
__global__ void by_barrier(const float* in, float* out) {
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    __shared__ __align__(16) float tile[128];
    const auto block = cg::this_thread_block();
    const int t = threadIdx.x;
    if (t == 0) init(&barrier, 64);
    block.sync();
    float sum = 0;
    for (int round = 0; round < 2; ++round) {
        const float* from = in + round * 128;
        if (!ALONE) cuda::memcpy_async(block, tile, from, sizeof tile, barrier);  // line: phase copy
        if (ALONE && t == 0) cuda::memcpy_async(tile, from, cuda::aligned_size_t<16>(sizeof tile), barrier);
        auto token = barrier.arrive();
        if (HOW == Phase::by_parity)
            barrier.wait_parity(round % 2);
        else if (HOW == Phase::only_arrived)
            block.sync();
        else if (HOW == Phase::awaited || t != 5)
            barrier.wait(static_cast<decltype(token)&&>(token));
        sum += tile[127 - t];  // line: phase read
        block.sync();
    }
    out[t] = sum;
}
RUN(phase_awaited, 256, 64, { by_barrier<Phase::awaited><<<1, 64>>>(in.data, out.data); })
RUN(phase_of_one_copy, 256, 64, { by_barrier<Phase::awaited, true><<<1, 64>>>(in.data, out.data); })
RUN(phase_by_parity, 256, 64, { by_barrier<Phase::by_parity><<<1, 64>>>(in.data, out.data); })
RUN(phase_only_arrived, 256, 64, { by_barrier<Phase::only_arrived><<<1, 64>>>(in.data, out.data); })
RUN(phase_not_awaited_by_one, 256, 64, { by_barrier<Phase::one_does_not_wait><<<1, 64>>>(in.data, out.data); })

// 51 bytes from an odd address.
__global__ void bytes(const float* in, float* out) {
    __shared__ unsigned char part[64];
    const auto block = cg::this_thread_block();
    part[threadIdx.x] = 7;
    block.sync();
    cg::memcpy_async(block, part + 1, reinterpret_cast<const unsigned char*>(in) + 3, 51);
    cg::wait(block);
    out[threadIdx.x] = part[threadIdx.x];
}
RUN(bytes_from_odd_address, 16, 64, { bytes<<<1, 64>>>(in.data, out.data); })

template <bool WAIT>
__global__ void to_global(const float* in, float* out) {
    __shared__ float tile[64];
    const auto block = cg::this_thread_block();
    tile[63 - threadIdx.x] = in[threadIdx.x];
    block.sync();
    cg::memcpy_async(block, out, tile, sizeof tile);  // line: store copy
    if (WAIT)
        cg::wait(block);
    else
        block.sync();
    out[threadIdx.x] += 1;  // line: after store
}
RUN(copy_to_global, 64, 64, { to_global<true><<<1, 64>>>(in.data, out.data); })
RUN(copy_to_global_not_awaited, 64, 64, { to_global<false><<<1, 64>>>(in.data, out.data); })
