// step_sampling.cuh - temperature, top-k, top-p and sampling (sampling.py) without a sort, by each cluster for itself.
//
//   Sampler        load() the CTA's share of the logits, then draw()
//   draw_tokens    for each sequence; S: Step of persistent_step.cu
//   next_token     what follows LM_HEAD: the largest logit of all CTAs, or a sampled token
//
// Top-k, top-p and sampling each look for a threshold in the list of tokens, largest logit first: the k-th token; the
// token at which the cumulative weight reaches a share. A threshold search needs no sorted list, only sums: a radix
// select over 64-bit keys: the logit's distance from the largest in units of 2^-40 log2, then the token id. Each CTA of
// a cluster has an eighth of the logits in registers:
//
//     build a histogram in shared memory of the keys that match the digits found so far, by the next 8 bits: counts
//         and weights
//     add up the cluster's histograms (distributed shared memory), thread t bin t
//     scan the bins for the one that reaches the target: the next digit
//
// until at most 256 tokens are left, one per thread, which are sorted by comparing each with all others. All clusters
// do the same and reach the same token, so nothing goes through global memory.
//
// The first histogram serves all three searches. The k-th largest of the CTAs' maxima, which every CTA has, is a lower
// bound of the k-th largest logit: with top-k, few tokens remain. Weights are integers,
// exp((logit - largest) / temperature) in units of 2^-38: their sums are the same in any order. Tokens whose weight
// would be 0 are never drawn; together they weigh less than 2^-20.
#pragma once
#include "common/cuda/exp2.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/gpt2/best.cuh"
#include "common/kernels/gpt2/cluster_gather.cuh"
#include "common/kernels/gpt2/step_gemv.cuh"
#include "common/kernels/gpt2/step_plan.h"
#include "common/kernels/gpt2/step_trace.cuh"

using Number = unsigned long long;
constexpr unsigned CANCELLED = 0x80000000u;  // in an LL line, along with the token: the run ends here

struct Sampler {
    static constexpr int TOKEN_BITS = 18, DIGIT_BITS = 8, UNIT_BITS = 40;  // of a key: token id, digit, log2 fraction
    static constexpr int WEIGHT_BITS = 38, LOW_BITS = WEIGHT_BITS / 2;     // shared memory adds 32 bits at once
    static constexpr Number NONE = ~Number{0};                             // the key of a token that isn't drawn
    static_assert(BINS == 1 << DIGIT_BITS && BINS == CTA_THREADS, "a bin for each thread");

    struct Scratch {
        Number counts[CTA_WARPS], weights[CTA_WARPS];  // totals of the warps' bins
        Number before_count, before_weight;            // totals of all bins before the one found
        unsigned count;                                // entries in the bin found, and its digit
        int digit, token;                              // token: what was found
        Number weight;                                 // total of all tokens up to this one
        float bound;
    };
    Bin* const bins;      // [2][BINS], zeros
    Scratch& scratch;
    Gather& signal;       // expects `cluster` arrivals
    const int cluster;
    unsigned& round;      // histograms so far
    Number keys[SAMPLED_PER_THREAD];
    Number key, weight, up_to;  // list(): the thread's token, its weight, that of the listed tokens up to this one
    unsigned rank;              // their number

    // All functions here are called by all threads of the CTA. maxima: the CTAs' largest logits.
    __device__ __forceinline__ float bound_of(const float* maxima, int ctas, int64_t top_k) {
        if (top_k > ctas) return -INFINITY;
        const int i = static_cast<int>(threadIdx.x);
        int rank = 0;
        for (int other = 0; i < ctas && other < ctas; ++other)
            rank += maxima[other] > maxima[i] || (maxima[other] == maxima[i] && other < i);
        if (i < ctas && rank + 1 == max(top_k, int64_t{1})) scratch.bound = maxima[i];
        cta_sync();
        return scratch.bound;
    }

    // logits: of the sequence, [vocab]; those below the bound are irrelevant.
    template <class Bound>
    __device__ __forceinline__ void load(const float* logits, Range tokens, float largest, double temperature,
                                         Bound bound_of_all) {
        constexpr double LOG2_E_64 = 1.4426950408889634;
        float values[SAMPLED_PER_THREAD];
        UNROLL
        for (int i = 0; i < SAMPLED_PER_THREAD; ++i) {
            const int token = tokens.begin + static_cast<int>(threadIdx.x) + i * CTA_THREADS;
            values[i] = token < tokens.end ? __ldcg(logits + token) : -INFINITY;
        }
        const double scale = LOG2_E_64 / temperature * static_cast<double>(Number{1} << UNIT_BITS);
        const float bound = bound_of_all();
        UNROLL
        for (int i = 0; i < SAMPLED_PER_THREAD; ++i) {
            keys[i] = NONE;
            if (!(values[i] >= bound)) continue;
            const Number token = static_cast<Number>(tokens.begin + static_cast<int>(threadIdx.x) + i * CTA_THREADS);
            const double below = static_cast<double>(largest) - values[i], distance = below == 0 ? 0 : below * scale;
            if (distance < static_cast<double>(Number{WEIGHT_BITS} << UNIT_BITS))
                keys[i] = static_cast<Number>(distance) << TOKEN_BITS | token;
        }
    }

    __device__ __forceinline__ static Number weight_of(Number key) {
        const Number distance = key >> TOKEN_BITS;
        const float fraction = static_cast<float>(static_cast<unsigned>(distance >> (UNIT_BITS - 24)) & 0xffffffu);
        const unsigned mantissa = static_cast<unsigned>(exp2_approx(fraction * -0x1p-24f) * 0x1p24f);
        return (Number{mantissa} << (WEIGHT_BITS - 24)) >> (distance >> UNIT_BITS);
    }

    // Makes this CTA's bins of the round visible to the cluster, and vice versa.
    __device__ __forceinline__ void signal_and_wait() {
        cta_sync();
        if (static_cast<int>(threadIdx.x) < cluster) signal_send(signal, threadIdx.x, round);
        gather_wait(signal, round++);
    }
    __device__ __forceinline__ Bin* bins_of(unsigned of_round) const { return bins + (of_round & 1) * BINS; }

    struct Sums {
        unsigned count;
        Number weight;
    };
    // Thread t: bin t of the whole cluster's keys that begin with `prefix`, by the digit starting at bit `shift`.
    __device__ __forceinline__ Sums histogram(Number prefix, int shift) {
        Bin* const mine = bins_of(round);
        UNROLL
        for (int i = 0; i < SAMPLED_PER_THREAD; ++i) {
            if (keys[i] == NONE || keys[i] >> shift >> DIGIT_BITS != prefix) continue;
            Bin& bin = mine[keys[i] >> shift & (BINS - 1)];
            atomicAdd(&bin.count, 1u);
            const Number weight = weight_of(keys[i]);
            atomicAdd(&bin.low, static_cast<unsigned>(weight) & ((1u << LOW_BITS) - 1));
            atomicAdd(&bin.high, static_cast<unsigned>(weight >> LOW_BITS));
        }
        signal_and_wait();
        Sums sum = {};
        for (int rank = 0; rank < cluster; ++rank) {
            const Bin other = *remote_pointer(mine + threadIdx.x, rank);
            sum.count += other.count, sum.weight += (Number{other.high} << LOW_BITS) + other.low;
        }
        bins_of(round)[threadIdx.x] = {};  // all have read it before they signaled
        return sum;
    }
    // -> how many keys of the cluster begin with `prefix`, as above. At most BINS: each thread has one, and its rank.
    __device__ __forceinline__ unsigned list(Number prefix, int shift) {
        Bin* const mine = bins_of(round);
        UNROLL
        for (int i = 0; i < SAMPLED_PER_THREAD; ++i) {
            if (keys[i] == NONE || keys[i] >> shift >> DIGIT_BITS != prefix) continue;
            const unsigned at = atomicAdd(&mine->count, 1u);
            if (at >= unsigned{BINS}) continue;
            mine[at].low = static_cast<unsigned>(keys[i]), mine[at].high = static_cast<unsigned>(keys[i] >> 32);
        }
        signal_and_wait();
        const Bin* from = nullptr;
        unsigned count = 0;
        for (int other = 0; other < cluster; ++other) {
            const unsigned here = remote_pointer(mine, other)->count, at = threadIdx.x - count;
            if (threadIdx.x >= count && at < min(here, unsigned{BINS})) from = remote_pointer(mine + at, other);
            count += here;
        }
        key = from ? Number{from->high} << 32 | from->low : NONE;
        weight = key == NONE ? 0 : weight_of(key), up_to = 0, rank = 0;
        Bin* const all = bins_of(round);  // all have read it before they signaled
        all[threadIdx.x] = {static_cast<unsigned>(key), static_cast<unsigned>(key >> 32), static_cast<unsigned>(weight),
                            static_cast<unsigned>(weight >> 32)};
        cta_sync();
        UNROLL_BY(4)
        for (unsigned i = 0; i < count && count <= unsigned{BINS}; ++i) {
            const Bin one = all[i];
            const bool before = (Number{one.token} << 32 | one.count) <= key;
            up_to += before ? Number{one.high} << 32 | one.low : 0, rank += before;
        }
        cta_sync();
        all[threadIdx.x] = {};
        cta_sync();
        return count;
    }

    __device__ __forceinline__ static Number scan(Number x) {  // inclusive, over a warp
        UNROLL
        for (int distance = 1; distance < 32; distance *= 2) {
            const Number other = __shfl_up_sync(FULL_WARP, x, distance);
            if (static_cast<int>(threadIdx.x) % 32 >= distance) x += other;
        }
        return x;
    }
    // scratch: the bin with the token at which counts or weights, starting from before_count and before_weight, reach
    // the target.
    __device__ __forceinline__ void find_bin(const Sums& bin, Number target, bool by_count) {
        const int warp = static_cast<int>(threadIdx.x) / 32;
        Number count = scan(bin.count), weight = scan(bin.weight);
        if (threadIdx.x % 32 == 31) scratch.counts[warp] = count, scratch.weights[warp] = weight;
        count += scratch.before_count, weight += scratch.before_weight;
        cta_sync();
        for (int w = 0; w < warp; ++w) count += scratch.counts[w], weight += scratch.weights[w];
        if ((by_count ? count : weight) >= target && (by_count ? count - bin.count : weight - bin.weight) < target) {
            scratch.before_count = count - bin.count, scratch.before_weight = weight - bin.weight;
            scratch.count = bin.count, scratch.digit = static_cast<int>(threadIdx.x);
        }
        cta_sync();
    }

    struct Found {
        Number weight;  // total of all tokens up to this one
        int token;
    };
    // target: 1 .. the count or weight of all. few: all are listed; if not, first: the thread's bin of the first
    // histogram.
    __device__ __forceinline__ Found find(Number target, bool by_count, bool few, const Sums& first) {
        cta_sync();  // all threads have read the last search's result
        if (threadIdx.x == 0) scratch.before_count = scratch.before_weight = 0;
        cta_sync();
        Sums bin = first;
        Number prefix = 0;
        NO_UNROLL
        for (int shift = 64 - DIGIT_BITS; !few;) {
            find_bin(bin, target, by_count);
            prefix = prefix << DIGIT_BITS | static_cast<Number>(scratch.digit), shift -= DIGIT_BITS;
            few = scratch.count <= unsigned{BINS};  // at the latest when one digit is left: keys are distinct
            if (few)
                list(prefix, shift);
            else
                bin = histogram(prefix, shift);
        }
        const Number found = by_count ? scratch.before_count + rank : scratch.before_weight + up_to;
        if (key != NONE && found >= target && found - (by_count ? 1 : weight) < target) {
            scratch.weight = scratch.before_weight + up_to;
            scratch.token = static_cast<int>(key & ((1u << TOKEN_BITS) - 1));
        }
        cta_sync();
        return {scratch.weight, scratch.token};
    }

    // Returns the token; `likeliest` if nothing can be drawn. uniform: in [0, 1), the random number for this token.
    __device__ __forceinline__ int draw(int likeliest, int64_t top_k, double top_p, double uniform) {
        const unsigned count = list(0, 64 - DIGIT_BITS);
        if (count == 0) return likeliest;
        const bool few = count <= unsigned{BINS};
        const Sums first = few ? Sums{} : histogram(0, 64 - DIGIT_BITS);
        const Number k = static_cast<Number>(max(top_k, int64_t{1}));
        Number kept = find(min(k, Number{count}), true, few, first).weight;
        const auto target_of = [&](double share) {
            return share > 1.0 ? min(static_cast<Number>(fmin(share, 0x1p63)), kept) : Number{1};
        };
        if (top_p < 1.0) kept = find(target_of(ceil(top_p * static_cast<double>(kept))), false, few, first).weight;
        return find(target_of(floor(uniform * static_cast<double>(kept)) + 1.0), false, few, first).token;
    }
};

// On entry state.token has the likeliest tokens, m.maxima the CTAs' largest logits.
template <class S>
__device__ __forceinline__ void draw_tokens(S& s, int text_step) {
    const float* maxima = s.m.maxima;
    for (int row = 0; row < s.rows(); ++row, maxima += MAX_CLUSTERS * SLICES) {
        const int likeliest = s.state.token[row];
        if (likeliest == NO_TOKEN) continue;
        Sampler sampler{s.m.bins, s.state.sampling, s.gathers.histograms, s.cluster(), s.histograms};
        const int64_t top_k = *s.a.top_k;
        const double temperature = *s.a.temperature, top_p = *s.a.top_p;
        const double uniform = text_step < s.a.history_steps ? s.a.uniforms[text_step * s.rows() + row] : 0.0;
        const float* const logits = s.a.logits + int64_t{row} * s.a.model.vocab;
        const Range tokens = part_of({0, s.a.model.vocab}, s.cluster(), s.share.rank);
        sampler.load(logits, tokens, __ldcg(logits + likeliest), temperature,
                     [&] { return sampler.bound_of(maxima, s.a.plan.ctas, top_k); });
        const int token = sampler.draw(likeliest, top_k, top_p, uniform);
        if (threadIdx.x == 0) s.state.token[row] = token;
    }
    cta_sync();
}

// All CTAs' LL lines -> state: the next tokens, by warp r for sequence r; a sampled one by the whole cluster.
template <class S>
__device__ __forceinline__ void next_token(S& s, int text_step, unsigned flag) {
    constexpr int TOGETHER = 4;
    float* const maxima = s.m.maxima + s.warp() * MAX_CLUSTERS * SLICES;
    Best best = {-INFINITY, 0};
    bool cancelled = false;
    NO_UNROLL
    for (int first = s.lane(); s.warp() < s.rows() && first < s.a.plan.ctas; first += 32 * TOGETHER) {
        uint4 lines[TOGETHER];
        bool ready = false;
        while (!ready) {
            ready = true;
            UNROLL
            for (int i = 0; i < TOGETHER; ++i) {
                lines[i] = ll_load(s.line(s.warp(), min(first + 32 * i, s.a.plan.ctas - 1)));
                ready &= ll_ready(lines[i], flag);
            }
        }
        UNROLL
        for (int i = 0; i < TOGETHER; ++i) {
            if (first + 32 * i >= s.a.plan.ctas) break;
            const Best one = {__uint_as_float(lines[i].x), static_cast<int>(lines[i].z & ~CANCELLED)};
            if (is_better(one, best)) best = one;
            cancelled |= (lines[i].z & CANCELLED) != 0;
            if (S::SAMPLED && s.a.model.sampled) maxima[first + 32 * i] = one.value;
        }
    }
    __threadfence();  // covers the writers' cache and logits
    best = best_of_lanes(best);
    cancelled = __any_sync(FULL_WARP, cancelled);
    if (s.warp() < s.rows() && s.lane() == 0) {
        s.state.token[s.warp()] = best.value > -INFINITY ? best.token : NO_TOKEN;
        if (s.warp() == 0) s.state.cancelled = cancelled;
    }
    cta_sync();
    if (S::SAMPLED && s.a.model.sampled) draw_tokens(s, text_step);
    const int row = static_cast<int>(threadIdx.x);
    if (row < s.rows()) {
        s.state.finished[row] |= s.state.token[row] == *s.a.stop;
        const int at = text_step * s.rows() + row;
        if (blockIdx.x == 0 && text_step >= 0 && text_step < s.a.history_steps) {
            s.a.history[at] = s.state.token[row];
            *static_cast<volatile int*>(s.a.arrived + at) = s.state.token[row];
        }
    }
    cta_sync();
    s.trace.stamp(Trace::TOKEN);
}
