// phase_draw.cuh - a token drawn from the logits of all blocks: temperature, top-k, top-p, as sampling.py has them.
//
//   1. Weights    weigh_logits      the block's own logits -> the place of each, and what it weighs
//   2. Digits     DigitSums         how many tokens there are for each next digit of a place, and what they weigh
//   3. Search     find_first        the first token up to which they reach a target
//   4. Draw       draw_token        three searches: top-k, top-p, the draw
//
// All three go along the list of tokens, the largest logit first: up to the k-th; up to a share of what those weigh; up
// to the share that was drawn. Sorting 50,257 tokens of 132 blocks would take longer than the step. But a search needs
// no list, only sums. A token's place is a number of 63 bits, how far its logit lies below the largest and then its own
// number; it is found from the highest digit of 7 bits to the lowest, much as a radix sort would go:
//
//     each block          its tokens with the digits found so far, by the next one: 128 counts, 128 weights
//     block d             adds up what the blocks have for digit d
//     each block          goes along the 128 sums to where they reach the target: the next digit; no need to ask anyone
//
// until one token is left; 3 digits of the 9 make 2 million places. The sums of the first one serve all three searches.
//
// A weight is exp((logit - largest) / temperature) in units of 2^-45, an integer: sums come out the same in any order,
// so that all blocks agree, and so do two runs. What would be 0 is not drawn; all of that together weighs less than
// 2^-27.
//
// One warp draws for each sequence, and the warps need not wait for each other.
#pragma once
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/gpt2/phase_block.cuh"

using Number = unsigned long long;

constexpr int DIGIT_BITS = 7, TOKEN_BITS = 18, DISTANCE_BITS = 45;
constexpr int HIGHEST_DIGIT = TOKEN_BITS + DISTANCE_BITS - DIGIT_BITS;  // its lowest bit
constexpr int LANE_DIGITS = DIGITS / 32;                                // of the table; neighbours
constexpr double WEIGHT_OF_ONE = static_cast<double>(Number{1} << 45);
constexpr double FARTHEST = 32.0;  // temperatures below the largest logit: exp(-32) is less than half a unit
static_assert(DIGITS == 1 << DIGIT_BITS && HIGHEST_DIGIT % DIGIT_BITS == 0, "digits divide a place");
static_assert(DRAW_TAGS >= 1 + 3 * (HIGHEST_DIGIT / DIGIT_BITS), "a tag for each digit of three searches");
static_assert(MOST_DRAWN_TOKENS == 1 << TOKEN_BITS, "a token's number is the lower part of its place");

// -------------------------------------------------------------------------------------------------- 1. Weights

// By all threads: the logits of the block's units -> places and weights [rows][draw_tokens]; weight 0: not to be drawn.
__device__ __forceinline__ void weigh_logits(const Steps& a, const DrawMemory& m, const StepState& state,
                                             const Range& units) {
    const int each = a.plan.draw_tokens;
    const double temperature = *a.temperature, most = static_cast<double>((Number{1} << DISTANCE_BITS) - 1);
    for (int i = threadIdx.x; i < a.model.rows * each; i += BLOCK_THREADS) {
        const int row = i / each, at = i % each;
        const int token = units.begin * UNIT_ROWS + at;
        Number weight = 0, place = 0;
        if (at < units.count() * UNIT_ROWS && token < a.model.vocab) {
            const double largest = state.largest[row];
            const double below = largest - static_cast<double>(a.logits[int64_t{row} * a.model.vocab + token]);
            const double range = fmin(FARTHEST * temperature, largest - static_cast<double>(state.smallest[row]));
            const double distance = range > 1e-280 ? fmin(below * (most / range), most) : 0.0;
            if (below / temperature < FARTHEST) {  // so it is a number
                weight = static_cast<Number>(exp(-below / temperature) * WEIGHT_OF_ONE + 0.5);
                place = static_cast<Number>(distance) << TOKEN_BITS | static_cast<Number>(token);
            }
        }
        m.places[i] = place, m.weights[i] = weight;
    }
}

// --------------------------------------------------------------------------------------------------- 2. Digits

// Of the tokens whose places begin with the same digits. Each lane has LANE_DIGITS of the table.
struct DigitSums {
    unsigned count[LANE_DIGITS], token[LANE_DIGITS];  // token: the sum of their numbers; of one alone, which it is
    Number weight[LANE_DIGITS];
};

__device__ __forceinline__ Number joined(unsigned low, unsigned high) { return Number{high} << 32 | low; }
__device__ __forceinline__ void put_sums(tagged::Word* words, unsigned count, unsigned token, Number weight,
                                         unsigned tag) {
    tagged::put_pair(words, count, token, tag);
    tagged::put_pair(words + 2, static_cast<unsigned>(weight), static_cast<unsigned>(weight >> 32), tag);
}

// The block's own tokens of a sequence, in shared memory.
__device__ __forceinline__ void count_own_digits(const StepPlan& plan, const DrawMemory& m, int row, Number begins,
                                                 int shift) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    UNROLL
    for (int i = 0; i < LANE_DIGITS; ++i) {
        const int at = row * DIGITS + lane + 32 * i;
        m.digit_count[at] = m.digit_token[at] = 0, m.digit_weight[at] = 0;
    }
    __syncwarp();
    for (int i = lane; i < plan.draw_tokens; i += 32) {
        const Number place = m.places[row * plan.draw_tokens + i], weight = m.weights[row * plan.draw_tokens + i];
        if (weight == 0 || place >> (shift + DIGIT_BITS) != begins) continue;
        const int at = row * DIGITS + static_cast<int>(place >> shift & (DIGITS - 1));
        atomicAdd(m.digit_count + at, 1u);
        atomicAdd(m.digit_token + at, static_cast<unsigned>(place) % MOST_DRAWN_TOKENS);
        atomicAdd(m.digit_weight + at, weight);
    }
    __syncwarp();
}

// What all blocks have for one digit -> its sums, by lane 0. parts [blocks][4]
__device__ __forceinline__ void add_up_digit(int blocks, const tagged::Word* parts, tagged::Word* sums, unsigned tag) {
    constexpr int AT_ONCE = 4;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    unsigned count = 0, token = 0;
    Number weight = 0;
    for (int first = lane; first < blocks; first += 32 * AT_ONCE) {
        tagged::Pair pairs[2 * AT_ONCE];
        const auto place = [&](int i) {
            const int block = first + 32 * (i / 2);
            return block < blocks ? parts + 4 * block + 2 * (i % 2) : nullptr;
        };
        tagged::get_all(pairs, place, tag);
        UNROLL
        for (int i = 0; i < AT_ONCE; ++i) {
            if (first + 32 * i >= blocks) break;
            const tagged::Pair numbers = pairs[2 * i], halves = pairs[2 * i + 1];
            count += numbers.x, token += numbers.z, weight += joined(halves.x, halves.z);
        }
    }
    UNROLL
    for (int distance = 16; distance > 0; distance /= 2) {
        count += __shfl_xor_sync(FULL_WARP, count, distance);
        token += __shfl_xor_sync(FULL_WARP, token, distance);
        weight += __shfl_xor_sync(FULL_WARP, weight, distance);
    }
    if (lane == 0) put_sums(sums, count, token, weight, tag);
}

// By a warp: the sums of all blocks' tokens whose places begin with `begins`, for the digit from bit `shift` on.
__device__ __forceinline__ DigitSums digit_sums(const Steps& a, const DrawMemory& m, int row, Number begins, int shift,
                                                unsigned tag) {
    const int lane = static_cast<int>(threadIdx.x) % 32, blocks = a.plan.blocks, block = static_cast<int>(blockIdx.x);
    tagged::Word* const parts = a.words + a.plan.exchange.digit_parts + row * DIGITS * blocks * 4;
    tagged::Word* const sums = a.words + a.plan.exchange.digit_sums + row * DIGITS * 4;
    count_own_digits(a.plan, m, row, begins, shift);
    UNROLL
    for (int i = 0; i < LANE_DIGITS; ++i) {
        const int digit = lane + 32 * i, at = row * DIGITS + digit;
        put_sums(parts + (digit * blocks + block) * 4, m.digit_count[at], m.digit_token[at], m.digit_weight[at], tag);
    }
    for (int digit = block; digit < DIGITS; digit += blocks)
        add_up_digit(blocks, parts + digit * blocks * 4, sums + digit * 4, tag);
    tagged::Pair found[2 * LANE_DIGITS];
    tagged::get_all(found, [&](int i) { return sums + lane * LANE_DIGITS * 4 + 2 * i; }, tag);
    DigitSums result;
    UNROLL
    for (int i = 0; i < LANE_DIGITS; ++i) {
        const tagged::Pair numbers = found[2 * i], halves = found[2 * i + 1];
        result.count[i] = numbers.x, result.token[i] = numbers.z, result.weight[i] = joined(halves.x, halves.z);
    }
    return result;
}

// --------------------------------------------------------------------------------------------------- 3. Search

// v of all lanes before this one, added up.
template <typename N>
__device__ __forceinline__ N sum_before(N v) {
    N sum = v;
    UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
        const N other = __shfl_up_sync(FULL_WARP, sum, distance);
        if (static_cast<int>(threadIdx.x) % 32 >= distance) sum += other;
    }
    return sum - v;
}

struct FoundToken {
    Number weight;  // of all up to it, itself included
    int token;
};

// By a warp: the first token up to which, itself included, there are `target` tokens (by_count), or they weigh so much.
// target: 1 ... that of all. sums: of the highest digit. tag: the next one; moves on.
__device__ __forceinline__ FoundToken find_first(const Steps& a, const DrawMemory& m, int row, Number target,
                                                 bool by_count, DigitSums sums, unsigned& tag) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    Number begins = 0, count_before = 0, weight_before = 0;
    NO_UNROLL
    for (int shift = HIGHEST_DIGIT; shift >= 0; shift -= DIGIT_BITS) {
        Number count = 0, weight = 0;
        UNROLL
        for (int i = 0; i < LANE_DIGITS; ++i) count += sums.count[i], weight += sums.weight[i];
        count = count_before + sum_before(count);
        weight = weight_before + sum_before(weight);
        // Along the lane's digits, up to the first that reaches it
        bool here = false;
        unsigned number = 0, token = 0;
        int digit = lane * LANE_DIGITS;
        Number weighs = 0;
        UNROLL
        for (int i = 0; i < LANE_DIGITS; ++i) {
            if (here) break;
            number = sums.count[i], token = sums.token[i], weighs = sums.weight[i];
            here = (by_count ? count + number : weight + weighs) >= target;
            if (!here) count += number, weight += weighs, ++digit;
        }
        const int from = __ffs(static_cast<int>(__ballot_sync(FULL_WARP, here))) - 1;
        count_before = __shfl_sync(FULL_WARP, count, from);
        weight_before = __shfl_sync(FULL_WARP, weight, from);
        begins = begins << DIGIT_BITS | static_cast<Number>(__shfl_sync(FULL_WARP, digit, from));
        number = __shfl_sync(FULL_WARP, number, from);
        if (number == 1 || shift == 0)
            return {weight_before + __shfl_sync(FULL_WARP, weighs, from),
                    static_cast<int>(__shfl_sync(FULL_WARP, token, from))};
        sums = digit_sums(a, m, row, begins, shift - DIGIT_BITS, tag++);
    }
    return {0, 0};  // not reached
}

// ----------------------------------------------------------------------------------------------------- 4. Draw

// 1 ... most; what is no number becomes 1.
__device__ __forceinline__ Number target_of(double weight, Number most) {
    if (!(weight > 1.0)) return 1;
    return weight < static_cast<double>(most) ? min(static_cast<Number>(weight), most) : most;
}

// By a warp: the token of sequence `row`. likeliest: the one with the largest logit. uniform: what was drawn, 0 ... 1.
__device__ __forceinline__ int draw_token(const Steps& a, const DrawMemory& m, int row, int likeliest, double uniform,
                                          unsigned tag) {
    if (*a.top_k == 1) return likeliest;
    const DigitSums sums = digit_sums(a, m, row, 0, HIGHEST_DIGIT, tag++);
    Number count = 0, kept = 0;
    UNROLL
    for (int i = 0; i < LANE_DIGITS; ++i) count += sums.count[i], kept += sums.weight[i];
    count = __shfl_sync(FULL_WARP, sum_before(count) + count, 31);
    kept = __shfl_sync(FULL_WARP, sum_before(kept) + kept, 31);
    if (count == 0) return likeliest;  // of logits that are no numbers
    FoundToken found = {0, likeliest};
    NO_UNROLL
    for (int search = 0; search < 3; ++search) {  // up to the k-th; up to the share top_p; up to the share drawn
        const double weight = static_cast<double>(kept);
        const Number top_k = static_cast<Number>(max(*a.top_k, int64_t{1}));
        if ((search == 0 && top_k >= count) || (search == 1 && !(*a.top_p < 1.0))) continue;
        const double share = search == 1 ? ceil(*a.top_p * weight) : floor(uniform * weight) + 1.0;
        const Number target = search == 0 ? top_k : target_of(share, kept);
        found = find_first(a, m, row, target, search == 0, sums, tag);
        kept = found.weight;
    }
    return found.token;
}
