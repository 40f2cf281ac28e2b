// fewer_model.cuh - which bytes of GPT-2's weights and cache a block has, phase by phase: two handovers a layer.
//
//   Sizes, sizes_of()       the model, its groups of blocks, and where the phases' bytes lie
//   part_of(sizes, kind, block)     what a block has of a phase
//   feed()                  asks for a block's parts, one piece after the other, by the warp that feeds
//
// The first `heads` groups have a head each, of which every block has a part; the MLP and the logits are all blocks'.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>

#include "common/cuda/check.h"
#include "common/cuda/unroll.cuh"
#include "common/kernels/gpt2/piece_stream.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS;  // that read; one more warp feeds them
constexpr int PAIRS = 2;                        // of words that a thread reads, at most
constexpr int MAX_WIDTH = 2 * PAIRS * THREADS, MAX_CLUSTERS = 16, MAX_HOP_WORDS = 68, MAX_GROUP = 11;

enum Kind { QKV, CACHE, PROJECTION, EXPAND, CONTRACT, LOGITS, KINDS };

struct Sizes {
    int layers, width, heads, hidden;
    int group, groups, blocks;  // blocks of a group; the first `heads` groups have a head
    int units[KINDS];           // QKV, CACHE, PROJECTION: of a head; else of all blocks
    int unit_bytes[KINDS];
    int freer;                  // a block without a head has so many per cent of the logits of one with a head
    size_t begin[KINDS];        // of a layer's parts, bytes; LOGITS: of all
    size_t layer_bytes, bytes;
    size_t own_bytes;           // not 0: the block reads so many again and again, which stay in the L2 cache
    int hop_words[3];           // of 4 bytes, from each block: rows of QKV, its state, inner units; whole 16 bytes
    bool gathers;               // the cluster's inner units meet before CONTRACT, of which a block then has whole rows
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
               (blocks < s.headed()
                    ? 0ll
                    : static_cast<long long>(kind == LOGITS ? s.freer : 100) * (blocks - s.headed()));
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

// Of GPT-2, or of a small model. clusters: whole ones that run at once, of `cluster` blocks each; in_clusters: whether
// groups are clusters, else there are 11 blocks for each of 12 heads. gathers: see Sizes.
inline Sizes sizes_of(bool small, int processors, int clusters, int cluster, bool in_clusters, bool gathers) {
    Sizes s = {};
    s.layers = small ? 3 : 12, s.width = small ? 64 : 768, s.heads = small ? 2 : 12, s.hidden = 4 * s.width;
    const int vocab = small ? 200 : 50257, tokens = small ? 40 : 512, head_dim = s.width / s.heads;
    s.group = in_clusters ? cluster : std::min(processors / s.heads, MAX_GROUP);
    s.groups = in_clusters ? std::min(clusters, MAX_CLUSTERS) : s.heads;
    s.blocks = s.group * s.groups;
    const int units[KINDS] = {3 * head_dim, tokens, s.width, s.hidden, s.hidden, vocab};
    const int bytes[KINDS] = {2 * s.width, 4 * head_dim, 2 * head_dim, 2 * s.width, 2 * s.width, 2 * s.width};
    for (int i = 0; i < KINDS; ++i) {
        s.units[i] = units[i], s.unit_bytes[i] = bytes[i];
        s.begin[i] = s.layer_bytes;
        if (i < LOGITS) s.layer_bytes += static_cast<size_t>(i <= PROJECTION ? s.heads : 1) * units[i] * bytes[i];
    }
    s.freer = 100;
    s.begin[LOGITS] = s.layers * s.layer_bytes;
    s.bytes = s.begin[LOGITS] + static_cast<size_t>(units[LOGITS]) * bytes[LOGITS];
    s.slot_bytes = 18 << 10, s.slots = std::min((200 << 10) / s.slot_bytes, MAX_SLOTS);
    s.gathers = gathers;

    // All blocks have as many bytes, by what those without a head have more of the logits.
    const double headed = s.headed(), freer = s.blocks - s.headed();
    if (freer > 0) {
        double heads_bytes = 0;  // of a step, which those without a head do not have
        for (int i = 0; i <= PROJECTION; ++i)
            heads_bytes += static_cast<double>(s.layers) * s.heads * units[i] * bytes[i];
        const double each = (static_cast<double>(units[LOGITS]) * bytes[LOGITS] + heads_bytes) / s.blocks;
        s.freer = static_cast<int>(100.0 * each / std::max(each - heads_bytes / headed, 0.02 * each) + 0.5);
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
