// fewer_hop.cuh - the blocks of a group tell each other what only they need: an all-gather.
//
//   Hop                    the ways to do it
//   hop<H>()               this block's words to all of the group, and theirs to this one
#pragma once
#include "common/kernels/gpt2/bare/fewer_exchange.cuh"

//   MEETING     stores to the other blocks of the cluster, a barrier of the cluster; only without a stream, whose
//               feeder would have to come to the barrier
//   ASYNC       cluster_mail.cuh
//   GLOBAL      tagged words in global memory; the group need not be a cluster
enum Hop { NO_HOPS, MEETING, ASYNC, GLOBAL };

// hop_words of each block of the group -> shared.letters[which], for all of the group. letter: counts those of `which`.
template <Hop H>
__device__ __forceinline__ bool hop(const Sizes& s, const Mail& mail, Shared& shared, const Patience& patience,
                                    int which, unsigned letter) {
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
