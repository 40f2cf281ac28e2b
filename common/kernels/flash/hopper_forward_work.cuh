// hopper_forward_work.cuh - which rows and tiles a block of the forward kernels for Hopper GPUs has, in which order.
//
//   Problem      FlashArguments as the kernels want them
//   keys_seen    how many keys a row sees
//   Item, Items  a piece of work; those of a block, one after the other
//   set_work     host: fills a Problem, but for the tensor maps
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "common/cuda/check.h"
#include "common/cuda/hopper_rows.cuh"
#include "common/cuda/logarithms.h"
#include "common/kernels/flash/flash.h"

enum class Order { FOLDED, SNAKE };  // of the items under a causal mask, see Items

// FlashArguments as the kernel wants them; names as there.
struct Problem {
    CUtensorMap query, key, value;
    void* out;
    float* lse;
    float factor;  // scale * log2(e)
    int S_q, S_k, head_dim, heads, group;  // group: query heads per key head
    bool causal;
    int diagonal;
    int batch_heads, q_blocks;
    bool folded;
    hopper::Sources sources;
};

// How many keys a row sees, the first ones. Rows past the last see what the last one does.
__device__ __forceinline__ int keys_seen(const Problem& a, int row) {
    return a.causal ? max(0, min(a.S_k, min(row, a.S_q - 1) + a.diagonal + 1)) : a.S_k;
}

// B_r rows of a head, and the tiles of keys that they see, from tile `first` on. Rows that see no key get one tile, too:
// that behind the last key, of which the copy engine makes zeros, and the mask hides it.
struct Item {
    int batch_head, q_start, first, tiles;
};

// The items of a block, one after the other; producer and consumers go through the same ones. There is no counter in
// memory from which blocks would draw. Without a mask the items of a head are neighbours, so that blocks that run at
// the same time find its K and V in the L2 cache. Under a causal mask, where late rows see more keys than early ones:
//
//   FOLDED    the last rows of a head and then its first, the last but one and the second, ...: pairs that take the
//             same time, with K and V read close together.
//   SNAKE     all heads' last rows, all heads' last but one, ..., dealt to the blocks from left to right and back:
//             the last and shortest items fill up what is uneven, so that all blocks end together.
template <class S>
class Items {
  public:
    __device__ __forceinline__ explicit Items(const Problem& problem) : a(problem) {}

    // False if there is none left.
    __device__ __forceinline__ bool take(Item& item) {
        const int last = a.q_blocks - 1;
        int q_block;
        if (!a.causal) {
            const int number = round * gridDim.x + blockIdx.x;
            item.batch_head = number / a.q_blocks, q_block = number % a.q_blocks;
        } else if (S::ORDER == Order::FOLDED && a.folded) {
            const int pairs = a.q_blocks / 2 + a.q_blocks % 2, pair = round / 2 * gridDim.x + blockIdx.x;
            const int i = pair % pairs;
            item.batch_head = pair / pairs, q_block = round % 2 == 0 ? last - i : i;
            if (round % 2 == 0 && i == last - i) ++round;  // the one in the middle is no pair
        } else {
            const int place = round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
            const int number = round * gridDim.x + place;
            item.batch_head = number % a.batch_heads, q_block = last - number / a.batch_heads;
        }
        ++round;
        if (item.batch_head >= a.batch_heads || q_block < 0) return false;
        item.q_start = q_block * S::B_r;
        item.first = 0, item.tiles = ceil_div(keys_seen(a, item.q_start + S::B_r - 1), S::B_c);
        if (item.tiles == 0) item.first = ceil_div(a.S_k, S::B_c), item.tiles = 1;
        return true;
    }

  private:
    const Problem& a;
    int round = 0;
};

// All but the tensor maps. Returns how many blocks there should be.   B_r: rows of a block
inline int set_work(Problem& p, const FlashArguments& a, int B_r) {
    const int processors = device_attribute(cudaDevAttrMultiProcessorCount);
    p.out = a.out;
    p.lse = a.lse;
    p.factor = a.scale * LOG2_E;
    p.S_q = static_cast<int>(a.S_q), p.S_k = static_cast<int>(a.S_k), p.head_dim = a.head_dim;
    p.heads = static_cast<int>(a.heads), p.group = static_cast<int>(a.heads / a.kv_heads);
    p.causal = a.causal, p.diagonal = static_cast<int>(a.diagonal);
    p.batch_heads = static_cast<int>(a.batch * a.heads), p.q_blocks = static_cast<int>(ceil_div(a.S_q, int64_t{B_r}));
    const int items = p.batch_heads * p.q_blocks;
    p.folded = items > processors;
    p.sources.set(a, a.causal);
    return std::min(items, processors);
}
