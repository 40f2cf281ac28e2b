// fewer_exchange.cuh - all blocks add to the residual stream, and all read the sum.
//
//   Exchange               the ways to do it
//   Mail, Shared           what blocks hand to each other through global memory; a block's shared memory
//   Patience               a wait of more than 2 s ends the kernel by a trap
//   Turn                   which sum, and who adds to it
//   Residual<E>            add_up(turn), gather(turn); whether a sum was wrong
//
// A sum has three sets of words: one for the heads' parts, and two in turn for the others. The next layer's heads'
// parts come when all blocks have added their other parts, and so have read what they wanted; but a block without a
// head may not have read the others' sum when the next heads' parts are all there.
#pragma once
#include <cuda/atomic>

#include "common/cuda/tagged_words.cuh"
#include "common/kernels/gpt2/bare/fewer_model.cuh"
#include "common/kernels/gpt2/cluster_mail.cuh"
#include "common/kernels/gpt2/counted_sums.cuh"

// How the blocks' parts of a sum meet:
//   COUNTER     additions of 64-bit integers, a fence, a counter; then the words are read
//   COUNTED     counted_sums.cuh: the words themselves are looked at until they are whole
//   SHARED      the same, but each block of a cluster looks at its share, and sends the cluster what it has found
enum Exchange { NONE, COUNTER, COUNTED, SHARED };
constexpr int SETS = 3;       // of the words of a sum
constexpr int LINE = 32;  // words of 128 bytes
constexpr long long QUARTER = counted::scale_for(255).most >> 19;  // of the largest addend, 2^17

using Word = cuda::atomic_ref<unsigned, cuda::thread_scope_device>;

struct Mail {
    counted::Sum* sums;     // [SETS][width]
    unsigned* counters;     // [2][LINE]
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

__device__ __forceinline__ counted::Scale scale() {
    constexpr counted::Scale any = counted::scale_for(255);
    return any;
}
// What everyone adds to this word, in quarters.
__device__ __forceinline__ int quarters(const Turn& turn, int word) { return 1 + ((word + turn.number) & 7); }
__device__ __forceinline__ float addend(const Turn& turn, int word) { return 0.25f * quarters(turn, word); }

// Groups that add up a block's slice of the words, or blocks that add to all.
__device__ __forceinline__ int addends(const Sizes& s, const Turn& turn) {
    return turn.heads ? s.heads : s.gathers ? s.groups : s.blocks;
}

// The words from slice_begin(rank) to slice_begin(rank + 1), whole fours.
__device__ __forceinline__ int slice_begin(const Sizes& s, int rank) { return s.width / 4 * rank / s.group * 4; }

template <Exchange E>
struct Residual {
    const Sizes& s;
    const Mail& mail;
    Shared& shared;
    const Patience patience;
    const int slice, slice_end;  // of this block's rank
    // The thread's pairs of words as they were last, of the three sets; the last two take turns. And the stream itself.
    counted::Pair heads_last[PAIRS] = {}, last[PAIRS] = {}, last_but_one[PAIRS] = {};
    long long stream[PAIRS][2] = {};
    unsigned waits[2] = {};
    bool wrong = false;

    __device__ __forceinline__ Residual(const Sizes& sizes, const Mail& to, Shared& memory, Patience until)
        : s(sizes),
          mail(to),
          shared(memory),
          patience(until),
          slice(slice_begin(sizes, blockIdx.x % sizes.group)),
          slice_end(slice_begin(sizes, blockIdx.x % sizes.group + 1)) {}

    // All threads that read; behind a readers_sync().
    __device__ __forceinline__ void add_up(const Turn& turn) {
        if (E == NONE) return;
        const bool whole = !turn.heads && !s.gathers;
        const int first = whole ? 0 : slice, end = whole ? s.width : slice_end, thread = threadIdx.x;
        counted::Sum* const to = mail.sums + turn.set * s.width;
        for (int word = first + thread; word < end; word += THREADS)
            counted::add(to + word, counted::to_fixed(scale(), addend(turn, word)));
        if (E != COUNTER) return;
        readers_sync();
        if (thread == 0)
            Word(mail.counters[turn.heads ? 0 : LINE]).fetch_add(1, cuda::memory_order_release);
    }

    __device__ __forceinline__ void wait_for_counter(const Turn& turn) {
        const unsigned target = ++waits[!turn.heads] * (turn.heads ? s.headed() : s.blocks);
        unsigned* const counter = mail.counters + (turn.heads ? 0 : LINE);
        if (threadIdx.x == 0)
            while (Word(*counter).load(cuda::memory_order_acquire) < target) patience();
        readers_sync();
    }

    // The difference of a word, added to the stream -> the stream.
    __device__ __forceinline__ float take(const Turn& turn, int word, long long difference, long long& sum) {
        wrong |= difference != static_cast<long long>(addends(s, turn) * quarters(turn, word)) * QUARTER;
        sum += difference;
        return counted::to_float(scale(), sum);
    }
    __device__ __forceinline__ bool both_whole(const counted::Pair& now, const counted::Pair& before, unsigned count) {
        return counted::is_whole(counted::since(now.x, before.x, count)) &&
               counted::is_whole(counted::since(now.y, before.y, count));
    }

    // COUNTER, COUNTED: all words by every block.
    __device__ __forceinline__ void gather_all(const Turn& turn, counted::Pair (&before)[PAIRS]) {
        const counted::Sum* const from = mail.sums + turn.set * s.width;
        const unsigned count = addends(s, turn);
        const auto word_of = [&](int i) { return 2 * (static_cast<int>(threadIdx.x) + i * THREADS); };
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

    // SHARED: 4 neighbouring threads have a pair of the block's slice, and each sends it to some blocks.
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

    // The residual stream -> shared.x.
    __device__ __forceinline__ void gather(const Turn& turn) {
        if (E == NONE) return;
        counted::Pair(&before)[PAIRS] = turn.heads ? heads_last : last_but_one;
        if (E == COUNTER) wait_for_counter(turn);
        if (E != SHARED) gather_all(turn, before);
        if (E == SHARED) {
            gather_shared(turn, before);
            while (!mail_has_come(shared.sum_box, turn.number)) patience();
            if (threadIdx.x == 0) mail_expect(shared.sum_box, turn.number + 2, 4 * s.width);
        }
        readers_sync();
    }
};
