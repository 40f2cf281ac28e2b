// Asynchronous copies into shared memory: they arrive at the wait that covers them, for the thread that waits; others
// need a barrier after it.
//
//   one_tile     start, commit, wait, barrier, read; STEPS leaves one of them out
//   pipeline     two buffers: the next tile arrives while the current one is read
//   ragged       the end of the data: zeros instead of copies, or copies from beyond the end
//   overwritten  an ordinary write into a buffer that a copy still fills
#include "case.h"
#include "common/cuda/cp_async.cuh"

enum Steps { COMMIT = 1, WAIT = 2, BARRIER = 4, ALL_STEPS = 7 };

// 32 threads copy 4 values each; then out[t] = values of the thread before (OWN: of the thread itself).
template <int STEPS, bool OWN = false>
__global__ void one_tile(const float4* in, float4* out) {
    __shared__ float4 tile[32];
    const int t = threadIdx.x;
    cp_async<16>(&tile[t], &in[t]);  // line: start of copy
    if (STEPS & COMMIT) cp_async_commit();
    if (STEPS & WAIT) cp_async_wait<0>();
    if (STEPS & BARRIER) __syncthreads();
    out[t] = tile[OWN ? t : (t > 0 ? t - 1 : 0)];  // line: read of copy
}
template <int STEPS, bool OWN = false>
static void one_tile_case(float* result) {
    Array<float> in = ramp(128), out(128);
    one_tile<STEPS, OWN><<<1, 32>>>(reinterpret_cast<float4*>(in.data), reinterpret_cast<float4*>(out.data));
    out.download(result);
}
CASE(copy_all_steps) { one_tile_case<ALL_STEPS>(result); }
CASE(copy_own_without_barrier) { one_tile_case<COMMIT | WAIT, true>(result); }
CASE(copy_without_wait) { one_tile_case<COMMIT | BARRIER>(result); }
CASE(copy_own_without_wait) { one_tile_case<COMMIT, true>(result); }
CASE(copy_without_commit) { one_tile_case<WAIT | BARRIER>(result); }
CASE(copy_without_barrier) { one_tile_case<COMMIT | WAIT>(result); }

enum class Pipeline { right, late_wait, no_barrier_after_wait, no_barrier_before_reuse };

// The sum over 6 tiles of 32 x 4 floats, each tile read by the threads in reverse.
//   late_wait                 waits for all groups but one even when there is no later one: the last tile is not there
//   no_barrier_after_wait     the own copies are there, those of the others perhaps not
//   no_barrier_before_reuse   a copy into the buffer that others still read
template <Pipeline HOW>
__global__ void pipeline(const float4* in, float4* out) {
    __shared__ float4 buffer[2][32];
    const int t = threadIdx.x, other = t > 0 ? t - 1 : 0, tiles = 6;
    float4 sum = make_float4(0, 0, 0, 0);
    cp_async<16>(&buffer[0][t], &in[t]);  // line: first copy
    cp_async_commit();
    for (int tile = 0; tile < tiles; ++tile) {
        if (tile + 1 < tiles) {
            cp_async<16>(&buffer[(tile + 1) % 2][t], &in[(tile + 1) * 32 + t]);  // line: next copy
            cp_async_commit();
        }
        if (HOW == Pipeline::late_wait || tile + 1 < tiles)
            cp_async_wait<1>();
        else
            cp_async_wait<0>();
        if (HOW != Pipeline::no_barrier_after_wait) __syncthreads();
        const float4 value = buffer[tile % 2][other];  // line: pipeline read
        sum = make_float4(sum.x + value.x, sum.y + value.y, sum.z + value.z, sum.w + value.w);
        if (HOW != Pipeline::no_barrier_before_reuse) __syncthreads();
    }
    out[t] = sum;
}
template <Pipeline HOW>
static void pipeline_case(float* result) {
    Array<float> in = ramp(6 * 128), out(128);
    pipeline<HOW><<<1, 32>>>(reinterpret_cast<float4*>(in.data), reinterpret_cast<float4*>(out.data));
    out.download(result);
}
CASE(pipeline_right) { pipeline_case<Pipeline::right>(result); }
CASE(pipeline_late_wait) { pipeline_case<Pipeline::late_wait>(result); }
CASE(pipeline_no_barrier_after_wait) { pipeline_case<Pipeline::no_barrier_after_wait>(result); }
CASE(pipeline_no_barrier_before_reuse) { pipeline_case<Pipeline::no_barrier_before_reuse>(result); }

// A tile of 32 floats, of which n exist.
template <bool ZERO>
__global__ void ragged(const float* in, float* out, int n) {
    __shared__ float tile[32];
    const int t = threadIdx.x;
    if (ZERO)
        cp_async_zfill<4>(&tile[t], in + (t < n ? t : 0), t < n);
    else
        cp_async<4>(&tile[t], in + t);  // line: copy past the end
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    out[t] = tile[31 - t];
}
RUN(ragged_tile_zeros, 20, 32, { ragged<true><<<1, 32>>>(in.data, out.data, 20); })
RUN(ragged_tile_past_end, 20, 32, { ragged<false><<<1, 32>>>(in.data, out.data, 20); })

// The last element is set to zero: after the copy has arrived, or while it may still be on its way.
template <bool WAITED>
__global__ void overwritten(const float4* in, float4* out) {
    __shared__ float4 tile[32];
    const int t = threadIdx.x;
    cp_async<16>(&tile[t], &in[t]);  // line: overwritten copy
    cp_async_commit();
    if (WAITED) cp_async_wait<0>();
    if (t == 31) tile[t] = make_float4(0, 0, 0, 0);  // line: overwriting
    cp_async_wait<0>();
    __syncthreads();
    out[t] = tile[31 - t];
}
RUN(overwritten_after_wait, 128, 128,
    { overwritten<true><<<1, 32>>>(reinterpret_cast<float4*>(in.data), reinterpret_cast<float4*>(out.data)); })
RUN(overwritten_before_wait, 128, 128,
    { overwritten<false><<<1, 32>>>(reinterpret_cast<float4*>(in.data), reinterpret_cast<float4*>(out.data)); })
