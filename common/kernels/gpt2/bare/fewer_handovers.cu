// fewer_handovers.cu - a decode step without its arithmetic, two handovers a layer: what would that design take?
//
//   1. Model       Sizes, part_of             which bytes of the weights a block has, phase by phase
//   2. Exchange    add_up, gather             all blocks add to the residual stream, and all read the sum
//   3. Hop         hop                        the blocks of a head tell each other what they have
//   4. Kernel      fewer_kernel
//   5. Host        variants, times, checks
//
//     python -m common.run common/kernels/gpt2/bare/fewer_handovers.cu       in the simulator: a small model, checks only
//     python -m common.run --backend cuda common/kernels/gpt2/bare/fewer_handovers.cu
//
// bare_step.cu beside this one hands over five times a layer, each time from all blocks to all. Here a group of blocks has a
// head, and what only a head needs stays in its group, which may be a cluster:
//
//     group of a head   x -> its rows of W_qkv | q, k, v | tokens of the cache | states | its columns of W_proj -> sum
//     every block       x -> its rows of W_fc1 (| gelu of its cluster |) its columns of W_fc2 -> sum
//                                               hop                        hop                        exchange
//
// Both exchanges of a layer are sums of parts over blocks, to which a layernorm follows that everybody needs. What is added
// here are small numbers of which everyone knows the sum, and checks it; what goes through a hop is checked, too. A row that
// streams reads every word of the weights once per step, and their checksum must come out.
//
// A sum has three sets of words: one for the heads' parts, and two in turn for the others. The next layer's heads' parts
// come when all blocks have added their other parts, and so have read what they wanted; but a block without a head may not
// have read the others' sum when the next heads' parts are all there.
//
// A wait of more than 2 s ends the kernel by a trap.
#include <cuda/atomic>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "common/cuda/check.h"
#include "common/cuda/tagged_words.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/gpt2/cluster_mail.cuh"
#include "common/kernels/gpt2/counted_sums.cuh"
#include "common/kernels/gpt2/piece_stream.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS;  // that read; one more warp feeds them

// ---------------------------------------------------------------------------------------------------- 1. Model

enum Kind { QKV, CACHE, PROJECTION, EXPAND, CONTRACT, LOGITS, KINDS };

struct Sizes {
    int layers, width, heads, hidden;
    int group, groups, blocks;  // blocks of a group; the first `heads` groups have a head
    int units[KINDS];           // QKV, CACHE, PROJECTION: of a head; else of all blocks
    int unit_bytes[KINDS];
    int freer[KINDS];           // of EXPAND, CONTRACT, LOGITS a block without a head has so many per cent of one with
    size_t begin[KINDS];        // of a layer's parts, bytes; LOGITS: of all
    size_t layer_bytes, bytes;
    size_t own_bytes;           // not 0: the block reads so many again and again, which stay in the L2 cache
    int hop_words[3];           // of 4 bytes, from each block: rows of QKV, its state, inner units; whole 16 bytes
    bool gathers;               // the cluster's inner units meet before CONTRACT, of which a block then has whole rows
    int counters;               // that say the same
    int slot_bytes, slots, steps;

    __host__ __device__ int headed() const { return heads * group; }  // blocks with a head
};

struct Part {
    size_t begin;
    int bytes, piece;
};

// Units before those of block b, where blocks have their shares of all.
__host__ __device__ inline int share_begin(const Sizes& s, int kind, int b) {
    const auto weight = [&](int blocks) {
        return 100ll * (blocks < s.headed() ? blocks : s.headed()) +
               (blocks < s.headed() ? 0ll : static_cast<long long>(s.freer[kind]) * (blocks - s.headed()));
    };
    return static_cast<int>(s.units[kind] * weight(b) / weight(s.blocks));
}

__host__ __device__ inline Part part_of(const Sizes& s, int kind, int block) {
    int first, end;
    if (kind <= PROJECTION) {
        const int head = block / s.group, rank = block % s.group, units = s.units[kind];
        if (head >= s.heads) return {0, 0, 0};
        first = head * units + units * rank / s.group;
        end = head * units + units * (rank + 1) / s.group;
    } else {
        first = share_begin(s, kind, block), end = share_begin(s, kind, block + 1);
    }
    const int bytes = (end - first) * s.unit_bytes[kind], pieces = (bytes + s.slot_bytes - 1) / s.slot_bytes;
    const int piece = pieces ? (bytes / pieces + 127) / 128 * 128 : 0;
    return {s.begin[kind] + static_cast<size_t>(first) * s.unit_bytes[kind], bytes, piece};
}

__device__ __forceinline__ void feed(const Sizes& s, const Part* parts, const unsigned char* weights,
                                     PieceFeeder& feeder) {
    size_t own = 0;
    for (int step = 0; step < s.steps; ++step) {
        const unsigned char* layer_weights = weights;
        NO_UNROLL
        for (int layer = 0; layer <= s.layers; ++layer, layer_weights += s.layer_bytes) {
            const bool last = layer == s.layers;
            NO_UNROLL
            for (int kind = last ? LOGITS : 0; kind < LOGITS + last; ++kind) {
                const Part part = parts[kind];
                const unsigned char* const from = (last ? weights : layer_weights) + part.begin;
                for (int at = 0; at < part.bytes; at += part.piece) {
                    const unsigned bytes = min(part.piece, part.bytes - at);
                    const unsigned char* here = from + at;
                    if (s.own_bytes) {
                        if (own + bytes > s.own_bytes) own = 0;
                        here = weights + blockIdx.x * s.own_bytes + own;
                        own += bytes;
                    }
                    if (!feeder.feed({here, bytes, nullptr, 0, 0})) return;
                }
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------- 2. Exchange

// How the blocks' parts of a sum meet:
//   COUNTER     additions of 64-bit integers, a fence, a counter; then the words are read
//   FLOATS      the same with 4 floats to an instruction
//   COUNTED     counted_sums.cuh: the words themselves are looked at until they are whole
//   PROBED      the same, but first one warp looks at 32 of them
//   SHARED      the same, but each block of a cluster looks at its share, and sends the cluster what it has found
//   PARTED      no additions: each cluster's part is tagged words; each block of a cluster adds up its share of all
//               clusters' parts, and sends the cluster the sum
enum Exchange { NONE, COUNTER, FLOATS, COUNTED, PROBED, SHARED, PARTED };
constexpr int SETS = 3;       // of the words of a sum
constexpr int PAIRS = 2;      // of words that a thread reads, at most
constexpr int MAX_WIDTH = 2 * PAIRS * THREADS, MAX_CLUSTERS = 16, LINE = 32;  // LINE: words of 128 bytes
constexpr int MAX_HOP_WORDS = 68, MAX_GROUP = 11;

using Word = cuda::atomic_ref<unsigned, cuda::thread_scope_device>;

struct Mail {
    counted::Sum* sums;     // [SETS][width]
    float* floats;          // [SETS][width]
    unsigned* counters;     // [2][s.counters][LINE]
    tagged::Word* parts;    // [SETS][groups][width]
    tagged::Word* best;     // [blocks][2]
    tagged::Word* letters;  // [3][2][blocks][MAX_HOP_WORDS]
    unsigned* errors;       // [1]
};

struct Shared {
    StreamBarriers stream;
    Part parts[KINDS];
    MailBox sum_box, hop_boxes[3];
    alignas(16) float x[2][MAX_WIDTH];                                // the residual stream
    alignas(16) uint4 letters[3][2][MAX_GROUP * MAX_HOP_WORDS / 4];   // of each hop: [group][hop_words]
};

// __syncthreads() of the warps that read.
__device__ __forceinline__ void readers_sync() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

struct Patience {
    long long end;
    __device__ __forceinline__ void operator()() const {
#ifndef CUDA_SIMULATOR
        if (clock64() > end) __trap();
#endif
    }
};

// Which sum, and who adds to it. number: counts all sums; set: its words; heads: whether only those with a head add.
struct Turn {
    unsigned number;
    int set;
    bool heads;
};

// What everyone adds to this word, in quarters.
__device__ __forceinline__ int quarters(const Turn& turn, int word) { return 1 + ((word + turn.number) & 7); }
__device__ __forceinline__ float addend(const Turn& turn, int word) { return 0.25f * quarters(turn, word); }

// Groups that add up a block's slice of the words, or blocks that add to all.
__device__ __forceinline__ int addends(const Sizes& s, const Turn& turn) {
    return turn.heads ? s.heads : s.gathers ? s.groups : s.blocks;
}

// The words from slice_begin(rank) to slice_begin(rank + 1), whole fours.
__device__ __forceinline__ int slice_begin(const Sizes& s, int rank) { return s.width / 4 * rank / s.group * 4; }

#ifdef CUDA_SIMULATOR
__device__ __forceinline__ void add_four(float* to, const float4& x) {
    atomicAdd(to, x.x), atomicAdd(to + 1, x.y), atomicAdd(to + 2, x.z), atomicAdd(to + 3, x.w);
}
#else
__device__ __forceinline__ void add_four(float* to, const float4& x) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                 : "memory");
}
#endif

template <Exchange E>
struct Residual {
    const Sizes& s;
    const Mail& mail;
    Shared& shared;
    const Patience patience;
    const int slice, slice_end;  // of this block's rank
    const int rank, group;
    // The thread's pairs of words as they were last, of the three sets; the last two take turns. And the stream itself.
    counted::Pair heads_last[PAIRS] = {}, last[PAIRS] = {}, last_but_one[PAIRS] = {};
    long long stream[PAIRS][2] = {};
    float sums[2] = {};  // PARTED
    unsigned waits[2] = {};
    bool wrong = false;

    __device__ __forceinline__ Residual(const Sizes& sizes, const Mail& to, Shared& memory, Patience until)
        : s(sizes),
          mail(to),
          shared(memory),
          patience(until),
          slice(slice_begin(sizes, blockIdx.x % sizes.group)),
          slice_end(slice_begin(sizes, blockIdx.x % sizes.group + 1)),
          rank(blockIdx.x % sizes.group),
          group(blockIdx.x / sizes.group) {}

    // All threads that read; behind a readers_sync().
    __device__ __forceinline__ void add_up(const Turn& turn) {
        if (E == NONE) return;
        const bool whole = !turn.heads && !s.gathers;
        const int first = whole ? 0 : slice, end = whole ? s.width : slice_end, thread = threadIdx.x;
        if (E == PARTED) {
            tagged::Word* const to = mail.parts + (turn.set * s.groups + group) * s.width;
            for (int word = first + 2 * thread; word < end; word += 2 * THREADS)
                tagged::put_pair(to + word, __float_as_uint(addend(turn, word)),
                                 __float_as_uint(addend(turn, word + 1)), turn.number + 1);
        } else if (E == FLOATS) {
            float* const to = mail.floats + turn.set * s.width;
            for (int word = first + 4 * thread; word < end; word += 4 * THREADS)
                add_four(to + word, make_float4(addend(turn, word), addend(turn, word + 1), addend(turn, word + 2),
                                                addend(turn, word + 3)));
        } else {
            counted::Sum* const to = mail.sums + turn.set * s.width;
            for (int word = first + thread; word < end; word += THREADS) counted::add(to + word, addend(turn, word));
        }
        if (E != COUNTER && E != FLOATS) return;
        readers_sync();
        if (thread < s.counters)
            Word(mail.counters[((turn.heads ? 0 : s.counters) + thread) * LINE]).fetch_add(1, cuda::memory_order_release);
    }

    __device__ __forceinline__ void wait_for_counter(const Turn& turn) {
        const unsigned target = ++waits[!turn.heads] * (turn.heads ? s.headed() : s.blocks);
        unsigned* const counter =
            mail.counters + ((turn.heads ? 0 : s.counters) + static_cast<int>(blockIdx.x) % s.counters) * LINE;
        if (threadIdx.x == 0)
            while (Word(*counter).load(cuda::memory_order_acquire) < target) patience();
        readers_sync();
    }

    // The difference of a word, added to the stream -> the stream.
    __device__ __forceinline__ float take(const Turn& turn, int word, long long difference, long long& sum) {
        wrong |= difference != static_cast<long long>(addends(s, turn) * quarters(turn, word)) << 30;
        sum += difference;
        return counted::to_float(sum);
    }
    __device__ __forceinline__ bool both_whole(const counted::Pair& now, const counted::Pair& before, unsigned count) {
        return counted::is_whole(counted::since(now.x, before.x, count)) &&
               counted::is_whole(counted::since(now.y, before.y, count));
    }

    // COUNTER, COUNTED, PROBED: all words by every block.
    __device__ __forceinline__ void gather_all(const Turn& turn, counted::Pair (&before)[PAIRS]) {
        const counted::Sum* const from = mail.sums + turn.set * s.width;
        const unsigned count = addends(s, turn);
        const auto word_of = [&](int i) { return 2 * (static_cast<int>(threadIdx.x) + i * THREADS); };
        if (E == PROBED) {
            // Pairs far apart; what they were last is known to other threads, but all words have as many addends.
            if (threadIdx.x < 32) {
                const int word = s.width / 32 * static_cast<int>(threadIdx.x) / 2 * 2;
                const unsigned target = count_of(before[0].x) + count;
                while (((count_of(counted::peek(from + word).x) ^ target) & 255) != 0) patience();
            }
            readers_sync();
        }
        counted::Pair now[PAIRS];
        UNROLL
        for (int i = 0; i < PAIRS; ++i)
            if (word_of(i) < s.width) now[i] = counted::peek(from + word_of(i));
        bool missing = E != COUNTER;
        while (missing) {
            missing = false;
            UNROLL
            for (int i = 0; i < PAIRS; ++i) {
                if (word_of(i) >= s.width || both_whole(now[i], before[i], count)) continue;
                now[i] = counted::peek(from + word_of(i));
                missing = true;
            }
            if (missing) patience();
        }
        float* const x = shared.x[turn.number & 1];
        UNROLL
        for (int i = 0; i < PAIRS; ++i) {
            const int word = word_of(i);
            if (word >= s.width) continue;
            const float first = take(turn, word, counted::since(now[i].x, before[i].x, count), stream[i][0]);
            const float second = take(turn, word + 1, counted::since(now[i].y, before[i].y, count), stream[i][1]);
            *reinterpret_cast<float2*>(x + word) = make_float2(first, second);
            before[i] = now[i];
        }
    }
    // Addends, modulo 256.
    static __device__ __forceinline__ unsigned count_of(counted::Sum word) {
        const long long value = static_cast<long long>(word << 8) >> 8;
        return static_cast<unsigned>((word - static_cast<counted::Sum>(value)) >> counted::COUNT_SHIFT);
    }

    __device__ __forceinline__ void gather_floats(const Turn& turn, counted::Pair (&before)[PAIRS]) {
        float* const x = shared.x[turn.number & 1];
        const float* const from = mail.floats + turn.set * s.width;
        const int word = 4 * threadIdx.x;
        if (word >= s.width) return;
        const float4 now = __ldcg(reinterpret_cast<const float4*>(from + word));
        const float count = static_cast<float>(addends(s, turn));
        const auto take_float = [&](float sum, counted::Sum& last_sum, int at) {
            const float difference = sum - __uint_as_float(static_cast<unsigned>(last_sum));
            wrong |= difference != count * addend(turn, at);
            last_sum = __float_as_uint(sum);
            return difference;
        };
        *reinterpret_cast<float4*>(x + word) =
            make_float4(take_float(now.x, before[0].x, word), take_float(now.y, before[0].y, word + 1),
                        take_float(now.z, before[1].x, word + 2), take_float(now.w, before[1].y, word + 3));
    }

    // SHARED, PARTED: 4 neighbouring threads have a pair of the block's slice, and each sends it to some blocks.
    __device__ __forceinline__ void send_pair(const Turn& turn, int word, float first, float second, int from) {
        const uint2 both = make_uint2(__float_as_uint(first), __float_as_uint(second));
        for (int to = from; to < s.group; to += 4)
            send(shared.x[turn.number & 1] + word, to, shared.sum_box, turn.number, both);
    }
    __device__ __forceinline__ void gather_shared(const Turn& turn, counted::Pair (&before)[PAIRS]) {
        const int word = slice + 2 * (static_cast<int>(threadIdx.x) / 4);
        if (word >= slice_end) return;
        const counted::Sum* const from = mail.sums + turn.set * s.width + word;
        const unsigned count = addends(s, turn);
        counted::Pair now = counted::peek(from);
        while (!both_whole(now, before[0], count)) {
            patience();
            now = counted::peek(from);
        }
        const float first = take(turn, word, counted::since(now.x, before[0].x, count), stream[0][0]);
        const float second = take(turn, word + 1, counted::since(now.y, before[0].y, count), stream[0][1]);
        before[0] = now;
        send_pair(turn, word, first, second, threadIdx.x % 4);
    }
    __device__ __forceinline__ void gather_parts(const Turn& turn) {
        const int word = slice + 2 * (static_cast<int>(threadIdx.x) / 4), quarter = threadIdx.x % 4;
        const int clusters = addends(s, turn);
        const bool mine = word < slice_end;
        tagged::Pair pairs[MAX_CLUSTERS / 4];
        const auto place = [&](int i) -> const tagged::Word* {
            const int cluster = quarter + 4 * i;
            return mine && cluster < clusters ? mail.parts + (turn.set * s.groups + cluster) * s.width + word : nullptr;
        };
        tagged::get_all(pairs, place, turn.number + 1, patience);
        float first = 0.0f, second = 0.0f;
        UNROLL
        for (int i = 0; i < MAX_CLUSTERS / 4; ++i)
            if (place(i)) first += __uint_as_float(pairs[i].x), second += __uint_as_float(pairs[i].z);
        UNROLL
        for (int distance = 1; distance < 4; distance *= 2) {
            first += __shfl_xor_sync(FULL_WARP, first, distance);
            second += __shfl_xor_sync(FULL_WARP, second, distance);
        }
        if (!mine) return;
        wrong |= first != clusters * addend(turn, word) || second != clusters * addend(turn, word + 1);
        sums[0] += first, sums[1] += second;
        send_pair(turn, word, sums[0], sums[1], quarter);
    }

    // The residual stream -> shared.x.
    __device__ __forceinline__ void gather(const Turn& turn) {
        if (E == NONE) return;
        counted::Pair(&before)[PAIRS] = turn.heads ? heads_last : last_but_one;
        if (E == COUNTER || E == FLOATS) wait_for_counter(turn);
        if (E == FLOATS)
            gather_floats(turn, before);
        else if (E == SHARED)
            gather_shared(turn, before);
        else if (E == PARTED)
            gather_parts(turn);
        else
            gather_all(turn, before);
        if (E == SHARED || E == PARTED) {
            while (!mail_has_come(shared.sum_box, turn.number)) patience();
            if (threadIdx.x == 0) mail_expect(shared.sum_box, turn.number + 2, 4 * s.width);
        }
        readers_sync();
    }
};

// ------------------------------------------------------------------------------------------------------ 3. Hop

//   MEETING     stores to the other blocks of the cluster, a barrier of the cluster; only without a stream, whose feeder
//               would have to come to the barrier
//   ASYNC       cluster_mail.cuh
//   GLOBAL      tagged words in global memory; the group need not be a cluster
enum Hop { NO_HOPS, MEETING, ASYNC, GLOBAL };

// hop_words of each block of the group -> shared.letters[which], for all of the group. letter: counts those of `which`.
template <Hop H>
__device__ __forceinline__ bool hop(const Sizes& s, const Mail& mail, Shared& shared, const Patience& patience, int which,
                                    unsigned letter) {
    if (H == NO_HOPS) return false;
    const int words = s.hop_words[which], quads = words / 4, warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = threadIdx.x % 32, rank = blockIdx.x % s.group;
    uint4* const box = shared.letters[which][letter & 1];
    const unsigned number = letter + 1;
    bool wrong = false;
    if (H == GLOBAL) {
        tagged::Word* const group_words =
            mail.letters + ((which * 2 + (letter & 1)) * s.blocks + (blockIdx.x - rank)) * MAX_HOP_WORDS;
        for (int i = threadIdx.x; i < words / 2; i += THREADS)
            tagged::put_pair(group_words + rank * words + 2 * i, number * 16, number, number);
        constexpr int AT_ONCE = 2;
        tagged::Pair pairs[AT_ONCE];
        const auto place = [&](int i) {
            const int pair = threadIdx.x + i * THREADS;
            return pair < s.group * words / 2 ? group_words + 2 * pair : nullptr;
        };
        tagged::get_all(pairs, place, number, patience);
        UNROLL
        for (int i = 0; i < AT_ONCE; ++i) {
            if (place(i) == nullptr) continue;
            wrong |= pairs[i].x != number * 16 || pairs[i].z != number;
            reinterpret_cast<uint2*>(box)[threadIdx.x + i * THREADS] = make_uint2(pairs[i].x, pairs[i].z);
        }
        readers_sync();
        return wrong;
    }
    const uint4 mine = make_uint4(number * 16 + rank, lane, number, rank);
    for (int to = warp; to < s.group; to += WARPS) {
        if (lane >= quads) break;
        uint4* const place = box + rank * quads + lane;
        if (H == ASYNC)
            send(place, to, shared.hop_boxes[which], letter, mine);
        else
            *cooperative_groups::this_cluster().map_shared_rank(place, to) = mine;
    }
    if (H == MEETING) cluster_meet();
    if (H == ASYNC) {
        while (!mail_has_come(shared.hop_boxes[which], letter)) patience();
        if (threadIdx.x == 0) mail_expect(shared.hop_boxes[which], letter + 2, 4 * words * s.group);
    }
    for (int from = warp; from < s.group; from += WARPS) {
        if (lane >= quads) break;
        const uint4 its = box[from * quads + lane];
        wrong |= its.x != number * 16 + from || its.y != lane || its.z != number;
    }
    readers_sync();
    return wrong;
}

// --------------------------------------------------------------------------------------------------- 4. Kernel

__device__ __forceinline__ void use_piece(const unsigned char* piece, int bytes, uint4& sum) {
    UNROLL_BY(5)
    for (int at = 16 * threadIdx.x; at < bytes; at += 16 * THREADS) {
        const uint4 x = *reinterpret_cast<const uint4*>(piece + at);
        sum.x ^= x.x, sum.y ^= x.y, sum.z ^= x.z, sum.w ^= x.w;
    }
}

template <bool STREAMS>
__device__ __forceinline__ void use_part(const Part& part, PieceReader& reader, uint4& sum) {
    if (STREAMS)
        for (int at = 0; at < part.bytes; at += part.piece) {
            use_piece(reader.wait(), min(part.piece, part.bytes - at), sum);
            reader.release();
        }
    readers_sync();
}

// Each block's largest logit, to all.
__device__ __forceinline__ bool find_best(const Sizes& s, const Mail& mail, const Patience& patience, unsigned tag) {
    if (threadIdx.x == 0) tagged::put_pair(mail.best + 2 * blockIdx.x, tag, blockIdx.x, tag);
    bool wrong = false;
    if (threadIdx.x < s.blocks) {
        const tagged::Word* const its = mail.best + 2 * threadIdx.x;
        const uint2 best = tagged::settle(tagged::peek(its), its, tag, patience);
        wrong = best.x != tag || best.y != threadIdx.x;
    }
    readers_sync();
    return wrong;
}

template <Exchange E, Hop H, bool STREAMS>
__global__ void __launch_bounds__(THREADS + 32, 1)
    fewer_kernel(const __grid_constant__ Sizes s, const Mail mail, const unsigned char* weights, unsigned* checksum) {
    constexpr bool CLUSTERS = E == SHARED || E == PARTED || H == MEETING || H == ASYNC;
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Shared shared;
    const Patience patience = {clock64() + 4000000000ll};
    if (threadIdx.x == 0) {
        stream_init(shared.stream, s.slots, WARPS);
        mail_init(shared.sum_box, 4 * s.width, 4 * s.width);
        for (int i = 0; i < 3; ++i) {
            const unsigned bytes = 4 * s.hop_words[i] * s.group;
            mail_init(shared.hop_boxes[i], bytes, bytes);
        }
    }
    if (threadIdx.x < KINDS) shared.parts[threadIdx.x] = part_of(s, threadIdx.x, blockIdx.x);
    __syncthreads();
    if (CLUSTERS) cluster_meet();
    if (threadIdx.x >= THREADS) {
        if (!STREAMS || threadIdx.x > THREADS) return;
        PieceFeeder feeder(shared.stream, memory, s.slots, s.slot_bytes, s.own_bytes != 0);
        feed(s, shared.parts, weights, feeder);
        feeder.drain();
        return;
    }
    PieceReader reader(shared.stream, memory, s.slots, s.slot_bytes);
    Residual<E> residual(s, mail, shared, patience);
    const bool has_head = static_cast<int>(blockIdx.x) < s.headed();
    uint4 sum = make_uint4(0, 0, 0, 0);
    bool wrong = false;
    unsigned letter = 0;
    Turn turn = {0, 0, true};
    NO_UNROLL
    for (int step = 0; step < s.steps; ++step) {
        NO_UNROLL
        for (int layer = 0; layer < s.layers; ++layer, ++letter) {
            turn.heads = true, turn.set = 0;
            if (has_head) {
                use_part<STREAMS>(shared.parts[QKV], reader, sum);
                wrong |= hop<H>(s, mail, shared, patience, 0, letter);
                use_part<STREAMS>(shared.parts[CACHE], reader, sum);
                wrong |= hop<H>(s, mail, shared, patience, 1, letter);
                use_part<STREAMS>(shared.parts[PROJECTION], reader, sum);
                residual.add_up(turn);
            }
            residual.gather(turn);
            ++turn.number;

            turn.heads = false, turn.set = 1 + (letter & 1);
            use_part<STREAMS>(shared.parts[EXPAND], reader, sum);
            if (s.gathers) wrong |= hop<H>(s, mail, shared, patience, 2, letter);
            use_part<STREAMS>(shared.parts[CONTRACT], reader, sum);
            residual.add_up(turn);
            residual.gather(turn);
            UNROLL
            for (int i = 0; i < PAIRS; ++i) {
                const counted::Pair newest = residual.last_but_one[i];
                residual.last_but_one[i] = residual.last[i], residual.last[i] = newest;
            }
            ++turn.number;
        }
        use_part<STREAMS>(shared.parts[LOGITS], reader, sum);
        if (E != NONE) wrong |= find_best(s, mail, patience, step + 1);
    }
    if (CLUSTERS && !STREAMS) cluster_meet();
    if (wrong || residual.wrong) atomicOr(mail.errors, 1u);
    if (STREAMS) atomicXor(checksum, sum.x ^ sum.y ^ sum.z ^ sum.w);
}

// ----------------------------------------------------------------------------------------------------- 5. Host

__global__ void fill(unsigned* words, size_t count) {
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x)
        words[i] = static_cast<unsigned>(i) * 2654435761u ^ static_cast<unsigned>(i >> 13);
}

struct Variant {
    const char* name;
    Exchange exchange;
    Hop hop;
    bool streams, clusters, gathers;  // clusters: of CLUSTER blocks; else 11 blocks for each of 12 heads
    bool from_l2 = false;
    int counters = 1, slot_bytes = 18 << 10;
    bool mlp_evens = false;  // blocks without a head have more of the MLP; else of the logits
    int most_slots = MAX_SLOTS;
};

constexpr Variant VARIANTS[] = {
    {"exchange: sums, a counter", COUNTER, NO_HOPS, false, false, false},
    {"exchange: sums, 8 counters", COUNTER, NO_HOPS, false, false, false, false, 8},
    {"exchange: floats, a counter", FLOATS, NO_HOPS, false, false, false},
    {"exchange: counted sums", COUNTED, NO_HOPS, false, false, false},
    {"exchange: counted sums, probed", PROBED, NO_HOPS, false, false, false},
    {"exchange: slices, sums, a counter", COUNTER, NO_HOPS, false, true, true},
    {"exchange: slices, counted sums", COUNTED, NO_HOPS, false, true, true},
    {"exchange: slices, counted sums, shared", SHARED, NO_HOPS, false, true, true},
    {"exchange: slices, clusters' parts, shared", PARTED, NO_HOPS, false, true, true},
    {"2 hops: cluster barrier", NONE, MEETING, false, true, false},
    {"2 hops: cluster mail", NONE, ASYNC, false, true, false},
    {"3 hops: cluster mail", NONE, ASYNC, false, true, true},
    {"2 hops: words in global memory", NONE, GLOBAL, false, false, false},
    {"handovers: counted, words", COUNTED, GLOBAL, false, false, false},
    {"handovers: counted, mail", COUNTED, ASYNC, false, true, false},
    {"handovers: slices, counted, mail", COUNTED, ASYNC, false, true, true},
    {"handovers: slices, counted, shared, mail", SHARED, ASYNC, false, true, true},
    {"handovers: slices, parts, shared, mail", PARTED, ASYNC, false, true, true},
    {"stream: groups of 11", NONE, NO_HOPS, true, false, false},
    {"stream: clusters", NONE, NO_HOPS, true, true, false},
    {"stream: clusters, MLP evens out", NONE, NO_HOPS, true, true, false, false, 1, 18 << 10, true},
    {"stream from L2: groups of 11", NONE, NO_HOPS, true, false, false, true},
    {"stream from L2: clusters", NONE, NO_HOPS, true, true, false, true},
    {"all from L2: counted, words", COUNTED, GLOBAL, true, false, false, true},
    {"all from L2: slices, counted, mail", COUNTED, ASYNC, true, true, true, true},
    {"all from L2: slices, counted, shared, mail", SHARED, ASYNC, true, true, true, true},
    {"all from L2: slices, parts, shared, mail", PARTED, ASYNC, true, true, true, true},
    {"all: a counter, words", COUNTER, GLOBAL, true, false, false},
    {"all: counted, words", COUNTED, GLOBAL, true, false, false},
    {"all: counted, words, pieces of 12 KB", COUNTED, GLOBAL, true, false, false, false, 1, 12 << 10},
    {"all: counted, probed, words", PROBED, GLOBAL, true, false, false},
    {"all: counted, mail", COUNTED, ASYNC, true, true, false},
    {"all: slices, a counter, mail", COUNTER, ASYNC, true, true, true},
    {"all: slices, counted, mail", COUNTED, ASYNC, true, true, true},
    {"all: slices, counted, shared, mail", SHARED, ASYNC, true, true, true},
    {"all: slices, parts, shared, mail", PARTED, ASYNC, true, true, true},
    {"all: slices, parts, ..., pieces of 12 KB", PARTED, ASYNC, true, true, true, false, 1, 12 << 10},
    {"all: slices, parts, ..., 5 slots", PARTED, ASYNC, true, true, true, false, 1, 18 << 10, false, 5},
    {"all: slices, parts, ..., MLP evens out", PARTED, ASYNC, true, true, true, false, 1, 18 << 10, true},
};

using Kernel = void (*)(const Sizes, const Mail, const unsigned char*, unsigned*);

template <Exchange E, Hop H>
static Kernel kernel_for(const Variant& v) {
    return v.streams ? fewer_kernel<E, H, true> : fewer_kernel<E, H, false>;
}
static Kernel kernel_of(const Variant& v) {
    const int which = 4 * v.exchange + v.hop;
    switch (which) {
        case 4 * NONE + NO_HOPS: return kernel_for<NONE, NO_HOPS>(v);
        case 4 * NONE + MEETING: return fewer_kernel<NONE, MEETING, false>;
        case 4 * NONE + ASYNC: return kernel_for<NONE, ASYNC>(v);
        case 4 * NONE + GLOBAL: return kernel_for<NONE, GLOBAL>(v);
        case 4 * COUNTER + NO_HOPS: return kernel_for<COUNTER, NO_HOPS>(v);
        case 4 * COUNTER + ASYNC: return kernel_for<COUNTER, ASYNC>(v);
        case 4 * COUNTER + GLOBAL: return kernel_for<COUNTER, GLOBAL>(v);
        case 4 * FLOATS + NO_HOPS: return kernel_for<FLOATS, NO_HOPS>(v);
        case 4 * COUNTED + NO_HOPS: return kernel_for<COUNTED, NO_HOPS>(v);
        case 4 * COUNTED + ASYNC: return kernel_for<COUNTED, ASYNC>(v);
        case 4 * COUNTED + GLOBAL: return kernel_for<COUNTED, GLOBAL>(v);
        case 4 * PROBED + NO_HOPS: return kernel_for<PROBED, NO_HOPS>(v);
        case 4 * PROBED + GLOBAL: return kernel_for<PROBED, GLOBAL>(v);
        case 4 * SHARED + NO_HOPS: return kernel_for<SHARED, NO_HOPS>(v);
        case 4 * SHARED + ASYNC: return kernel_for<SHARED, ASYNC>(v);
        case 4 * PARTED + NO_HOPS: return kernel_for<PARTED, NO_HOPS>(v);
        case 4 * PARTED + ASYNC: return kernel_for<PARTED, ASYNC>(v);
        default: throw std::logic_error("a variant without a kernel");
    }
}

// Of a GPU, or of a model for the simulator. clusters: whole ones that run at once; 0: the variant has none.
static Sizes sizes_of(bool small, int processors, int clusters, int cluster, const Variant& v) {
    Sizes s = {};
    s.layers = small ? 3 : 12, s.width = small ? 64 : 768, s.heads = small ? 2 : 12, s.hidden = 4 * s.width;
    const int vocab = small ? 200 : 50257, tokens = small ? 40 : 512, head_dim = s.width / s.heads;
    s.group = v.clusters ? cluster : std::min(processors / s.heads, MAX_GROUP);
    s.groups = v.clusters ? std::min(clusters, MAX_CLUSTERS) : s.heads;
    s.blocks = s.group * s.groups;
    const int units[KINDS] = {3 * head_dim, tokens, s.width, s.hidden, s.hidden, vocab};
    const int bytes[KINDS] = {2 * s.width, 4 * head_dim, 2 * head_dim, 2 * s.width, 2 * s.width, 2 * s.width};
    for (int i = 0; i < KINDS; ++i) {
        s.units[i] = units[i], s.unit_bytes[i] = bytes[i], s.freer[i] = 100;
        s.begin[i] = s.layer_bytes;
        if (i < LOGITS) s.layer_bytes += static_cast<size_t>(i <= PROJECTION ? s.heads : 1) * units[i] * bytes[i];
    }
    s.begin[LOGITS] = s.layers * s.layer_bytes;
    s.bytes = s.begin[LOGITS] + static_cast<size_t>(units[LOGITS]) * bytes[LOGITS];
    s.slot_bytes = v.slot_bytes;
    s.slots = std::min((200 << 10) / v.slot_bytes, std::min(v.most_slots, MAX_SLOTS));
    s.gathers = v.gathers, s.counters = v.counters;

    // All blocks have as many bytes, by what those without a head have more of the MLP or of the logits.
    const double headed = s.headed(), freer = s.blocks - s.headed();
    if (freer > 0) {
        const auto even = [&](double all, double others) {  // of `all`, which is shared, beside `others` of the headed
            const double each = (all + others) / s.blocks, mine = std::max(each - others / headed, 0.02 * each);
            return static_cast<int>(100.0 * each / mine + 0.5);
        };
        double heads_bytes = 0, mlp_bytes = 2.0 * s.hidden * 2 * s.width;
        for (int i = 0; i <= PROJECTION; ++i) heads_bytes += static_cast<double>(s.heads) * units[i] * bytes[i];
        if (v.mlp_evens)
            s.freer[EXPAND] = s.freer[CONTRACT] = even(mlp_bytes, heads_bytes);
        else
            s.freer[LOGITS] = even(static_cast<double>(units[LOGITS]) * bytes[LOGITS], s.layers * heads_bytes);
    }
    const auto whole = [](int words) { return (words + 3) / 4 * 4; };
    int inner = 0;
    for (int b = 0; b < s.blocks; ++b)
        inner = std::max(inner, share_begin(s, EXPAND, b + 1) - share_begin(s, EXPAND, b));
    s.hop_words[0] = whole((ceil_div(units[QKV], s.group) + 1) / 2);
    s.hop_words[1] = whole(head_dim + 2);
    s.hop_words[2] = whole((inner + 1) / 2);
    for (int words : s.hop_words)
        if (words > MAX_HOP_WORDS) throw std::logic_error("a hop of too many words");
    if (s.width > MAX_WIDTH || s.group > MAX_GROUP) throw std::logic_error("the model is too wide");
    return s;
}

struct Memory {
    unsigned char* weights;
    Mail mail;
    unsigned char* all;  // that the mail is in
    size_t mail_bytes;
    unsigned* checksum;
};

// For any variant.
static Memory allocate(size_t weight_bytes, int blocks, int width) {
    Memory memory = {};
    const auto pass = [&](unsigned char* base) {
        size_t at = 0;
        const auto take = [&](auto*& part, size_t count) {
            part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(base + at);
            at += (count * sizeof *part + 127) / 128 * 128;
        };
        take(memory.mail.sums, SETS * width), take(memory.mail.floats, SETS * width);
        take(memory.mail.counters, 2 * 8 * LINE);
        take(memory.mail.parts, SETS * MAX_CLUSTERS * width);
        take(memory.mail.best, 2 * blocks), take(memory.mail.letters, 3 * 2 * blocks * MAX_HOP_WORDS);
        take(memory.mail.errors, 1);
        return at;
    };
    memory.mail_bytes = pass(nullptr);
    CUDA_CHECK(cudaMalloc(&memory.all, memory.mail_bytes));
    pass(memory.all);
    CUDA_CHECK(cudaMalloc(&memory.weights, weight_bytes));
    CUDA_CHECK(cudaMalloc(&memory.checksum, sizeof(unsigned)));
    return memory;
}

struct Launch {
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    Launch(int blocks, int cluster, int shared_bytes) {
        attributes[0].id = cudaLaunchAttributeCooperative, attributes[0].val.cooperative = 1;
        attributes[1].id = cudaLaunchAttributeClusterDimension;
        attributes[1].val.clusterDim.x = cluster;
        attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
        config.gridDim = dim3(blocks), config.blockDim = dim3(THREADS + 32), config.dynamicSmemBytes = shared_bytes;
        config.attrs = attributes, config.numAttrs = cluster > 1 ? 2 : 1;
    }
};

static void launch(const Variant& v, const Sizes& s, const Memory& memory) {
    CUDA_CHECK(cudaMemset(memory.all, 0, memory.mail_bytes));
    CUDA_CHECK(cudaMemset(memory.checksum, 0, sizeof(unsigned)));
    const Kernel kernel = kernel_of(v);
    const int shared = s.slots * s.slot_bytes;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    Launch how(s.blocks, v.clusters ? s.group : 1, shared);
    CUDA_CHECK(cudaLaunchKernelEx(&how.config, kernel, s, memory.mail, memory.weights, memory.checksum));
}

#ifndef CUDA_SIMULATOR
// Clusters of so many blocks that run at once, with as much shared memory as here.
static int clusters_of(int cluster, int shared_bytes) {
    const auto kernel = fewer_kernel<COUNTED, ASYNC, true>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    if (cluster > 8) CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    Launch how(cluster, cluster, shared_bytes);
    how.attributes[0].val.cooperative = 0;
    int clusters = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &how.config));
    return clusters;
}

static double microseconds(const Variant& v, const Sizes& s, const Memory& memory) {
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    std::vector<float> times(5);
    for (float& time : times) {
        CUDA_CHECK(cudaEventRecord(begin));
        launch(v, s, memory);
        CUDA_CHECK(cudaEventRecord(end));
        CUDA_CHECK(cudaEventSynchronize(end));
        CUDA_CHECK(cudaEventElapsedTime(&time, begin, end));
    }
    std::sort(times.begin(), times.end());
    return 1e3 * times[times.size() / 2] / s.steps;
}
#endif

int main(int argc, char** argv) {
    bool small = argc > 1 && std::strcmp(argv[1], "small") == 0;
#ifdef CUDA_SIMULATOR
    small = true;
#endif
    const int processors = small ? 6 : device_attribute(cudaDevAttrMultiProcessorCount);
    int cluster = small ? 2 : 8, clusters = small ? 3 : 16;
#ifndef CUDA_SIMULATOR
    if (!small) {
        std::printf("clusters of so many blocks that run at once:");
        for (int size : {2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16})
            std::printf("  %d of %d", clusters_of(size, 200 << 10), size);
        std::printf("\n");
        clusters = std::min(clusters, clusters_of(cluster, 200 << 10));
        if (clusters < 12 || processors < 132) {
            std::fprintf(stderr, "needs 132 multiprocessors and 12 clusters of 8 blocks: %d, %d\n", processors, clusters);
            return 1;
        }
    }
#endif
    const Sizes sizes = sizes_of(small, processors, clusters, cluster, VARIANTS[0]);
    const Memory memory = allocate(sizes.bytes, processors, sizes.width);
    fill<<<small ? 2 : 1024, 256>>>(reinterpret_cast<unsigned*>(memory.weights), sizes.bytes / 4);
    CUDA_CHECK_LAUNCH();
    std::vector<unsigned> host(sizes.bytes / 4);
    CUDA_CHECK(cudaMemcpy(host.data(), memory.weights, sizes.bytes, cudaMemcpyDeviceToHost));
    unsigned expected = 0;
    for (unsigned word : host) expected ^= word;

    std::printf("%.1f MB in a step\n", 1e-6 * static_cast<double>(sizes.bytes));
    bool right = true;
    for (const Variant& v : VARIANTS) {
        Sizes s = sizes_of(small, processors, clusters, cluster, v);
        s.own_bytes = v.from_l2 ? std::min(sizes.bytes, size_t{24} << 20) / s.blocks / 128 * 128 : 0;
        const bool sums = v.streams && !v.from_l2;
        s.steps = small ? 2 : 3;
        launch(v, s, memory);
        unsigned found = 0, errors = 0;
        CUDA_CHECK(cudaMemcpy(&found, memory.checksum, sizeof found, cudaMemcpyDeviceToHost));
        CUDA_CHECK(cudaMemcpy(&errors, memory.mail.errors, sizeof errors, cudaMemcpyDeviceToHost));
        const unsigned wanted = s.steps % 2 ? expected : 0u;  // each step once more
        const bool fine = errors == 0 && (!sums || found == wanted);
        right &= fine;
        std::printf("%-48s %3d blocks  %s", v.name, s.blocks, fine ? "right" : "WRONG");
#ifndef CUDA_SIMULATOR
        if (!small) {
            s.steps = 100;
            const double time = microseconds(v, s, memory);
            std::printf(" %8.1f us/step", time);
            if (v.streams) std::printf(" %6.2f TB/s", 1e-6 * static_cast<double>(sizes.bytes) / time);
        }
#endif
        std::printf("\n");
        std::fflush(stdout);
    }
    return right ? 0 : 1;
}
