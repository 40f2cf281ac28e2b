// rotary_cache.cu - rotates queries and keys by their positions, and writes keys and values into the cache.
//
//   Row                          a thread's part of a row: two units of VEC elements that are rotated together
//   update_cache_rotary_kernel   one block per query head or K/V head of a sequence and some of its new tokens
//   update_cache_rotary          picks VEC: 16 bytes if all rows allow it, otherwise one element
//
// Rotary embedding (Su et al. 2021, arXiv:2104.09864) rotates pair i of a row by an angle that depends on position and
// i:
//
//   (x, y) -> (x cos - y sin, y cos + x sin)       cos, sin [longest, rotary_dim / 2]
//
//   half-split    x = row[i], y = row[i + rotary_dim / 2]      Llama, GPT-NeoX
//   interleaved   x = row[2 i], y = row[2 i + 1]               GPT-J
//
// In either form a thread has VEC pairs, and so VEC consecutive entries of cos and sin; or VEC elements past
// rotary_dim, which stay unchanged. Values are copied in the same two units as the keys.
#include "common/kernels/decode/decode.h"

#include <algorithm>

#include "common/cuda/alignment.h"
#include "common/cuda/check.h"
#include "common/cuda/dependent_launch.cuh"
#include "common/cuda/float_conversion.cuh"
#include "common/kernels/decode/cache_layout.cuh"

constexpr int MAX_THREADS = 256;

template <typename T, int VEC>
struct alignas(sizeof(T) * VEC) Unit {
    T x[VEC];
};

// Two units of a row of head_dim elements, at `first` and at `second`; past rotary_dim there is no second one.
template <typename T, int VEC>
struct Row {
    int first, second, pair;  // elements; the first of the VEC pairs
    bool rotated, interleaved;

    __device__ Row(const RotaryArguments& a, int unit) : interleaved(a.interleaved) {
        const int half = a.rotary_dim / 2;
        pair = unit * VEC;
        rotated = pair < half;
        first = !rotated ? half + pair : interleaved ? 2 * pair : pair;
        second = interleaved ? first + VEC : first + half;
    }

    __device__ void copy(const T* from, T* to) const {
        const Unit<T, VEC> x = *reinterpret_cast<const Unit<T, VEC>*>(from + first);
        if (rotated)
            *reinterpret_cast<Unit<T, VEC>*>(to + second) = *reinterpret_cast<const Unit<T, VEC>*>(from + second);
        *reinterpret_cast<Unit<T, VEC>*>(to + first) = x;
    }

    // cos, sin [rotary_dim / 2] of the row's position
    __device__ void rotate(const T* from, T* to, const float* cos, const float* sin) const {
        if (!rotated) return copy(from, to);
        const Unit<T, VEC> old[2] = {*reinterpret_cast<const Unit<T, VEC>*>(from + first),
                                     *reinterpret_cast<const Unit<T, VEC>*>(from + second)};
        Unit<T, VEC> units[2];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const int even = 2 * i, odd = 2 * i + 1;  // of the pair's elements, where they are neighbors
            const float x = to_float(interleaved ? old[even / VEC].x[even % VEC] : old[0].x[i]);
            const float y = to_float(interleaved ? old[odd / VEC].x[odd % VEC] : old[1].x[i]);
            const float c = cos[pair + i], s = sin[pair + i];
            const T new_x = from_float<T>(x * c - y * s), new_y = from_float<T>(y * c + x * s);
            if (interleaved) {
                units[even / VEC].x[even % VEC] = new_x;
                units[odd / VEC].x[odd % VEC] = new_y;
            } else {
                units[0].x[i] = new_x;
                units[1].x[i] = new_y;
            }
        }
        *reinterpret_cast<Unit<T, VEC>*>(to + first) = units[0];
        *reinterpret_cast<Unit<T, VEC>*>(to + second) = units[1];
    }

    __device__ void clear(T* to) const {
        Unit<T, VEC> zeros;
#pragma unroll
        for (int i = 0; i < VEC; ++i) zeros.x[i] = from_float<T>(0.0f);
        *reinterpret_cast<Unit<T, VEC>*>(to + first) = zeros;
        if (rotated) *reinterpret_cast<Unit<T, VEC>*>(to + second) = zeros;
    }
};

// grid (batch * (heads + kv_heads), groups of tokens), block (any number of threads that row_threads divides)
template <typename T, int VEC>
__global__ void __launch_bounds__(MAX_THREADS) update_cache_rotary_kernel(const RotaryArguments a, int row_threads) {
    wait_for_predecessor();
    launch_dependents();
    const int64_t all_heads = a.heads + a.layout.kv_heads;
    const int64_t sequence = blockIdx.x / all_heads, head = blockIdx.x % all_heads, kv_head = head - a.heads;
    const int64_t given = a.left_padding == nullptr ? 0 : a.left_padding[sequence];
    const int64_t padding = given < 0 ? 0 : given > a.new_tokens ? a.new_tokens : given;
    const int64_t position = a.positions[sequence];
    const int64_t room = (a.layout.capacity < a.longest ? a.layout.capacity : a.longest) - (a.new_tokens - padding);
    const bool fits = position >= 0 && position <= room;
    if (!fits && head >= a.heads) return;
    const int tokens = static_cast<int>(blockDim.x) / row_threads;  // tokens that the block processes at once
    const Row<T, VEC> row(a, static_cast<int>(threadIdx.x) % row_threads);
    int64_t token = static_cast<int64_t>(blockIdx.y) * tokens + static_cast<int>(threadIdx.x) / row_threads;
    for (; token < a.new_tokens; token += static_cast<int64_t>(gridDim.y) * tokens) {
        const bool real = fits && token >= padding;
        const int64_t slot = position + token - padding;
        const int64_t angles = slot * (a.rotary_dim / 2);
        if (head < a.heads) {
            T* to = static_cast<T*>(a.out) + ((sequence * a.heads + head) * a.new_tokens + token) * a.layout.head_dim;
            const T* query = static_cast<const T*>(a.query) + sequence * a.query_strides.batch +
                             head * a.query_strides.head + token * a.query_strides.row;
            if (real)
                row.rotate(query, to, a.cos + angles, a.sin + angles);
            else
                row.clear(to);
            continue;
        }
        if (!real) continue;
        const int page = page_number(a.layout, sequence, slot);
        if (!is_page(a.layout, page)) continue;
        const int64_t to = row_of(a.layout, sequence, kv_head, slot, page) * a.layout.head_dim;
        const T* key = static_cast<const T*>(a.key) + sequence * a.key_strides.batch + kv_head * a.key_strides.head +
                       token * a.key_strides.row;
        const T* value = static_cast<const T*>(a.value) + sequence * a.value_strides.batch +
                         kv_head * a.value_strides.head + token * a.value_strides.row;
        row.copy(value, static_cast<T*>(a.v_cache) + to);
        row.rotate(key, static_cast<T*>(a.k_cache) + to, a.cos + angles, a.sin + angles);
    }
}

template <typename T, int VEC>
static void launch(const RotaryArguments& a) {
    const int row_threads = (a.rotary_dim / 2 + a.layout.head_dim - a.rotary_dim) / VEC;
    const int64_t wanted = std::min<int64_t>(a.new_tokens, MAX_THREADS / row_threads);  // tokens per block
    const int64_t groups = std::min<int64_t>(ceil_div(a.new_tokens, wanted), MAX_GRID_YZ);
    const dim3 grid(grid_blocks(a.batch * (a.heads + a.layout.kv_heads), "update_cache_rotary"),
                    static_cast<unsigned>(groups));
    launch_after(update_cache_rotary_kernel<T, VEC>, grid, static_cast<unsigned>(wanted) * row_threads, 0, a.stream, a,
                 row_threads);
}

// Whether every unit of `vec` elements, and of pairs, is 16-byte aligned.
static bool vectors_fit(const RotaryArguments& a, int vec) {
    int64_t all = a.layout.head_dim | a.rotary_dim / 2;
    for (const RowStrides* strides : {&a.query_strides, &a.key_strides, &a.value_strides})
        all |= strides->batch | strides->head | strides->row;
    // vec is a power of two, so the lowest bit set in any of them decides
    return all % vec == 0 && all_aligned({a.query, a.key, a.value, a.k_cache, a.v_cache, a.out});
}

void launch_update_cache_rotary(const RotaryArguments& arguments, FloatType type) {
    for_float_type(type, [&]<typename T>() {
        constexpr int VEC = 16 / static_cast<int>(sizeof(T));
        if (vectors_fit(arguments, VEC)) return launch<T, VEC>(arguments);
        launch<T, 1>(arguments);
    });
}
