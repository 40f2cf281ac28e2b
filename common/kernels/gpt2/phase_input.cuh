// phase_input.cuh - a product's input: gathered from what the blocks handed on, and laid out in shared memory.
//
//   1. Numbers    store_input                    4 columns of a row, rounded to T; 16 bits: and what that took away
//   2. Embedding  embedded_input                 token and position -> residual stream, layernorm
//   3. Stream     normalized_input               residual stream, layernorm
//   4. States     merged_input                   the states of a head's parts -> its output
//   5. Rows       copied_input                   rows of T as they are
//
// ROWS: of the batch, at most. Every thread asks for all it needs before it waits for the first word. All end with a
// block_sync(): the input is there. 2 and 3 leave the residual stream in `residual`.
//
// 16-bit inputs come twice, rounded and the rest (`low`): the tensor cores have 16 rows, of which a batch takes 4, so
// that the rest costs nothing, and the input is as exact as 22 bits (float16) or 16 (bfloat16).
#pragma once
#include "common/cuda/attention_states.cuh"
#include "common/cuda/mma.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/gpt2/phase_block.cuh"
#include "common/kernels/gpt2/vectors.cuh"

// -------------------------------------------------------------------------------------------------- 1. Numbers

template <typename T>
__device__ __forceinline__ void store_input(const BlockMemory& m, int row, int col, const float4& x) {
    T* const high = reinterpret_cast<T*>(m.high + row * m.high_stride) + col;
    if constexpr (sizeof(T) == 4) {
        *reinterpret_cast<float4*>(high) = x;
    } else {
        const uint2 rounded = {mma::pack<T>(x.x, x.y), mma::pack<T>(x.z, x.w)};
        const float2 a = mma::unpack<T>(rounded.x), b = mma::unpack<T>(rounded.y);
        T* const low = reinterpret_cast<T*>(m.low + row * m.low_stride) + col;
        *reinterpret_cast<uint2*>(high) = rounded;
        *reinterpret_cast<uint2*>(low) =
            make_uint2(mma::pack<T>(x.x - a.x, x.y - a.y), mma::pack<T>(x.z - b.x, x.w - b.y));
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
    __device__ __forceinline__ void store(const BlockMemory& m, int rows) {
        UNROLL
        for (int r = 0; r < ROWS; ++r) {
            if (r >= rows) break;
            UNROLL
            for (int distance = 16; distance > 0; distance /= 2) {
                sum[r] += __shfl_xor_sync(FULL_WARP, sum[r], distance);
                squares[r] += __shfl_xor_sync(FULL_WARP, squares[r], distance);
            }
            if (threadIdx.x % 32 == 0) m.moments[r * BLOCK_WARPS + threadIdx.x / 32] = {sum[r], squares[r]};
        }
    }
};

// Mean and 1 / standard deviation of row r.
__device__ __forceinline__ float2 mean_and_scale(const BlockMemory& m, int r, int width, float eps) {
    double sum = 0.0, squares = 0.0;
    UNROLL
    for (int w = 0; w < BLOCK_WARPS; ++w) {
        sum += m.moments[r * BLOCK_WARPS + w].sum;
        squares += m.moments[r * BLOCK_WARPS + w].squares;
    }
    const double mean = sum / width;
    const float variance = static_cast<float>(squares / width - mean * mean);
    return make_float2(static_cast<float>(mean), rsqrtf(fmaxf(variance, 0.0f) + eps));
}

// ask(r, item) begins to fetch columns 4 item ... 4 item + 3 of the residual stream, come(asked, item) waits until
// those of all rows are there, take(asked) has them.
// norm: weight [width], bias [width]
template <typename T, int ROWS, class Ask, class Come, class Take>
__device__ __forceinline__ void normalize(const Steps& a, const BlockMemory& m, const float* norm, Ask ask, Come come,
                                          Take take) {
    const int width = a.model.width, items = width / 4, rows = a.model.rows;
    float4* const residual = reinterpret_cast<float4*>(m.residual);
    float4 weight[NORM_ITEMS], bias[NORM_ITEMS];
    UNROLL
    for (int i = 0; i < NORM_ITEMS; ++i) {
        const int item = threadIdx.x + i * BLOCK_THREADS;
        if (item < items) {
            weight[i] = __ldg(reinterpret_cast<const float4*>(norm) + item);
            bias[i] = __ldg(reinterpret_cast<const float4*>(norm + width) + item);
        }
    }
    RowMoments<ROWS> moments;
    UNROLL
    for (int i = 0; i < NORM_ITEMS; ++i) {
        const int item = threadIdx.x + i * BLOCK_THREADS;
        if (item >= items) break;
        decltype(ask(0, 0)) asked[ROWS];
        UNROLL
        for (int r = 0; r < ROWS; ++r)
            if (r < rows) asked[r] = ask(r, item);
        come(asked, item);
        UNROLL
        for (int r = 0; r < ROWS; ++r) {
            if (r >= rows) break;
            const float4 x = take(asked[r]);
            residual[r * items + item] = x;
            moments.add(r, x);
        }
    }
    moments.store(m, rows);
    block_sync();
    UNROLL
    for (int r = 0; r < ROWS; ++r) {
        if (r >= rows) break;
        const float2 scale = mean_and_scale(m, r, width, a.eps);
        UNROLL
        for (int i = 0; i < NORM_ITEMS; ++i) {
            const int item = threadIdx.x + i * BLOCK_THREADS;
            if (item >= items) break;
            const float4 x = residual[r * items + item], w = weight[i], b = bias[i];
            const auto normal = [&](float value, float by, float plus) {
                return (value - scale.x) * scale.y * by + plus;
            };
            store_input<T>(m, r, 4 * item,
                           make_float4(normal(x.x, w.x, b.x), normal(x.y, w.y, b.y), normal(x.z, w.z, b.z),
                                       normal(x.w, w.w, b.w)));
        }
    }
    block_sync();
}

template <typename T, int ROWS>
__device__ __forceinline__ void embedded_input(const Steps& a, const BlockMemory& m, const StepState& state, int step,
                                               const float* norm) {
    struct alignas(4 * sizeof(T)) Columns {
        T values[4];
    };
    struct Asked {
        Columns word, place;
    };
    const auto ask = [&](int r, int item) {
        const int token = state.token[r], position = state.position[r] + step;
        const int word = token >= 0 && token < a.model.vocab ? token : 0;
        const int place = position >= 0 && position < a.context ? position : 0;
        const T* const words = static_cast<const T*>(a.wte) + int64_t{word} * a.model.width;
        const T* const places = static_cast<const T*>(a.wpe) + int64_t{place} * a.model.width;
        return Asked{reinterpret_cast<const Columns*>(words)[item], reinterpret_cast<const Columns*>(places)[item]};
    };
    const auto come = [](Asked(&)[ROWS], int) {};
    const auto take = [&](const Asked& asked) {
        const auto sum = [&](int i) { return to_float(asked.word.values[i]) + to_float(asked.place.values[i]); };
        return make_float4(sum(0), sum(1), sum(2), sum(3));
    };
    normalize<T, ROWS>(a, m, norm, ask, come, take);
}

// words: float [rows][width]
template <typename T, int ROWS>
__device__ __forceinline__ void normalized_input(const Steps& a, const BlockMemory& m, const tagged::Word* words,
                                                 unsigned tag, const float* norm) {
    struct Asked {
        tagged::Pair first, second;
    };
    const auto place = [&](int r, int item) { return words + r * a.model.width + 4 * item; };
    const auto ask = [&](int r, int item) {
        return Asked{tagged::peek(place(r, item)), tagged::peek(place(r, item) + 2)};
    };
    const auto come = [&](Asked(&asked)[ROWS], int item) {
        bool missing = true;
        while (missing) {
            missing = false;
            UNROLL
            for (int r = 0; r < ROWS; ++r) {
                if (r >= a.model.rows) break;
                if (tagged::has_tag(asked[r].first, tag) && tagged::has_tag(asked[r].second, tag)) continue;
                asked[r] = ask(r, item);
                missing = true;
            }
        }
    };
    const auto take = [&](const Asked& asked) {
        return make_float4(__uint_as_float(asked.first.x), __uint_as_float(asked.first.z),
                           __uint_as_float(asked.second.x), __uint_as_float(asked.second.z));
    };
    normalize<T, ROWS>(a, m, norm, ask, come, take);
}

// --------------------------------------------------------------------------------------------------- 4. States

// words: float [rows][heads][splits][head_dim + 2]
template <typename T>
__device__ __forceinline__ void merged_input(const Steps& a, const BlockMemory& m, const tagged::Word* words,
                                             unsigned tag) {
    constexpr int AT_ONCE = 4;  // states
    const int head_dim = a.model.head_dim(), row_items = a.model.width / 4, splits = a.plan.splits;
    for (int i = threadIdx.x; i < a.model.rows * row_items; i += BLOCK_THREADS) {
        const int r = i / row_items, col = i % row_items * 4;
        const tagged::Word* const states =
            words + (r * a.model.heads + col / head_dim) * splits * (head_dim + 2) + col % head_dim;
        const int to_sums = head_dim - col % head_dim;
        attention::State state;
        for (int first = 0; first < splits; first += AT_ONCE) {
            tagged::Pair pairs[3 * AT_ONCE];  // of each state: 2 of its columns, 2 more, and m and l
            const auto place = [&](int i) -> const tagged::Word* {
                const int s = first + i / 3;
                const tagged::Word* const one = states + s * (head_dim + 2);
                return s >= splits ? nullptr : i % 3 == 2 ? one + to_sums : one + 2 * (i % 3);
            };
            tagged::get_all(pairs, place, tag);
            UNROLL
            for (int s = 0; s < AT_ONCE; ++s) {
                if (first + s >= splits) break;
                const tagged::Pair low = pairs[3 * s], high = pairs[3 * s + 1], sums = pairs[3 * s + 2];
                state.add({__uint_as_float(sums.x), __uint_as_float(sums.z),
                           make_float4(__uint_as_float(low.x), __uint_as_float(low.z), __uint_as_float(high.x),
                                       __uint_as_float(high.z))});
            }
        }
        const float inverse = inverse_of(state.l);
        store_input<T>(m, r, col,
                       make_float4(state.o.x * inverse, state.o.y * inverse, state.o.z * inverse, state.o.w * inverse));
    }
    block_sync();
}

// ----------------------------------------------------------------------------------------------------- 5. Rows

// words: T [rows][columns]
template <typename T>
__device__ __forceinline__ void copied_input(const Steps& a, const BlockMemory& m, const tagged::Word* words,
                                             unsigned tag, int columns) {
    constexpr int AT_ONCE = 4;                              // pieces of 16 bytes, which are 4 words
    const int vectors = columns / Vector<T>::SIZE, count = a.model.rows * vectors;
    for (int first = threadIdx.x; first < count; first += AT_ONCE * BLOCK_THREADS) {
        tagged::Pair pairs[2 * AT_ONCE];
        const auto place = [&](int i) {
            const int vector = first + i / 2 * BLOCK_THREADS;
            return vector < count ? words + 4 * vector + 2 * (i % 2) : nullptr;
        };
        tagged::get_all(pairs, place, tag);
        UNROLL
        for (int i = 0; i < AT_ONCE; ++i) {
            const int vector = first + i * BLOCK_THREADS;
            if (vector >= count) break;
            const tagged::Pair low = pairs[2 * i], high = pairs[2 * i + 1];
            unsigned char* const row = m.high + vector / vectors * m.high_stride;
            reinterpret_cast<uint4*>(row)[vector % vectors] = make_uint4(low.x, low.z, high.x, high.z);
        }
    }
    block_sync();
}
