// hopper_forward_work.cuh - the work tiles of the forward kernels for Hopper GPUs, and their order.
//
//   ForwardProblem, BandProblem   the kernels' parameters: dense attention; attention with options
//   keys_seen                 how many keys a row of dense attention sees
//   WorkTile, TileScheduler   a tile of rows and the tiles of keys that they see; iterates over a CTA's
//   BandTile, BandScheduler   the same with windows and packed sequences
//   set_work, set_band_work   host: fill in the parameters except for the tensor maps
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "common/cuda/attention_arguments.h"
#include "common/cuda/check.h"
#include "common/cuda/hopper_rows.cuh"
#include "common/cuda/logarithms.h"
#include "common/kernels/flash/attention_policies.cuh"

enum class Order { FOLDED, SNAKE };  // of work tiles under a causal mask, see TileOrder

// FlashArguments as the kernel takes them (flash.h); names as there.
struct ForwardProblem {
    CUtensorMap query, key, value;
    void* out;
    float* lse;
    float factor;  // scale * log2(e), or with a softcap softcap * log2(e)
    int S_q, S_k, head_dim, heads, group;  // group: query heads per key head
    bool causal;                           // later rows see more keys, or TileOrder should assume so
    int diagonal;
    int batch_heads, q_blocks;
    bool folded;
    bool by_rows = false;  // out: [batch, S_q, heads, head_dim]
    hopper::Sources sources;
};

// A row sees the first keys_seen() keys. Rows past the last see as many as the last one.
__device__ __forceinline__ int keys_seen(const ForwardProblem& a, int row) {
    return a.causal ? max(0, min(a.S_k, min(row, a.S_q - 1) + a.diagonal + 1)) : a.S_k;
}

// ------------------------------------------------------------------------------------------------- dense

// B_r rows of a head, and the tiles of keys that they see, starting at tile `first`. Rows that see no key also get one
// tile: the one after the last key, which TMA fills with zeros and the mask hides.
struct WorkTile {
    static constexpr bool HAS_WINDOW = false;  // so every row sees the first key, if any
    int batch_head, q_start, first, tiles;

    // Coordinates for the TMA loads of its tiles.
    __device__ __forceinline__ int batch(const ForwardProblem& a) const { return batch_head / a.heads; }
    __device__ __forceinline__ int head(const ForwardProblem& a) const { return batch_head % a.heads; }
    __device__ __forceinline__ int query_row() const { return q_start; }
    __device__ __forceinline__ int key_row(int key) const { return key; }

    // The index of its t-th tile of keys; whether tiles are consecutive or listed.
    __device__ __forceinline__ int key_tile(const ForwardProblem&, int t) const { return first + t; }
    __device__ __forceinline__ bool is_listed(const ForwardProblem&) const { return false; }
    __device__ __forceinline__ int rows(const ForwardProblem& a) const { return a.S_q; }
    __device__ __forceinline__ int first_key_of(const ForwardProblem&, int /*row*/) const { return 0; }
    __device__ __forceinline__ int end_of_keys(const ForwardProblem& a, int row) const { return keys_seen(a, row); }
};

// The order of a CTA's work tiles. Producer and consumers each compute it, without a counter in memory. If all rows see
// equally many keys, the tiles of a head are consecutive, so that CTAs that run at the same time find its K and V in
// the L2 cache. Under a causal mask, where later rows see more keys:
//
//   FOLDED    a head's last tile and then its first, the second-to-last and the second, ...: pairs that take the same
//             time, with K and V read close together in time.
//   SNAKE     all heads' last tiles, all heads' second-to-last, ..., dealt to the CTAs from left to right and back: the
//             last and shortest tiles even out the load, so that all CTAs end together. Also with windows, as long as
//             all visible K and V fit in the L2 cache: neighboring CTAs in one head would request all of its K and V at
//             once.
template <Order ORDER>
class TileOrder {
  public:
    // False if none is left.
    __device__ __forceinline__ bool take(const ForwardProblem& a, int& batch_head, int& q_block) {
        const int last = a.q_blocks - 1;
        if (!a.causal) {
            const int number = snake();
            batch_head = number / a.q_blocks, q_block = number % a.q_blocks;
        } else if (ORDER == Order::FOLDED && a.folded) {
            const int pairs = a.q_blocks / 2 + a.q_blocks % 2, pair = round / 2 * gridDim.x + blockIdx.x;
            const int i = pair % pairs;
            batch_head = pair / pairs, q_block = round % 2 == 0 ? last - i : i;
            if (round % 2 == 0 && i == last - i) ++round;  // the middle one has no partner
        } else {
            const int number = snake();
            batch_head = number % a.batch_heads, q_block = last - number / a.batch_heads;
        }
        ++round;
        return batch_head < a.batch_heads && q_block >= 0;
    }
    // The index of the next tile, dealt from left to right and back.
    __device__ __forceinline__ int snake() const {
        return round * gridDim.x + (round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
    }

  protected:
    int round = 0;
};

template <class S>
class TileScheduler : TileOrder<S::ORDER> {
  public:
    __device__ __forceinline__ explicit TileScheduler(const ForwardProblem& problem) : a(problem) {}

    // False if none is left.
    __device__ __forceinline__ bool take(WorkTile& tile) {
        int q_block;
        if (!TileOrder<S::ORDER>::take(a, tile.batch_head, q_block)) return false;
        tile.q_start = q_block * S::B_r;
        tile.first = 0, tile.tiles = ceil_div(keys_seen(a, tile.q_start + S::B_r - 1), S::B_c);
        if (tile.tiles == 0) tile.first = ceil_div(a.S_k, S::B_c), tile.tiles = 1;
        return true;
    }

  private:
    const ForwardProblem& a;
};

// ------------------------------------------------------------------------------------------------- options

// FlashArguments as the kernel takes them; names as there.
struct BandProblem : ForwardProblem {
    int window_left, window_right;
    bool hides_later, lower_right;  // hides_later: FlashArguments::causal
    int batch;
    bool by_level;  // see BandScheduler
    const int *cu_seqlens_q, *cu_seqlens_k;
    float inside;  // scale / softcap, 1 without; factor is softcap * log2(e) with a softcap
    const float* sinks;
    Dropout dropout;
    RowStrides out_strides;
};

// A WorkTile of one of several sequences, each with its Band.
struct BandTile {
    static constexpr bool HAS_WINDOW = true;
    int number, head_, q_start, first, tiles, first_row, first_key;  // number: of the sequence
    Band<int> band;

    __device__ __forceinline__ int batch(const BandProblem& a) const { return a.cu_seqlens_q == nullptr ? number : 0; }
    __device__ __forceinline__ int head(const BandProblem&) const { return head_; }
    __device__ __forceinline__ int query_row() const { return first_row + q_start; }
    __device__ __forceinline__ int key_row(int key) const { return first_key + key; }

    __device__ __forceinline__ int key_tile(const BandProblem&, int t) const { return first + t; }
    __device__ __forceinline__ bool is_listed(const BandProblem&) const { return false; }
    __device__ __forceinline__ int rows(const BandProblem&) const { return band.rows; }
    __device__ __forceinline__ int first_key_of(const BandProblem&, int row) const { return band.first_key_of(row); }
    __device__ __forceinline__ int end_of_keys(const BandProblem&, int row) const { return band.end_of_keys(row); }
};

// The bounds of packed sequences are known only in device memory. All lanes of a warp call take().
//
//   by_level    Level by level, the last rows first: a level is a range of tile indices, at most 1 / LEVELS of the
//               longest sequence's tiles, over all sequences that are long enough; within a level sequence by sequence,
//               all heads of a tile consecutively. The CTAs end together, but each level reads all of K and V, so this
//               is for tiles of many rows.
//   otherwise   Sequence by sequence, head by head, as in TileOrder. A CTA's indices increase, so it scans the
//               sequences only once.
template <class S>
class BandScheduler : TileOrder<S::ORDER> {
    using Order = TileOrder<S::ORDER>;
    static constexpr int LEVELS = 16;

  public:
    __device__ __forceinline__ explicit BandScheduler(const BandProblem& problem) : a(problem) {
        if (a.cu_seqlens_q == nullptr || !a.by_level) return;
        int most = 1, ignored;
        for (int number = lane(); number < a.batch; number += 32) most = max(most, tiles_of(number, ignored));
        UNROLL
        for (int distance = 16; distance > 0; distance /= 2)
            most = max(most, __shfl_xor_sync(FULL_WARP, most, distance));
        step = ceil_div(most, LEVELS);
        level = most / step * step;
        chunk = -32;
    }

    __device__ __forceinline__ bool take(BandTile& tile) {
        int q_block;
        if (a.cu_seqlens_q == nullptr) {
            int batch_head;
            if (!Order::take(a, batch_head, q_block)) return false;
            tile.number = batch_head / a.heads, tile.head_ = batch_head % a.heads;
            tile.first_row = tile.first_key = 0;
            set_band(tile, a.S_q, a.S_k);
        } else if (!a.by_level) {
            const bool folded = a.causal, second = folded && Order::round % 2 == 1;
            const int number = (folded ? Order::round / 2 : Order::round) * gridDim.x + blockIdx.x;
            while (number >= passed + in_chunk) {
                if (chunk == a.batch) return false;
                passed += in_chunk;
                in_sequence = tiles_of(chunk++, first_row);
                in_head = folded ? in_sequence / 2 + in_sequence % 2 : in_sequence;
                in_chunk = a.heads * in_head;
            }
            const int i = (number - passed) % in_head, last = in_sequence - 1 - i;
            q_block = second || !folded ? i : last;
            tile.number = chunk - 1, tile.head_ = (number - passed) / in_head;
            if (folded && !second && i == last) ++Order::round;  // the middle one has no partner
            ++Order::round;
            const int rows = rows_of(a.cu_seqlens_q, tile.number, a.S_q, tile.first_row);
            set_band(tile, rows, rows_of(a.cu_seqlens_k, tile.number, a.S_k, tile.first_key));
        } else {
            const int number = Order::snake(), place = number / a.heads;
            ++Order::round;
            int rows = 0, first_row = 0, own = 0, end = 0;  // own: tiles that this lane's sequence has in the level
            const auto look = [&] {
                rows = 0;
                own = 0;
                if (chunk + lane() < a.batch)
                    own = min(max(tiles_of(chunk + lane(), first_row, &rows) - level, 0), step);
                end = own;
                UNROLL
                for (int distance = 1; distance < 32; distance *= 2) {
                    const int before = __shfl_up_sync(FULL_WARP, end, distance);
                    if (lane() >= distance) end += before;
                }
            };
            if (chunk >= 0) look();
            while (place >= passed + in_chunk) {
                passed += in_chunk;
                chunk += 32;
                if (chunk >= a.batch) chunk = 0, level -= step;
                if (level < 0) return false;
                look();
                in_chunk = __shfl_sync(FULL_WARP, end, 31);
            }
            const int at = place - passed, from = __ffs(__ballot_sync(FULL_WARP, end > at)) - 1;
            q_block = level + __shfl_sync(FULL_WARP, end, from) - 1 - at;
            tile.number = chunk + from, tile.head_ = number % a.heads;
            tile.first_row = __shfl_sync(FULL_WARP, first_row, from);
            const int keys = rows_of(a.cu_seqlens_k, tile.number, a.S_k, tile.first_key);
            set_band(tile, __shfl_sync(FULL_WARP, rows, from), __shfl_sync(FULL_WARP, keys, 0));
        }
        tile.q_start = q_block * S::B_r;
        tile.first = tile.band.first_key_of(tile.q_start) / S::B_c;
        const int last_row = min(tile.q_start + S::B_r, tile.band.rows) - 1;
        tile.tiles = ceil_div(tile.band.end_of_keys(last_row), S::B_c) - tile.first;
        if (tile.tiles <= 0) tile.first = ceil_div(tile.band.keys, S::B_c), tile.tiles = 1;
        return true;
    }

  private:
    static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
    __device__ __forceinline__ int tiles_of(int number, int& first, int* rows = nullptr) const {
        const int count = rows_of(a.cu_seqlens_q, number, a.S_q, first);
        if (rows != nullptr) *rows = count;
        return ceil_div(count, S::B_r);
    }
    __device__ __forceinline__ void set_band(BandTile& tile, int rows, int keys) const {
        tile.band.set(rows, keys, a.hides_later, a.lower_right, a.window_left, a.window_right);
    }

    const BandProblem& a;
    int step = 1, level = 0;  // tiles per level; the first tile of the current one
    int chunk = 0;            // the first of 32 sequences, or the next one
    int passed = 0, in_chunk = 0;        // indices before these sequences, or before this one; indices in these
    int first_row, in_sequence = 0, in_head = 1;  // sequence by sequence: its tiles, and the indices per head
};

// ------------------------------------------------------------------------------------------------- host

// Everything except the tensor maps. Returns the number of CTAs to launch.   B_r: rows of a CTA
//   Arguments: FlashArguments
template <class Arguments>
int set_work(ForwardProblem& p, const Arguments& a, int B_r) {
    const int sms = device_attribute(cudaDevAttrMultiProcessorCount);
    p.out = a.out, p.by_rows = a.out_strides.row != a.head_dim;
    p.lse = a.lse;
    p.factor = a.scale * LOG2_E;
    p.S_q = static_cast<int>(a.S_q), p.S_k = static_cast<int>(a.S_k), p.head_dim = a.head_dim;
    p.heads = static_cast<int>(a.heads), p.group = static_cast<int>(a.heads / a.kv_heads);
    p.causal = a.causal, p.diagonal = static_cast<int>(a.diagonal);
    p.batch_heads = static_cast<int>(a.batch * a.heads), p.q_blocks = static_cast<int>(ceil_div(a.S_q, int64_t{B_r}));
    const int tiles = p.batch_heads * p.q_blocks;
    p.folded = tiles > sms;
    p.sources.set(a, a.causal);
    return std::min(tiles, sms);
}

// The same for attention with options; the caller sets sources.
template <class Arguments>
int set_band_work(BandProblem& p, const Arguments& a, int B_r) {
    constexpr int64_t MANY = int64_t{1} << 28;
    constexpr int64_t WINDOW_BYTES = int64_t{16} << 20;
    const bool packed = a.cu_seqlens_q != nullptr;
    const int64_t window = a.window_left + 1 + std::max(a.window_right, int64_t{0});
    const bool narrow = !packed && a.window_left >= 0 && (a.causal || a.window_right >= 0) &&
                        a.batch * a.kv_heads * window * a.head_dim * 4 <= WINDOW_BYTES;
    const bool later_see_more = a.window_left < 0 && (a.causal || a.window_right >= 0);
    const int sms = device_attribute(cudaDevAttrMultiProcessorCount);
    p.out = a.out, p.lse = a.lse, p.out_strides = a.out_strides;
    p.factor = (a.softcap > 0 ? a.softcap : a.scale) * LOG2_E, p.inside = a.softcap > 0 ? a.scale / a.softcap : 1.0f;
    p.S_q = static_cast<int>(a.S_q), p.S_k = static_cast<int>(a.S_k), p.head_dim = a.head_dim;
    p.heads = static_cast<int>(a.heads), p.group = static_cast<int>(a.heads / a.kv_heads);
    p.causal = later_see_more || narrow, p.hides_later = a.causal, p.lower_right = a.lower_right;
    p.window_left = static_cast<int>(std::min(a.window_left, MANY));
    p.window_right = static_cast<int>(std::min(a.window_right, MANY));
    p.batch = static_cast<int>(a.batch), p.batch_heads = static_cast<int>(a.batch * a.heads);
    p.cu_seqlens_q = a.cu_seqlens_q, p.cu_seqlens_k = a.cu_seqlens_k;
    p.by_level = later_see_more && B_r >= 192;
    p.sinks = a.sinks, p.dropout = a.dropout;
    p.q_blocks = static_cast<int>(ceil_div(a.S_q, int64_t{B_r}));
    const int tiles = packed ? p.heads * static_cast<int>(a.S_q / B_r + a.batch) : p.batch_heads * p.q_blocks;
    p.folded = !narrow && tiles > sms;
    return std::min(tiles, sms);
}
