// flash_merge.cu - merges attention over some keys into attention over others, in place.
//
//   1. Rows        where a warp's row is
//   2. Kernel      flash_merge_kernel
//   3. Launcher    flash_merge
//
// With (O_a, L_a) and (O_b, L_b), the outputs over two sets of keys and the logsumexp of their scores:
//
//   L = log(exp(L_a) + exp(L_b))        O = exp(L_a - L) O_a + exp(L_b - L) O_b
//
// (task 3's merge_states; FlashAttention-2, Dao 2023, arXiv:2307.08691, section 3.1.) Each number is read once and
// written once: the kernel is memory-bound.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "common/cuda/check.h"
#include "common/cuda/float_conversion.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/flash/flash.h"

// --------------------------------------------------------------------------------------------------- 1. Rows
//
// A warp merges a row; a lane handles WIDTH neighboring columns out of every 32 * WIDTH. WIDTH: 4, or 1 if rows are not
// aligned for that.

constexpr int WARPS_OF_MERGE = 8;

template <typename T, int WIDTH>
struct alignas(WIDTH * sizeof(T)) Piece {
    T x[WIDTH];
};

// ------------------------------------------------------------------------------------------------- 2. Kernel
//
// grid: ceil(batch * heads * rows / WARPS_OF_MERGE); block (32 * WARPS_OF_MERGE)
//
//   out [batch, heads, rows, head_dim] of T, lse [batch, heads, rows], of any strides: read and written
//   part [batch, heads, rows, head_dim] of Part, part_lse [batch, heads, rows], contiguous

template <typename T, typename Part, int WIDTH>
__global__ void __launch_bounds__(32 * WARPS_OF_MERGE) flash_merge_kernel(MergeArguments a) {
    const int64_t number = static_cast<int64_t>(blockIdx.x) * WARPS_OF_MERGE + threadIdx.x / 32;
    if (number >= a.batch * a.heads * a.rows) return;
    const int64_t row = number % a.rows, batch = number / a.rows / a.heads, head = number / a.rows % a.heads;
    float* lse = a.lse + batch * a.lse_strides.batch + head * a.lse_strides.head + row * a.lse_strides.row;
    const float one = *lse, other = a.part_lse[number], top = fmaxf(one, other);
    // A row that saw no key has -infinity and contributes nothing
    const float both = top == -INFINITY ? top : top + log1pf(expf(-fabsf(one - other)));
    const float kept = one == -INFINITY ? 0.0f : expf(one - both);
    const float added = other == -INFINITY ? 0.0f : expf(other - both);
    __syncwarp();  // all lanes have read lse
    if (threadIdx.x % 32 == 0) *lse = both;

    T* out = static_cast<T*>(a.out) + batch * a.out_strides.batch + head * a.out_strides.head + row * a.out_strides.row;
    const Part* part = static_cast<const Part*>(a.part) + number * a.head_dim;
    for (int col = threadIdx.x % 32 * WIDTH; col < a.head_dim; col += 32 * WIDTH) {
        auto& here = *reinterpret_cast<Piece<T, WIDTH>*>(out + col);
        Piece<T, WIDTH> sum = here;
        const auto more = *reinterpret_cast<const Piece<Part, WIDTH>*>(part + col);
        UNROLL
        for (int i = 0; i < WIDTH; ++i) sum.x[i] = from_float<T>(kept * to_float(sum.x[i]) + added * to_float(more.x[i]));
        here = sum;
    }
}

// ----------------------------------------------------------------------------------------------- 3. Launcher

template <typename T, typename Part>
static void launch(const MergeArguments& a) {
    const auto in_fours = [&](int64_t elements) { return elements % 4 == 0; };
    const auto at_fours = [&](const void* at, size_t size) { return reinterpret_cast<uintptr_t>(at) % (4 * size) == 0; };
    const bool wide = in_fours(a.head_dim) && in_fours(a.out_strides.batch) && in_fours(a.out_strides.head) &&
                      in_fours(a.out_strides.row) && at_fours(a.out, sizeof(T)) && at_fours(a.part, sizeof(Part));
    const int64_t rows = a.batch * a.heads * a.rows;
    const unsigned blocks = grid_blocks(ceil_div(rows, int64_t{WARPS_OF_MERGE}), "out");
    const auto kernel = wide ? flash_merge_kernel<T, Part, 4> : flash_merge_kernel<T, Part, 1>;
    kernel<<<blocks, 32 * WARPS_OF_MERGE, 0, a.stream>>>(a);
    CUDA_CHECK_LAUNCH();
}

void flash_merge(const MergeArguments& arguments) {
    for_float_type(arguments.part_type, [&]<typename Part>() {
        if (arguments.out_type == FloatType::FLOAT32) return launch<float, Part>(arguments);
        if constexpr (!std::is_same_v<Part, float>) launch<Part, Part>(arguments);
    });
}
