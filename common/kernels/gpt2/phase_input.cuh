// phase_input.cuh - a product's input, laid out in shared memory.
//
//   1. Numbers    rounded_and_rest               2 columns of 16 bits, and what rounding took away
//                 store_input                    4 columns of a row
//   2. Embedding  embedded_input                 token and position -> residual stream, layernorm
//   3. Stream     normalized_input               residual stream, layernorm
//   4. States     merged_input                   the states of a head's parts -> its output
//
// ROWS: of the batch, at most. All end with a block_sync(): the input is there. PROJECTION's is made by
// phase_attention.cuh, and CONTRACT's comes by letter, as it is.
//
// 16-bit inputs come twice, rounded and the rest: the tensor cores have 16 rows, of which a batch takes 4, so
// that the rest costs nothing, and the input is as exact as 22 bits (float16) or 16 (bfloat16).
#pragma once
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/gpt2/phase_residual.cuh"

// -------------------------------------------------------------------------------------------------- 1. Numbers

template <typename T>
__device__ __forceinline__ uint2 rounded_and_rest(float x, float y) {
    const unsigned rounded = mma::pack<T>(x, y);
    const float2 back = mma::unpack<T>(rounded);
    return make_uint2(rounded, mma::pack<T>(x - back.x, y - back.y));
}

template <typename T>
__device__ __forceinline__ void store_input(const BlockMemory& m, int row, int col, const float4& x) {
    unsigned char* const to = m.input + row * m.input_stride + col * INPUT_BYTES;
    if constexpr (sizeof(T) == 4) {
        *reinterpret_cast<float4*>(to) = x;
    } else {
        const uint2 a = rounded_and_rest<T>(x.x, x.y), b = rounded_and_rest<T>(x.z, x.w);
        *reinterpret_cast<uint4*>(to) = make_uint4(a.x, a.y, b.x, b.y);
    }
}

// ------------------------------------------------------------------------------------------- 2., 3. Layernorm

// What a thread adds up of row r's columns; the sums of all threads are the row's mean and deviation.
template <int ROWS>
struct RowMoments {
    double sum[ROWS] = {}, squares[ROWS] = {};

    __device__ __forceinline__ void add(int r, const float4& x) {
        const double a = x.x, b = x.y, c = x.z, d = x.w;
        sum[r] += a + b + (c + d);
        squares[r] += a * a + b * b + (c * c + d * d);
    }
    // Half of the lanes add up one, half of them the other.
    __device__ __forceinline__ void store(const BlockMemory& m, int rows) {
        const int warp = static_cast<int>(threadIdx.x) / 32, half = static_cast<int>(threadIdx.x) % 32 / 16;
        UNROLL
        for (int r = 0; r < ROWS; ++r) {
            if (r >= rows) break;
            double mine = half ? squares[r] : sum[r];
            mine += __shfl_xor_sync(FULL_WARP, half ? sum[r] : squares[r], 16);
            UNROLL
            for (int distance = 8; distance > 0; distance /= 2) mine += __shfl_xor_sync(FULL_WARP, mine, distance);
            if (threadIdx.x % 16 == 0) (half ? m.moments[r].squares : m.moments[r].sum)[warp] = mine;
        }
    }
};

__device__ __forceinline__ double sum_of_warps(const double (&of)[BLOCK_WARPS]) {
    double sums[BLOCK_WARPS];
    UNROLL
    for (int w = 0; w < BLOCK_WARPS; ++w) sums[w] = of[w];
    UNROLL
    for (int count = BLOCK_WARPS / 2; count > 0; count /= 2) {
        UNROLL
        for (int w = 0; w < count; ++w) sums[w] += sums[w + count];
    }
    return sums[0];
}

// Mean and 1 / standard deviation of row r.
__device__ __forceinline__ float2 mean_and_scale(const Steps& a, const BlockMemory& m, int r) {
    const double mean = sum_of_warps(m.moments[r].sum) * a.plan.inverse_width;
    const double squares = sum_of_warps(m.moments[r].squares) * a.plan.inverse_width;
    const float variance = static_cast<float>(squares - mean * mean);
    return make_float2(static_cast<float>(mean), rsqrtf(fmaxf(variance, 0.0f) + a.eps));
}

// come() waits for the residual stream: float [rows][width]. norm: weight [width], bias [width], asked for before.
// wanted: whether the block has a product to make with it.
template <typename T, int ROWS, class Come>
__device__ __forceinline__ void normalize(const Steps& a, const BlockMemory& m, const float* norm, bool wanted,
                                          Come come) {
    const int width = a.model.width, items = width / 4, rows = rows_of<ROWS>(a.model);
    const int mine = static_cast<int>(threadIdx.x);  // and mine + BLOCK_THREADS, ...: pieces of 4 columns
    const auto four = [](const float* from, int item) { return reinterpret_cast<const float4*>(from)[item]; };
    const auto of_norm = [&](const float* from, int item) {
        return __ldg(reinterpret_cast<const float4*>(from) + item);
    };
    const int known = min(mine, items - 1);
    const float4 first_weight = of_norm(norm, known), first_bias = of_norm(norm + width, known);
    const float* const stream = come();
    if (!wanted) {
        block_sync();
        return;
    }
    RowMoments<ROWS> moments;
    NO_UNROLL
    for (int item = mine; item < items; item += BLOCK_THREADS) {
        UNROLL
        for (int r = 0; r < ROWS; ++r)
            if (r < rows) moments.add(r, four(stream + r * width, item));
    }
    moments.store(m, rows);
    block_sync();
    UNROLL
    for (int r = 0; r < ROWS; ++r) {
        if (r >= rows) break;
        const float2 scale = mean_and_scale(a, m, r);
        const auto normal = [&](float value, float by, float plus) { return (value - scale.x) * scale.y * by + plus; };
        NO_UNROLL
        for (int item = mine; item < items; item += BLOCK_THREADS) {
            const float4 w = item == mine ? first_weight : of_norm(norm, item);
            const float4 b = item == mine ? first_bias : of_norm(norm + width, item);
            const float4 v = four(stream + r * width, item);
            store_input<T>(m, r, 4 * item,
                           make_float4(normal(v.x, w.x, b.x), normal(v.y, w.y, b.y), normal(v.z, w.z, b.z),
                                       normal(v.w, w.w, b.w)));
        }
    }
    block_sync();
}

// By every block: the stream begins with it.
template <typename T, class K>
__device__ __forceinline__ void embedded_input(const Steps& a, const BlockMemory& m, const StepState& state, int step,
                                               const ResidualStream<K>& residual, const float* norm) {
    struct alignas(4 * sizeof(T)) Columns {
        T values[4];
    };
    float* const stream = residual.fresh();
    for (int r = 0; r < K::rows(a); ++r) {
        const int token = state.token[r], position = state.position[r] + step;
        const int word = token >= 0 && token < a.model.vocab ? token : 0;
        const int place = position >= 0 && position < a.context ? position : 0;
        const T* const words = static_cast<const T*>(a.wte) + int64_t{word} * a.model.width;
        const T* const places = static_cast<const T*>(a.wpe) + int64_t{place} * a.model.width;
        NO_UNROLL
        for (int item = threadIdx.x; item < a.model.width / 4; item += BLOCK_THREADS) {
            const Columns one = reinterpret_cast<const Columns*>(words)[item];
            const Columns other = reinterpret_cast<const Columns*>(places)[item];
            const auto sum = [&](int i) { return to_float(one.values[i]) + to_float(other.values[i]); };
            const float4 x = make_float4(sum(0), sum(1), sum(2), sum(3));
            residual.begin(r, 4 * item, x);
            reinterpret_cast<float4*>(stream + r * a.model.width)[item] = x;
        }
    }
    normalize<T, K::ROWS>(a, m, norm, true, [&] { return stream; });
}

// What an exchange made of the residual stream; see ResidualStream::gather.
struct Gathering {
    int set;
    unsigned addends;
};

// wanted: as above; else nothing is there but the stream's slice.
template <typename T, class K>
__device__ __forceinline__ void normalized_input(const Steps& a, const BlockMemory& m, ResidualStream<K>& residual,
                                                 const Gathering& from, const float* norm, bool wanted) {
    const auto come = [&]() -> const float* { return residual.gather(from.set, from.addends); };
    normalize<T, K::ROWS>(a, m, norm, wanted, come);
}
