// step_layernorm.cuh - the start of a step, and the layernorm before each column-parallel GEMV.
//
//   normalize    the residual stream -> the GEMV's input in shared memory; S: Step of persistent_step.cu
//   embed        embeds token and position -> the residual stream
#pragma once
#include "common/cuda/float_conversion.cuh"
#include "common/kernels/gpt2/step_gemv.cuh"

constexpr long long NOT_A_NUMBER = static_cast<long long>(1ull << 63);  // stays in the residual stream

// wait() returns the residual stream, float [rows][width]; its layernorm -> the GEMV's input, if `wanted`. norm:
// weight, bias.
template <class S, class Wait>
__device__ __forceinline__ void normalize(S& s, const float* norm, bool wanted, Wait wait) {
    const int width = s.a.model.width, quads = width / 4, mine = static_cast<int>(threadIdx.x);  // of 4 columns
    const auto of_norm = [](const float* from, int i) { return __ldg(reinterpret_cast<const float4*>(from) + i); };
    const int known = min(mine, quads - 1);
    const float4 first_weight = of_norm(norm, known), first_bias = of_norm(norm + width, known);
    const float4* const stream = reinterpret_cast<const float4*>(wait());
    if (!wanted) return cta_sync();
    float sum[S::ROWS] = {}, squares[S::ROWS] = {};  // deviations from the last layernorm's mean
    NO_UNROLL
    for (int quad = mine; quad < quads; quad += CTA_THREADS) {
        UNROLL
        for (int r = 0; r < S::ROWS; ++r) {
            if (r >= s.rows()) break;
            const float4 x = stream[r * quads + quad];
            const float mean = s.means[r], p = x.x - mean, q = x.y - mean, u = x.z - mean, v = x.w - mean;
            sum[r] += p + q + (u + v), squares[r] += p * p + q * q + (u * u + v * v);
        }
    }
    UNROLL
    for (int r = 0; r < S::ROWS; ++r) {
        if (r >= s.rows()) break;
        const bool half = s.lane() >= 16;  // half of the lanes reduce one, half the other
        float total = half ? squares[r] : sum[r];
        total += __shfl_xor_sync(FULL_WARP, half ? sum[r] : squares[r], 16);
        UNROLL
        for (int distance = 8; distance > 0; distance /= 2) total += __shfl_xor_sync(FULL_WARP, total, distance);
        if (s.lane() % 16 == 0) (half ? s.m.moments[r].squares : s.m.moments[r].sum)[s.warp()] = total;
    }
    cta_sync();
    const auto mean_of = [&](const float (&warps)[CTA_WARPS]) {
        return ((warps[0] + warps[4]) + (warps[2] + warps[6]) + ((warps[1] + warps[5]) + (warps[3] + warps[7]))) *
               s.a.plan.inverse_width;
    };
    UNROLL
    for (int r = 0; r < S::ROWS; ++r) {
        if (r >= s.rows()) break;
        const float mean = mean_of(s.m.moments[r].sum), variance = mean_of(s.m.moments[r].squares) - mean * mean;
        const float shift = s.means[r] += mean, scale = rsqrtf(fmaxf(variance, 0.0f) + s.a.eps);
        NO_UNROLL
        for (int quad = mine; quad < quads; quad += CTA_THREADS) {
            const float4 w = quad == mine ? first_weight : of_norm(norm, quad);
            const float4 b = quad == mine ? first_bias : of_norm(norm + width, quad), x = stream[r * quads + quad];
            s.store_input(r, 4 * quad, make_float4((x.x - shift) * scale * w.x + b.x, (x.y - shift) * scale * w.y + b.y,
                                                 (x.z - shift) * scale * w.z + b.z, (x.w - shift) * scale * w.w + b.w));
        }
    }
    cta_sync();
}

// The step's embedding, computed by every CTA for itself. Stored where the all-reduce after the next stores its result.
template <class S>
__device__ __forceinline__ const float* embed(S& s, int step) {
    using T = typename S::Type;
    struct alignas(4 * sizeof(T)) Columns {
        T x[4];
    };
    UNROLL
    for (int r = 0; r < S::ROWS; ++r) s.means[r] = 0.0f;
    float* const stream = s.m.stream + (~s.reductions & 1) * s.rows() * s.a.model.width;
    for (int r = 0; r < s.rows(); ++r) {
        const int token = s.state.token[r], position = s.state.position[r] + step;
        const int token_row = token >= 0 && token < s.a.model.vocab ? token : 0;
        const int position_row = position >= 0 && position < s.a.context ? position : 0;
        const int quads = s.a.model.width / 4;
        const Columns* const token_embedding = static_cast<const Columns*>(s.a.wte) + int64_t{token_row} * quads;
        const Columns* const position_embedding = static_cast<const Columns*>(s.a.wpe) + int64_t{position_row} * quads;
        NO_UNROLL
        for (int quad = threadIdx.x; quad < quads; quad += CTA_THREADS) {
            const Columns left = token_embedding[quad], right = position_embedding[quad];
            float x[4];
            UNROLL
            for (int i = 0; i < 4; ++i) {
                x[i] = to_float(left.x[i]) + to_float(right.x[i]);
                const int col = 4 * quad + i - s.share.columns.begin;
                const long long fixed = fixed_point::to_fixed(s.a.plan.sum_scale, x[i]);
                if (col >= 0 && col < s.share.columns.count())
                    s.m.sums[r * s.share.columns.count() + col] =
                        fixed == s.a.plan.sum_scale.wrong ? NOT_A_NUMBER : fixed;
            }
            reinterpret_cast<float4*>(stream + r * s.a.model.width)[quad] = make_float4(x[0], x[1], x[2], x[3]);
        }
    }
    return stream;
}
