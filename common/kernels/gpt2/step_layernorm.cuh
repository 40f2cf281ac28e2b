// step_layernorm.cuh - what a step begins with, and the layernorm before each column-parallel GEMV.
//
//   normalize      the residual stream -> the GEMV's input in shared memory; S: Step of persistent_step.cu
//   finish_norm    what the GEMV's outputs lack of the layernorm
//   embed          token and position -> the residual stream
#pragma once
#include "common/cuda/float_conversion.cuh"
#include "common/kernels/gpt2/step_gemv.cuh"

constexpr long long NOT_A_NUMBER = static_cast<long long>(1ull << 63);  // in the residual stream, from then on

// What a CTA subtracts from the residual stream and multiplies it by before it knows its layernorm: the mean of the
// last one and 1 / 16 of its 1 / standard deviation, so that 16 bits have room for a stream that has grown since.
struct Guess {
    float mean, scale;
};
constexpr float HEADROOM = 0.0625f;

// wait() -> the residual stream, float [rows][width]; if `wanted`, as guessed and times the norm's weight -> the GEMV's
// input, and sums of what was guessed -> moments. finish_norm() makes the GEMV's outputs those of the layernorm:
//
//     sum over k of ((x_k - mean) / std * weight_k + bias_k) * w_nk
//         = (sum over k of guessed_k * weight_k * w_nk  -  mean of guessed * sums[n]) / std of guessed  +  bias[n]
//
//     sums[n] = sum over k of weight_k * w_nk; bias[n] includes the sum over k of bias_k * w_nk
//
// So mean and standard deviation are added up while the tensor cores work.
template <class S, class Wait>
__device__ __forceinline__ void normalize(S& s, const float* weight, bool wanted, Wait wait) {
    const int width = s.a.model.width, items = width / 4, mine = static_cast<int>(threadIdx.x);  // of 4 columns
    const auto of_norm = [&](int i) { return __ldg(reinterpret_cast<const float4*>(weight) + i); };
    const float4 first_weight = of_norm(min(mine, items - 1));
    const float4* const stream = reinterpret_cast<const float4*>(wait());
    if (!wanted) return cta_sync();
    float sum[S::ROWS] = {}, squares[S::ROWS] = {};
    NO_UNROLL
    for (int item = mine; item < items; item += CTA_THREADS) {
        const float4 w = item == mine ? first_weight : of_norm(item);
        UNROLL
        for (int r = 0; r < S::ROWS; ++r) {
            if (r >= s.rows()) break;
            const float4 x = stream[r * items + item];
            const Guess& last = s.guesses[r];
            const float p = (x.x - last.mean) * last.scale, q = (x.y - last.mean) * last.scale;
            const float u = (x.z - last.mean) * last.scale, v = (x.w - last.mean) * last.scale;
            s.store_input(r, 4 * item, make_float4(p * w.x, q * w.y, u * w.z, v * w.w));
            sum[r] += p + q + (u + v), squares[r] += p * p + q * q + (u * u + v * v);
        }
    }
    UNROLL
    for (int r = 0; r < S::ROWS; ++r) {
        if (r >= s.rows()) break;
        const bool half = s.lane() >= 16;  // half of the lanes add up one, half the other
        float total = half ? squares[r] : sum[r];
        total += __shfl_xor_sync(FULL_WARP, half ? sum[r] : squares[r], 16);
        UNROLL
        for (int distance = 8; distance > 0; distance /= 2) total += __shfl_xor_sync(FULL_WARP, total, distance);
        if (s.lane() % 16 == 0) (half ? s.m.moments[r].squares : s.m.moments[r].sum)[s.warp()] = total;
    }
    cta_sync();
}

// {mean, 1 / standard deviation} of what was guessed, of row `wanted`; better guesses for the next layernorm. No CTA
// writes moments again before all its warps are here: it then has sums to which these warps' outputs were added.
template <class S>
__device__ __forceinline__ float2 finish_norm(S& s, int wanted) {
    const auto mean_of = [&](const float (&warps)[CTA_WARPS]) {
        return ((warps[0] + warps[4]) + (warps[2] + warps[6]) + ((warps[1] + warps[5]) + (warps[3] + warps[7]))) *
               s.a.plan.inverse_width;
    };
    float2 result = {};
    UNROLL
    for (int r = 0; r < S::ROWS; ++r) {
        if (r >= s.rows()) break;
        Guess& last = s.guesses[r];
        const float mean = mean_of(s.m.moments[r].sum), variance = mean_of(s.m.moments[r].squares) - mean * mean;
        const float scale = rsqrtf(fmaxf(variance, 0.0f) + s.a.eps * last.scale * last.scale);
        last.mean += mean / last.scale;
        last.scale *= HEADROOM * scale;
        if (r == wanted) result = make_float2(mean, scale);
    }
    return result;
}

// The step's embedding, by every CTA for itself. It goes where the next all-reduce but one does.
template <class S>
__device__ __forceinline__ const float* embed(S& s, int step) {
    using T = typename S::Type;
    struct alignas(4 * sizeof(T)) Columns {
        T x[4];
    };
    UNROLL
    for (int r = 0; r < S::ROWS; ++r) s.guesses[r] = {0.0f, HEADROOM};
    float* const stream = s.m.stream + (~s.reductions & 1) * s.rows() * s.a.model.width;
    for (int r = 0; r < s.rows(); ++r) {
        const int token = s.state.token[r], position = s.state.position[r] + step;
        const int word = token >= 0 && token < s.a.model.vocab ? token : 0;
        const int place = position >= 0 && position < s.a.context ? position : 0;
        const int items = s.a.model.width / 4;
        const Columns* const words = static_cast<const Columns*>(s.a.wte) + int64_t{word} * items;
        const Columns* const places = static_cast<const Columns*>(s.a.wpe) + int64_t{place} * items;
        NO_UNROLL
        for (int item = threadIdx.x; item < items; item += CTA_THREADS) {
            const Columns left = words[item], right = places[item];
            float x[4];
            UNROLL
            for (int i = 0; i < 4; ++i) {
                x[i] = to_float(left.x[i]) + to_float(right.x[i]);
                const int col = 4 * item + i - s.share.columns.begin;
                const long long fixed = fixed_point::to_fixed(s.a.plan.sum_scale, x[i]);
                if (col >= 0 && col < s.share.columns.count())
                    s.m.sums[r * s.share.columns.count() + col] =
                        fixed == s.a.plan.sum_scale.wrong ? NOT_A_NUMBER : fixed;
            }
            reinterpret_cast<float4*>(stream + r * s.a.model.width)[item] = make_float4(x[0], x[1], x[2], x[3]);
        }
    }
    return stream;
}
