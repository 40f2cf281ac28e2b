// cache.cu - writes the keys and values of new tokens into the cache, contiguous or paged, of any dtype.
//
//   update_cache_kernel    one block per K/V head of a sequence and some of its new tokens
//   update_cache           picks the unit: how many bytes a thread copies at once
//
// Copying does not depend on the type. Where pointers, rows and strides allow, a thread moves 16 bytes of a key and 16
// of a value; otherwise one element of each. A single new token, the usual case, is so little data that only latency
// matters: one load each per thread, both in flight before either is waited for.
#include "common/kernels/decode/decode.h"

#include <algorithm>

#include "common/cuda/alignment.h"
#include "common/cuda/check.h"
#include "common/cuda/dependent_launch.cuh"
#include "common/kernels/decode/cache_layout.cuh"

constexpr int MAX_THREADS = 256;

// Sizes and strides of the arguments in units of Unit instead of elements.
//
// grid (batch * kv_heads, groups of tokens), block (any number of threads that a row's units divide)
template <typename Unit>
__global__ void __launch_bounds__(MAX_THREADS) update_cache_kernel(const UpdateArguments a, int row_units) {
    wait_for_predecessor();
    launch_dependents();
    const int64_t sequence = blockIdx.x / a.layout.kv_heads, kv_head = blockIdx.x % a.layout.kv_heads;
    const int64_t position = a.positions[sequence];
    if (position < 0 || position > a.layout.capacity - a.new_tokens) return;
    const Unit* key = static_cast<const Unit*>(a.key) + sequence * a.key_strides.batch + kv_head * a.key_strides.head;
    const Unit* value =
        static_cast<const Unit*>(a.value) + sequence * a.value_strides.batch + kv_head * a.value_strides.head;
    const int tokens = static_cast<int>(blockDim.x) / row_units;  // tokens that the block copies at once
    const int unit = static_cast<int>(threadIdx.x) % row_units;
    int64_t token = static_cast<int64_t>(blockIdx.y) * tokens + static_cast<int>(threadIdx.x) / row_units;
    for (; token < a.new_tokens; token += static_cast<int64_t>(gridDim.y) * tokens) {
        const int page = page_number(a.layout, sequence, position + token);
        if (!is_page(a.layout, page)) continue;
        const int64_t to = row_of(a.layout, sequence, kv_head, position + token, page) * row_units + unit;
        const Unit new_key = key[token * a.key_strides.row + unit];
        const Unit new_value = value[token * a.value_strides.row + unit];
        static_cast<Unit*>(a.k_cache)[to] = new_key;
        static_cast<Unit*>(a.v_cache)[to] = new_value;
    }
}

template <typename Unit>
static void launch(UpdateArguments a) {
    const int elements = static_cast<int>(sizeof(Unit)) / a.element_bytes;
    for (RowStrides* strides : {&a.key_strides, &a.value_strides}) {
        strides->batch /= elements;
        strides->head /= elements;
        strides->row /= elements;
    }
    const int row_units = a.layout.head_dim / elements;
    const int64_t wanted = std::min<int64_t>(a.new_tokens, MAX_THREADS / row_units);  // tokens per block
    const int threads = static_cast<int>(wanted) * row_units;
    const int64_t groups = std::min<int64_t>(ceil_div(a.new_tokens, wanted), MAX_GRID_YZ);
    const dim3 grid(grid_blocks(a.batch * a.layout.kv_heads, "update_cache"), static_cast<unsigned>(groups));
    launch_after(update_cache_kernel<Unit>, grid, threads, 0, a.stream, a, row_units);
}

// Whether everything that goes into a thread's address is a multiple of 16 bytes.
static bool vectors_fit(const UpdateArguments& a) {
    int64_t all = a.layout.head_dim;
    for (const RowStrides* strides : {&a.key_strides, &a.value_strides})
        all |= strides->batch | strides->head | strides->row;
    // element_bytes is a power of two, so the lowest bit set in any of them decides
    return all * a.element_bytes % 16 == 0 && all_aligned({a.k_cache, a.v_cache, a.key, a.value});
}

void launch_update_cache(const UpdateArguments& arguments) {
    if (vectors_fit(arguments)) return launch<uint4>(arguments);
    if (arguments.element_bytes == 4) return launch<uint32_t>(arguments);
    launch<uint16_t>(arguments);
}
